"""Signals to a run, and another process that takes it up too."""

import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.faults.checkpoints import names_in
from benchmarks.faults.fault import Fault, failed, is_at_its_end
from benchmarks.faults.process import ENDS, TOO_LONG, Life

if TYPE_CHECKING:
    from benchmarks.faults.conductor import Run


class Signal(Fault):
    """Signals to the process, or to all of its session as a terminal sends them."""

    numbers: tuple[int, ...]

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        self.to_all, self.early = draw.random() < 0.5, draw.random() < 0.15
        self.pause = draw.choice([0.0, draw.uniform(0.0, 0.03)])
        self.plan = replace(self.plan, limit=10**6)

    def during(self, life: Life, run: "Run") -> None:
        if not self.early:
            life.wait(lambda: bool(life.steps))
        life.sleep(self.delay)
        self.had_begun = life.has_begun
        for number in self.numbers:
            self.struck = life.signal(number, self.to_all)
            life.sleep(self.pause)
        life.wait()

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        expected = {status for number in self.numbers for status in ENDS[number]}
        if not self.had_begun or is_at_its_end(life, run):  # before or after `run`, where nobody handles signals
            expected |= {0} if life.notes("done") else set()
            expected |= {-number for number in self.numbers}
        if len(self.numbers) > 1:  # the second may come when the program's own handler is back
            expected |= {-number for number in self.numbers}
        if life.status not in expected:
            yield f"expected exit status {sorted(expected)}, found {life.status}: {life.error!r}"

    def most_lost(self, life: Life) -> int:
        is_saved = len(self.numbers) == 1 and life.status in ENDS[self.numbers[0]] and self.had_begun
        return 0 if is_saved or life.status == 0 else 2 * self.every


class Terminate(Signal):
    name, numbers = "SIGTERM", (signal.SIGTERM,)


class Interrupt(Signal):
    name, numbers = "SIGINT", (signal.SIGINT,)


class TwoTerminates(Signal):
    name, numbers = "SIGTERM twice", (signal.SIGTERM, signal.SIGTERM)


class TwoInterrupts(Signal):
    name, numbers = "SIGINT twice", (signal.SIGINT, signal.SIGINT)


class Kill(Signal):
    name, numbers = "SIGKILL of the run", (signal.SIGKILL,)

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        self.struck = self.struck and life.status != 0
        if life.status not in (-signal.SIGKILL, 0):
            yield f"expected exit status -9, found {life.status}: {life.error!r}"

    def most_lost(self, life: Life) -> int:
        return 2 * self.every


class SaveNow(Signal):
    """Nothing is due, and a checkpoint appears; the run goes on, until it is killed."""

    name, numbers, every = "SIGUSR1", (signal.SIGUSR1,), 10**6

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        self.plan.checkpoint["keep_best"] = 0  # type: ignore[index]  # made just before
        self.saved_at, self.problems = 0, []

    def during(self, life: Life, run: "Run") -> None:
        life.wait(lambda: len(life.steps) > 1)
        life.sleep(self.delay)
        before, steps = names_in(run.saved), life.steps
        self.struck = life.signal(signal.SIGUSR1, self.to_all)
        if life.wait(lambda: bool(names_in(run.saved) - before), 10.0):
            self.saved_at = steps[-1] - 1
            if not life.wait(lambda: life.steps[-1] > steps[-1] + 1 or bool(life.notes("done")), 10.0):
                self.problems.append("the run did not go on")
        elif life.status == TOO_LONG:
            self.problems.append("no checkpoint appeared")
        life.signal(signal.SIGKILL)
        life.wait()

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        yield from self.problems
        if life.status not in (-signal.SIGKILL, 0) and not is_at_its_end(life, run):
            yield f"expected exit status -9, found {life.status}: {life.error!r}"

    def most_lost(self, life: Life) -> int:
        return life.steps[-1] - self.saved_at if self.saved_at else 10**9


class SecondProcess(Fault):
    """Another process begins the same run while this one trains: it is refused, and this one does not notice."""

    name = "second process"

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        self.plan = replace(self.plan, limit=10**6)
        self.problems: list[str] = []

    def during(self, life: Life, run: "Run") -> None:
        life.wait(lambda: bool(life.steps))
        other = run.begin(self.plan)
        run.watch(other)
        other.wait(lambda: life.is_over)
        self.struck = not life.is_over and not life.notes("done")
        if self.struck:
            self.problems += failed(other, rf"CheckpointError: .* is written by process {life.pid} on ")
        for each in (life, other):
            each.signal(signal.SIGTERM)
            each.wait()

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        yield from self.problems
        if life.status != (0 if life.notes("done") else 143) and not is_at_its_end(life, run):
            yield f"expected exit status 143, found {life.status}: {life.error!r}"
