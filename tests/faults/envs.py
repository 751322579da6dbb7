"""Envs that fail in every way; importable in worker processes."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class TwoArgumentsError(Exception):
    """Pickles, and cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class UnpicklableError(Exception):
    """Holds what cannot travel."""

    def __init__(self) -> None:
        super().__init__("no way out")
        self.function = lambda: None


class SilentError(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def makes_file(path: str) -> bool:
    """Make an empty file and return True; False if it exists. Of several processes at once, one makes it."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hang() -> None:
    time.sleep(600)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def throw(error: BaseException) -> None:
    raise error


FAULTS: dict[str, Any] = {
    "value": lambda: throw(ValueError("the wheel is off")),
    "two arguments": lambda: throw(TwoArgumentsError("this", "that")),
    "unpicklable": lambda: throw(UnpicklableError()),
    "silent": lambda: throw(SilentError()),
    "sys.exit": lambda: sys.exit(3),
    "interrupt": lambda: throw(KeyboardInterrupt()),
    "kill": kill,
    "os._exit": lambda: os._exit(7),
    "hang": hang,
}


class FaultyEnv(gym.Env[Any, Any]):
    """Observes (seed mod 1000, step), rewards 1; episodes of `length` steps; fails in one step or in a reset.

    Args:
        fault: a key of `FAULTS`; None never fails.
        at: the step of an episode in which it fails; 0 is the reset.
        seed: only in the episode of this seed; None in every one.
        once: a file that is made at the first failure; while it exists, nothing fails.
        length: steps of an episode.
    """

    def __init__(
        self, fault: str | None = None, at: int = 1, seed: int | None = None, once: str = "", length: int = 6
    ) -> None:
        self.observation_space = gym.spaces.Box(-1, 1000, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.fault, self.at, self.fault_seed, self.once, self.length = fault, at, seed, once, length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number, self.step_count = seed, 0
        self.fail()
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_count += 1
        self.fail()
        return self.obs(), 1.0, self.step_count >= self.length, False, {}

    def fail(self) -> None:
        if self.fault is None or self.step_count != self.at or self.fault_seed not in (None, self.number):
            return
        if self.once and not makes_file(self.once):
            return
        FAULTS[self.fault]()

    def obs(self) -> Any:
        return np.array([-1 if self.number is None else self.number % 1000, self.step_count], np.float32)


class StuckEnv(FaultyEnv):
    """Does not want to be closed."""

    def close(self) -> None:
        hang()


def refuse_to_make() -> Any:
    raise ValueError("no licence")


def hang_to_make() -> Any:
    hang()


def make_often(path: str, failures: tuple[str, ...], **options: Any) -> FaultyEnv:
    """Make an env; the makings after the first, which the file at `path` counts, end in these faults, and then well."""
    with open(path, "a+b") as file:
        file.write(b".")
        number = file.tell() - 2
    if 0 <= number < len(failures):
        FAULTS[failures[number]]()
    return FaultyEnv(**options)
