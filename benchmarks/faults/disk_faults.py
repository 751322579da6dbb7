"""Saves that fail, and checkpoints that are damaged."""

import errno
import os
import random
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.faults.checkpoints import damage, newest_intact, repair
from benchmarks.faults.fault import Fault, failed, stopped
from benchmarks.faults.life import REFUSALS, DiskTrouble
from benchmarks.faults.process import Life

if TYPE_CHECKING:
    from benchmarks.faults.conductor import Run


class DiskFault(Fault):
    """A call of the file system fails within a save."""

    name = "refused by the disk"

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        self.plan = replace(self.plan, disk_trouble=DiskTrouble(draw.randint(1, 40), self.code(draw)))

    def code(self, draw: random.Random) -> int | None:
        return draw.choice(REFUSALS)

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        self.struck = bool(life.notes("strike"))
        pruned = "could not remove old checkpoints" in life.stderr  # which is no failure of a save
        if self.struck and not (pruned and life.status != 1):
            trouble = self.plan.disk_trouble
            reason = os.strerror(trouble.code) if trouble and trouble.code else ""
            yield from failed(life, rf"CheckpointError: .*could not be (saved|written) \(.*{re.escape(reason)}")
        else:
            yield from stopped(life)

    def most_lost(self, life: Life) -> int:
        return 0 if life.status == 143 else 3 * self.every


class KillInSave(DiskFault):
    name = "SIGKILL within a save"

    def code(self, draw: random.Random) -> int | None:
        return None

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        self.struck = bool(life.notes("strike"))
        if self.struck and life.status != -signal.SIGKILL:
            yield f"expected exit status -9, found {life.status}"
        elif not self.struck:
            yield from stopped(life)


class DiskFull(Fault):
    """The small file system of the checkpoints has room for a few pages: the kernel says so."""

    name, goes_on = "full disk", False

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        self.num_pages = draw.randint(0, 12)
        if self.goes_on:
            self.plan.checkpoint["on_save_error"] = "warn"  # type: ignore[index]  # made just before

    def during(self, life: Life, run: "Run") -> None:
        life.wait(lambda: bool(life.steps))
        run.fill(self.num_pages)
        life.wait()
        run.empty()

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        self.struck = os.strerror(errno.ENOSPC) in life.stderr
        if self.struck and not self.goes_on:
            yield from failed(life, r"CheckpointError: .*No space left on device")
        else:
            yield from stopped(life)

    def most_lost(self, life: Life) -> int:
        return 0 if life.status == 143 else 3 * self.every


class DiskFullForAWhile(DiskFull):
    """The same in a run that goes on, warns, and saves again when there is room."""

    name, goes_on = "full disk, run goes on", True

    def during(self, life: Life, run: "Run") -> None:
        life.wait(lambda: bool(life.steps))
        run.fill(self.num_pages)
        life.wait(lambda: "No space left" in life.stderr or len(life.steps) > self.plan.limit - 2)
        run.empty()
        life.wait()

    def warns(self, text: str) -> bool:
        return "No space left on device" in text and "The run goes on" in text


class Damage(Fault):
    """The newest checkpoint is damaged before a life begins: an older one is taken, and the damaged one is named."""

    kind: str

    def before(self, run: "Run") -> None:
        if newest_intact(run.checkpoints()) is None:
            run.begin(self.plan).wait()
        found = newest_intact(run.checkpoints())
        self.struck = found is not None
        if found is not None:
            self.contents = damage(self.kind, found, self.draw)
            run.note_damage()

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        if self.struck and newest_intact(run.at_start) is None:
            yield from failed(life, rf"CheckpointError: .*all {len(run.at_start)} checkpoints are damaged")
            repair(self.contents)
            run.note_damage()
            return
        yield from stopped(life)
        for each in run.passed_over():
            if not any(str(each.damaged) in text or f"{each.path}:" in text for text in life.warnings):
                yield f"expected a warning that names {each.damaged}, found {life.warnings}"

    def most_lost(self, life: Life) -> int:
        return 10**9 if life.status == 1 else super().most_lost(life)
