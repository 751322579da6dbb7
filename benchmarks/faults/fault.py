"""A fault in one life of a run, and what was promised for it."""

import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import rltrainer as rl
from benchmarks.faults.legs import LEGS
from benchmarks.faults.life import Plan
from benchmarks.faults.process import Life

if TYPE_CHECKING:
    from benchmarks.faults.conductor import Run

WORKERS = ("off-policy, workers", "off-policy, restarts")
ASYNC, BATCHED = "off-policy, async", "off-policy, batched"
IN_PROCESS = ("off-policy, workers", "on-policy", "offline")
"""Legs with test envs of ours in the trainer's process."""


class Fault:
    """A fault in one life of a run; this one ends it with SIGTERM after a few steps.

    Args:
        draw: chooses what exactly happens.
        leg: a key of `LEGS`.

    Attributes:
        struck: whether it happened; it may come too late.
        num_lost: training steps that may be lost beside those since the last checkpoint.
    """

    name = "none"
    legs: tuple[str, ...] = tuple(LEGS)
    every = 2
    """A checkpoint is due after so many training steps."""

    def __init__(self, draw: random.Random, leg: str) -> None:
        self.draw, self.leg, self.struck = draw, leg, True
        self.delay = draw.uniform(0.0, 0.15)
        self.plan = Plan(leg, checkpoint={"every": rl.Every(self.every, "training_step")}, limit=draw.randint(5, 12))

    def before(self, run: "Run") -> None:
        """Do what is done before the life."""

    def during(self, life: Life, run: "Run") -> None:
        """Do what is done meanwhile; return when the life is over."""
        life.wait()

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        """Yield what is not as promised."""
        yield from stopped(life)

    def most_lost(self, life: Life) -> int:
        """Return how many training steps that had begun may be lost."""
        return 0 if life.status == 143 else self.every

    def warns(self, text: str) -> bool:
        """Return whether a warning belongs to this fault."""
        return False


def stopped(life: Life) -> Iterator[str]:
    """Yield what is wrong with a life that was to end by its own SIGTERM, or was finished."""
    expected = 143 if life.notes("stop") else 0
    if life.status != expected:
        yield f"expected exit status {expected}, found {life.status}: {life.error!r}"


def failed(life: Life, pattern: str) -> Iterator[str]:
    """Yield what is wrong with a life that was to end with an error."""
    if life.status != 1 or not re.search(rf"^(?:[\w.]+\.)?{pattern}", life.stderr, re.MULTILINE):
        yield f"expected exit status 1 and {pattern!r}, found {life.status} and {life.error!r}"


def is_at_its_end(life: Life, run: "Run") -> bool:
    """Return whether the last training step of the run had begun."""
    return bool(life.steps) and life.steps[-1] == max(run.way)
