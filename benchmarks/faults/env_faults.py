"""Faults of envs, of their processes, and of hooks."""

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.faults.fault import ASYNC, BATCHED, IN_PROCESS, WORKERS, Fault, failed, stopped
from benchmarks.faults.legs import MAX_RESTARTS, STEP_TIMEOUT, EnvTrouble
from benchmarks.faults.process import Life, processes_of

if TYPE_CHECKING:
    from benchmarks.faults.conductor import Run

DEAD = r"WorkerLostError: (envs? [\d, ]+|worker \d) \(pid \d+\) (was|were) killed by SIGKILL during "
WITH_ENVS = (*IN_PROCESS, ASYNC, BATCHED)
WITH_PROCESSES = (WORKERS[0], ASYNC, BATCHED)


class EnvFault(Fault):
    """A fault within an env: of training, or of the tests.

    Attributes:
        promise: how the life ends: a pattern, with the number of the env and a worker that tells of it.
    """

    trouble: str
    promise: str

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        self.env = draw.randrange(4)
        is_of_test = leg == "offline" or (self.trouble not in ("kill", "hang") and draw.random() < 0.2)
        self.env %= 2 if is_of_test or leg == ASYNC else 4  # each asynchronous worker has the first two
        self.worker = r"worker \d \(pid \d+\), during .*: " if leg == ASYNC and not is_of_test else ""
        trouble = EnvTrouble(self.trouble, self.env, draw.randint(1, 18))
        self.plan = replace(self.plan, **{"test_trouble" if is_of_test else "trouble": trouble})
        self.shared = trouble

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        self.struck = self.shared.num_strikes > 0
        yield from failed(life, self.promise.format(env=self.env, worker=self.worker)) if self.struck else stopped(life)


class EnvRaises(EnvFault):
    name, trouble, legs = "env raises", "exception", WITH_ENVS
    promise = "EnvError: {worker}env {env} failed during .*: ValueError: the wheel is off"


class WorkerDies(EnvFault):
    name, trouble, legs = "worker killed in a step", "kill", WITH_PROCESSES
    promise = DEAD

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        if leg not in (ASYNC, BATCHED):  # whose processes have several envs, and tell in which it was
            self.promise = DEAD + r".*, in env {env}$"


class EnvHangs(EnvFault):
    name, trouble, legs = "env hangs", "hang", WITH_PROCESSES

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        who = r"worker \d" if leg == ASYNC else "env {env}"
        self.promise = rf"WorkerLostError: {who} \(pid \d+\) hung: .* longer than step_timeout={STEP_TIMEOUT} seconds"
        if leg == BATCHED:  # the other envs go on meanwhile
            self.plan = replace(self.plan, limit=100)

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        if self.leg == BATCHED and life.status in (143, 0):  # nobody had waited for it for so long
            yield from stopped(life)
        else:
            yield from super().after(life, run)


class RewardIsNaN(EnvFault):
    name, trouble, legs = "NaN reward", "NaN reward", WITH_ENVS
    promise = r"NonFiniteError: {worker}env {env}, step \d+: reward = nan"


class ObservationIsNaN(EnvFault):
    name, trouble, legs = "NaN observation", "NaN observation", WITH_ENVS
    promise = r"NonFiniteError: {worker}env {env}, step \d+: obs = nan"


class HookRaises(Fault):
    name = "hook raises"

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        self.plan = replace(self.plan, hook_at=draw.randint(1, 4))

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        self.struck = not life.notes("done")
        yield from failed(life, "RuntimeError: the hook is tired$") if self.struck else stopped(life)


class WorkerIsKilled(Fault):
    """A worker is killed from outside, at any time."""

    name, legs = "worker killed from outside", WITH_PROCESSES

    def during(self, life: Life, run: "Run") -> None:
        life.wait(lambda: bool(life.steps))
        life.sleep(self.delay)
        workers = [pid for pid in processes_of(life.pid) if pid != life.pid]
        self.struck = not life.is_over and bool(workers) and not life.notes("stop")
        if self.struck:
            os.kill(self.draw.choice(sorted(workers)), signal.SIGKILL)
        life.wait()

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        if self.struck and life.status == 1:
            yield from failed(life, DEAD)
        else:  # it died when nobody needed it any more
            self.struck = False
            yield from stopped(life)


class Restart(Fault):
    """Envs that fail and begin anew, once or twice in a life."""

    name, legs = "env restarted", WORKERS[1:]

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        kind = draw.choice(["exception", "kill", "exception", "kill", "hang"])
        self.shared = EnvTrouble(kind, draw.randrange(4), draw.randint(1, 20), draw.randint(1, MAX_RESTARTS))
        self.plan = replace(self.plan, trouble=self.shared)

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        self.struck = self.shared.num_strikes > 0
        yield from stopped(life)
        told = [int(words[-1]) for kind in ("stop", "done") for words in life.notes(kind)]
        if life.notes("stop") and told != [self.shared.num_strikes]:
            yield f"expected {self.shared.num_strikes} restarts, found {told}"
        for number in range(1, self.shared.num_strikes + 1):
            if f"restart {number} of {MAX_RESTARTS}: env" not in life.stderr:
                yield f"expected that restart {number} is told"


class CrashLoop(Restart):
    """An env that fails too often."""

    name = "crash loop"

    def __init__(self, draw: random.Random, leg: str) -> None:
        super().__init__(draw, leg)
        kind = draw.choice(["exception", "kill"])
        self.shared = EnvTrouble(kind, draw.randrange(4), draw.randint(1, 10), 100)
        self.plan = replace(self.plan, trouble=self.shared)

    def after(self, life: Life, run: "Run") -> Iterator[str]:
        self.struck = self.shared.num_strikes > MAX_RESTARTS
        pattern = rf"\(after {MAX_RESTARTS} restarts; max_restarts={MAX_RESTARTS}\)$"
        yield from failed(life, pattern) if self.struck else stopped(life)
