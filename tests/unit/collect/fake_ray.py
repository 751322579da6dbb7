"""A cluster of Ray without processes: actors live here, and work when somebody waits for a result of theirs."""

import copy
import pickle
import types
from collections.abc import Callable, Sequence
from typing import Any


class RayError(Exception):
    """As Ray raises where an actor or its result is gone."""


class FakeResult:
    def __init__(self, actor: "FakeActor", arguments: tuple[Any, ...]) -> None:
        self.actor, self.arguments, self.value = actor, arguments, None


class FakeActor:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.program, self.is_dead, self.hangs = make, None, False, False
        self.open: list[FakeResult] = []
        self.serve = types.SimpleNamespace(remote=self._serve)
        self.most_open = self.num_done = 0

    def _serve(self, *arguments: Any) -> FakeResult:
        self.open.append(FakeResult(self, arguments))
        self.most_open = max(self.most_open, len(self.open))
        return self.open[-1]

    def work(self) -> None:
        """Do the oldest call."""
        result = self.open.pop(0)
        self.num_done += 1
        calls, weights = result.arguments
        self.program = self.program or self.make()
        result.value = self.program.serve(calls, None if weights is None else pickle.loads(weights))


class FakeRay:
    """What `RayCollector` asks of the module `ray`."""

    def __init__(self) -> None:
        self.exceptions = types.SimpleNamespace(RayError=RayError)
        self.cloudpickle = types.SimpleNamespace(dumps=pickle.dumps)
        self.actors: list[FakeActor] = []
        self.options: list[dict[str, Any]] = []
        self.num_puts, self.dies_at_birth, self.is_there = 0, False, True

    def is_initialized(self) -> bool:
        return self.is_there

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    def put(self, value: Any) -> bytes:
        self.num_puts += 1
        return pickle.dumps(value)

    def remote(self, program: Any) -> Any:
        def start(*arguments: Any) -> FakeActor:
            actor = FakeActor(lambda: program(*copy.deepcopy(arguments)))
            actor.is_dead = self.dies_at_birth
            self.actors.append(actor)
            return actor

        def options(**given: Any) -> Any:
            self.options.append(given)
            return types.SimpleNamespace(remote=start)

        return types.SimpleNamespace(options=options)

    def kill(self, actor: FakeActor) -> None:
        actor.is_dead = True

    def wait(self, results: Sequence[FakeResult], num_returns: int = 1, timeout: float | None = None) -> Any:
        assert results
        assert len(set(results)) == len(results)
        done = []
        for result in sorted(results, key=lambda result: result.actor.num_done):  # all are equally fast
            while not result.actor.is_dead and not result.actor.hangs and result in result.actor.open:
                result.actor.work()
            if result.actor.is_dead or result.value is not None:
                done.append(result)
            if len(done) == num_returns:
                break
        return done, [each for each in results if each not in done]

    def get(self, result: FakeResult) -> Any:
        if result.actor.is_dead and result.value is None:
            raise RayError("the actor died")
        return result.value
