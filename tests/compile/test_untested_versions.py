"""Compiled loops with a version of torch that was not tested: what is said, compared, agreed on and kept."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.execution import cpu_loop, execution
from rltrainer.execution.cpu_loop import CompiledLoop
from rltrainer.nets.normalizer import warn_once
from rltrainer.ranks.ranks import Ranks
from tests.compile.test_compiled_updates import COMPILED, make, update
from tests.fakes import run_in_threads
from tests.resume.runs import build

OTHER_NUMBERS, NOT_MADE = "gave other numbers", "could not be made"


@pytest.fixture(autouse=True)
def _untested(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("torch.compile", lambda function, **_: function)  # what runs is the same, and there at once
    monkeypatch.setattr(cpu_loop, "LOOPS_TESTED", ("0.4.", "0.5."))
    monkeypatch.setattr(cpu_loop, "TESTED", ("0.4.", "0.5."))
    warn_once.cache_clear()
    yield
    warn_once.cache_clear()


class Loop(CompiledLoop):
    """Is what it should be, but for `fault`; notes the numbers of steps."""

    fault: str | None = None
    taken: list[int]

    def __call__(self, state: str, num_steps: int, *args: Any) -> Any:
        self.taken.append(num_steps)
        fault, sums = self.fault, None if self.fault == NOT_MADE else super().__call__(state, num_steps, *args)
        return {name: x + 1e-5 * x.abs() for name, x in sums.items()} if sums and fault else sums


def with_loop(monkeypatch: pytest.MonkeyPatch, fault: str | None) -> list[int]:
    taken: list[int] = []
    monkeypatch.setattr(execution, "CompiledLoop", type("Loop", (Loop,), {"fault": fault, "taken": taken}))
    return taken


def trained(loop: Any = "auto") -> Any:
    trainer = build("ppo")
    return type(trainer)(
        trainer.algorithm, dataclasses.replace(trainer.params, runtime=rl.RuntimeParams(compile=True, loop=loop))
    )


@pytest.mark.parametrize("fault", [None, OTHER_NUMBERS, NOT_MADE])
def test_a_loop_is_taken_if_it_equals_its_steps(
    fault: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    expected, untested, resumed = trained(loop=fault is None), trained(), trained()
    expected.run()
    taken = with_loop(monkeypatch, fault)
    untested.execute_epoch()
    assert taken[0] == execution.COMPARED_STEPS
    assert len(taken) == 1 or fault is None  # the comparison only
    untested.save(tmp_path / "checkpoint")
    taken.clear()
    resumed.restore(tmp_path / "checkpoint")
    assert resumed.state.runtime.loop is (fault is None)
    resumed.run()
    assert bool(taken) == (fault is None)
    assert execution.COMPARED_STEPS not in taken
    found, right = (each.algorithm.policy.state_dict() for each in (resumed, expected))
    assert all(map(torch.equal, found.values(), right.values()))
    of_ours = [each for each in caplog.records if (each.name, each.levelname) == ("rltrainer", "WARNING")]
    warned, *others = [each.message for each in of_ours]
    assert warned.startswith(f"rltrainer was not tested with torch {torch.__version__}, so compiled runs may be slower")
    start = f"torch {torch.__version__}: the steps of an update run one by one, as a compiled loop of them"
    assert others == [] if fault is None else [f"{start} {fault}"]


def test_versions_that_were_tested_without_loops_try_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_loop, "TESTED", (torch.__version__,))
    algorithm = make("ppo")
    algorithm.attach(COMPILED)
    assert not algorithm._execution.can_loop
    algorithm.attach(dataclasses.replace(COMPILED, runtime=rl.RuntimeParams(compile=True, loop=True)))
    assert algorithm._execution.can_loop


@pytest.mark.parametrize("fault", [OTHER_NUMBERS, NOT_MADE])
def test_no_rank_takes_a_loop_that_another_cannot_take(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = with_loop(monkeypatch, None)
    pair = [make("ppo") for _ in range(2)]

    def on_rank(ranks: Ranks) -> Any:
        algorithm = pair[ranks.rank]
        algorithm.attach(dataclasses.replace(COMPILED, ranks=ranks))
        update(algorithm, ranks.rank)
        return algorithm.plan.runtime.loop

    made = execution.CompiledLoop
    faults = iter([fault, None])
    monkeypatch.setattr(execution, "CompiledLoop", lambda *a, **b: _with_fault(made(*a, **b), next(faults)))
    assert run_in_threads([on_rank, on_rank]) == [False, False]
    assert taken == [4, 4]


def _with_fault(loop: Any, fault: str | None) -> Any:
    loop.fault = fault
    return loop
