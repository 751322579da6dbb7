"""Conducts a run through its faults: one life after the other, each looked at when it is over."""

import contextlib
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.faults.checkpoints import Checkpoint, checkpoints_in, newest_intact, strangers_in
from benchmarks.faults.fault import Fault
from benchmarks.faults.legs import INEXACT
from benchmarks.faults.life import Plan
from benchmarks.faults.process import Life, processes_of

GRACE = 10.0
"""Seconds in which the workers of a killed run must end."""
AS_PROMISED, TOO_LATE, BROKEN = "as promised", "too late", "NOT as promised"


@dataclass
class Tally:
    """What has happened on a leg.

    Attributes:
        outcomes: by kind of fault and outcome.
        problems: what was not as promised, with the files of that run.
        lives, steps: of all runs; training steps.
        finished, equal: runs that came to their end, and those of them that are an undisturbed run bit for bit.
        length: training steps of an undisturbed run.
        seconds: on this leg.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    lives: int = 0
    steps: int = 0
    finished: int = 0
    equal: int = 0
    length: int = 0
    seconds: float = 0.0

    def tell(self, where: str, problems: Iterable[str]) -> None:
        """Keep problems for the report, and print them as they come."""
        for problem in problems:
            self.problems.append(f"{where}, {problem}")
            print(self.problems[-1], file=sys.stderr, flush=True)


class Run:
    """A run on its way to its end.

    Args:
        leg: a key of `LEGS`.
        folder: for logs and journals.
        saved: for checkpoints; a small file system of its own if it can be full.
        max_epochs: of the run.
        way: what an undisturbed run notes at each of its training steps, and at its end; empty if this is that one.
        tally: what is counted.
    """

    def __init__(
        self, leg: str, folder: Path, saved: Path, max_epochs: int, way: dict[int, list[str]], tally: Tally
    ) -> None:
        self.leg, self.folder, self.saved, self.max_epochs = leg, folder, saved, max_epochs
        self.way, self.tally, self.is_exact = way, tally, bool(way) and leg not in INEXACT
        self.is_over = False
        self.at_start: list[Checkpoint] = []
        self.known: dict[tuple[Path, int], bytes] = {}  # by file and what number its folder has: names come again
        self.num_lives = 0
        self.watched: list[tuple[int, float]] = []
        folder.mkdir(parents=True)
        saved.mkdir(parents=True)

    def begin(self, plan: Plan) -> Life:
        """Start a life."""
        self.num_lives += 1
        journal, errors = (self.folder / f"{kind}-{self.num_lives}" for kind in ("journal", "stderr"))
        live = partial(plan.live, self.folder, self.saved, journal, errors, self.max_epochs)
        return Life(live, journal, errors, plan.longest).start()

    def play(self, fault: Fault) -> list[str]:
        """Make a fault in one life; return what was not as promised."""
        fault.before(self)
        self.at_start = self.checkpoints()
        life = self.begin(fault.plan)
        fault.during(life, self)
        self.watch(life)
        problems = [*fault.after(life, self), *self._problems(life, fault)]
        self.tally.lives += 1
        self.tally.steps += len(life.steps)
        self.is_over = bool(life.notes("done"))
        self._remove_unreadable()
        self._remember()
        return [f"life {self.num_lives}: {problem}" for problem in problems]

    def checkpoints(self) -> list[Checkpoint]:
        return checkpoints_in(self.saved)

    def passed_over(self) -> list[Checkpoint]:
        """Return the damaged checkpoints that a life had to name."""
        newest = newest_intact(self.at_start)
        serial = -1 if newest is None else newest.serial
        return [each for each in self.at_start if each.damaged and (each.manifest is None or each.serial > serial)]

    def note_damage(self) -> None:
        """Expect checkpoints to be as they are now."""
        self.known = {}
        self._remember()

    def fill(self, num_pages: int) -> None:
        """Leave so many pages of the small file system."""
        with contextlib.suppress(OSError), open(self.saved.parent / "filler", "wb", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
        filler = self.saved.parent / "filler"
        os.truncate(filler, max(filler.stat().st_size - 4096 * num_pages, 0))

    def empty(self) -> None:
        """Give the room back."""
        (self.saved.parent / "filler").unlink()

    def watch(self, life: Life) -> None:
        """Look later whether any process of a life is left."""
        self.watched.append((life.pid, time.monotonic() + GRACE))

    def orphans(self, waits: bool = False) -> Iterator[str]:
        """Yield which processes are there though their life is over for some time."""
        while self.watched:
            self.watched = [(session, deadline) for session, deadline in self.watched if processes_of(session)]
            for session, deadline in self.watched:
                if time.monotonic() > deadline:
                    yield f"processes {processes_of(session)} of a life that is over are still there"
                    self.watched.remove((session, deadline))
            if not waits:
                return
            time.sleep(0.1)

    def _problems(self, life: Life, fault: Fault) -> Iterator[str]:
        """Yield what no life may do, whatever ended it."""
        yield from self.orphans()
        if "Timeout (0:" in life.stderr:
            yield f"the life did not end: {life.stderr[-3000:]}"
        if "Exception ignored" in life.stderr and "twice" not in fault.name:
            yield f"an exception had nowhere to go: {life.stderr[-1000:]}"
        # A second signal may come while the interpreter ends, to whom a traceback is all that is left to say.
        is_late = "twice" in fault.name
        if "Traceback" in life.stderr and life.status in (143, 0) and "restarts" not in self.leg and not is_late:
            yield f"a traceback of nothing that ended the run: {life.stderr[-3000:]}"
        yield from self._way_problems(life, fault)
        yield from self._saved_problems(life, fault)
        named = [str(path) for each in self.passed_over() for path in (each.path, each.damaged)]
        for text in life.warnings:
            if not fault.warns(text) and not any(name in text for name in named):
                yield f"a warning that nothing explains: {text}"

    def _way_problems(self, life: Life, fault: Fault) -> Iterator[str]:
        """Yield where a life left the way of the undisturbed run, or did not begin where it had to."""
        steps = life.notes("step")
        newest = newest_intact(self.at_start)
        if steps and newest is not None and int(steps[0][1]) != newest.step:
            yield f"{newest.path.name} is the newest that is whole, but the run went on from step {steps[0][1]}"
        if steps and newest is None and int(steps[0][0]) != 1:
            yield f"there was no checkpoint, and the run began with training step {steps[0][0]}"
        for step in steps:
            if self.is_exact and self.way.get(int(step[0])) != step[1:]:
                yield f"training step {step[0]} is not that of the undisturbed run"
                return
        for end in life.notes("done"):
            self.tally.finished += 1
            if end[3:] != ["0"]:
                yield f"{end[3:]} transitions in the buffer are not what the env does"
            is_equal = self.is_exact and self.way[0] == end[:2]
            self.tally.equal += is_equal
            if self.is_exact and not is_equal:
                yield f"the end is not that of the undisturbed run: {end[:2]}, not {self.way[0]}"

    def _saved_problems(self, life: Life, fault: Fault) -> Iterator[str]:
        """Yield what is wrong with the checkpoints that a life left."""
        if fault.plan.checkpoint is None:
            return
        found = self.checkpoints()
        damaged = {each.path for each in self.at_start if each.damaged}
        for each in found:
            if each.damaged and each.path not in damaged:
                yield f"{each.damaged} is damaged, and nobody has damaged it"
        for (file, folder), content in self.known.items():
            if file.exists() and file.parent.stat().st_ino == folder and file.read_bytes() != content:
                yield f"{file} was changed after it was written"
        was_killed = life.status is not None and life.status < 0
        if life.has_begun and not was_killed and (strangers := strangers_in(self.saved)):
            yield f"{strangers} were left behind"
        most = 4 + len(damaged) if life.status in (143, 0) else len(self.at_start) + 2  # a failed save removes none
        if len(found) > max(most, 4 + len(damaged)):
            yield f"{len(found)} checkpoints, of which the newest 3 and the best were to stay"
        if not life.steps:
            return
        newest = newest_intact(found)
        last, reached = life.steps[-1], self._reached(newest)
        lost = last - reached
        if lost > fault.most_lost(life) and not life.notes("done"):
            yield f"{lost} training steps are lost, expected at most {fault.most_lost(life)}"

    def _reached(self, newest: Checkpoint | None) -> int:
        """Return the training step after which a checkpoint was saved."""
        if newest is None:
            return 0
        after = [step for step, notes in self.way.items() if step and int(notes[0]) == newest.step]
        return after[0] - 1 if after else max(self.way)

    def _remove_unreadable(self) -> None:
        """Remove checkpoints that were named as damaged, as a user would: they are named in each life that follows."""
        named = {each.path for each in self.at_start if each.manifest is None}
        for each in self.checkpoints():
            if each.manifest is None and each.path in named:
                shutil.rmtree(each.path)

    def _remember(self) -> None:
        """Remember what the files hold that must not change any more."""
        for each in self.checkpoints():
            for file in (*each.files, each.path / "manifest.json"):
                if file.is_file():
                    self.known.setdefault((file, file.parent.stat().st_ino), file.read_bytes())
        self.known = {key: content for key, content in self.known.items() if key[0].exists()}


def way_of(leg: str, folder: Path, max_epochs: int) -> dict[int, list[str]]:
    """Return what an undisturbed run that saves nothing notes: at each training step, and as step 0 at its end."""
    tally = Tally()
    run = Run(leg, folder, folder / "saved", max_epochs, {}, tally)
    calm = Fault(random.Random(0), leg)
    calm.plan = Plan(leg, checkpoint=None, limit=10**9, longest=900)
    if problems := run.play(calm):
        raise RuntimeError(f"{leg}: the undisturbed run: {problems}")
    life_notes = (folder / "journal-1").read_text().splitlines()
    way = {int(words[1]): words[2:] for line in life_notes if (words := line.split())[0] == "step"}
    done = next(words for line in life_notes if (words := line.split())[0] == "done")
    return way | {0: done[1:3]}
