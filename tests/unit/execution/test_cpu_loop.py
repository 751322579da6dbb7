"""Loops of compiled code: every step once and in order, and what they leave alone where they cannot be compiled."""

import logging
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

import rltrainer as rl
from rltrainer.execution import cpu_loop
from rltrainer.execution.cpu_loop import CompiledLoop, CompiledRows, loops_are_tested

needs_loops = pytest.mark.skipif(not loops_are_tested(), reason="needs a version of torch whose loops were tested")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def append(index: Tensor, column: Tensor, count: Tensor, last: Tensor) -> dict[str, Tensor]:
    """Write 10 * count + index to a row, then count; a step that is left out or taken twice shows in later rows."""
    row = 10 * count + index
    column.index_copy_(0, index, row)
    count.add_(1)
    last.copy_(row.squeeze(0))
    return {"row": row.squeeze(0).float(), "one": torch.ones(())}


@needs_loops
@pytest.mark.full
def test_a_loop_takes_each_step_once_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("needs a C++ compiler")
    monkeypatch.setattr(cpu_loop, "STEPS_PER_CALL", 3)  # three calls, the last of one step
    column, count, last = torch.zeros(8, dtype=torch.int64), torch.tensor(0), torch.tensor(0)
    loop = CompiledLoop("a test", append)
    for begin in (0, 7):
        sums = loop("as ever", 7, column, count, last)
        rows = [10 * (begin + k) + k for k in range(7)]
        assert column.tolist() == [*rows, 0]
        assert (int(count), int(last)) == (begin + 7, rows[-1])
        assert sums is not None
        assert {name: float(x) for name, x in sums.items()} == {"row": sum(rows), "one": 7.0}


def interrupted(index: Tensor, column: Tensor) -> dict[str, Tensor]:
    column.index_fill_(0, index, 1.0)
    print("a step", end="")
    return {}


@needs_loops
def test_a_loop_that_cannot_be_compiled_does_nothing(caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    column, loop = torch.zeros(4), CompiledLoop("a test", interrupted)
    with caplog.at_level(logging.INFO, "rltrainer"):
        assert [loop("as ever", 4, column) for _ in range(2)] == [None, None]
    assert column.tolist() == [0.0] * 4
    assert not capsys.readouterr().out
    [record] = caplog.records
    assert record.getMessage().startswith("a test runs step by step instead of as one compiled loop: ")


def counting(index: Tensor, column: Tensor, calls: list[int]) -> dict[str, Tensor]:
    calls[0] += 1
    column.index_fill_(0, index, float(calls[0]))
    return {}


@needs_loops
def test_a_step_that_changes_an_object_of_pythons_is_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    column, calls = torch.zeros(4), [0]
    with caplog.at_level(logging.INFO, "rltrainer"):
        assert CompiledLoop("a test", counting)("as ever", 4, column, calls) is None
    assert (column.tolist(), calls) == ([0.0] * 4, [0])
    assert caplog.records[0].getMessage().endswith(" is changed")


@needs_loops
def test_a_loop_takes_all_steps_where_the_compiler_is_switched_off() -> None:
    column, count, last = torch.zeros(3, dtype=torch.int64), torch.tensor(0), torch.tensor(0)
    with torch.compiler.set_stance("force_eager"):
        sums = CompiledLoop("a test", append)("as ever", 3, column, count, last)
    assert column.tolist() == [0, 11, 22]
    assert sums is not None
    assert {name: float(x) for name, x in sums.items()} == {"row": 33.0, "one": 3.0}


def test_there_is_no_loop_with_another_torch_or_more_steps_than_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    column = torch.zeros(4)
    assert CompiledLoop("a test", interrupted)("as ever", 2**15, column) is None
    monkeypatch.setattr(cpu_loop, "LOOPS_TESTED", "0.4.")
    assert CompiledLoop("a test", interrupted)("as ever", 4, column) is None
    assert column.tolist() == [0.0] * 4


def test_each_row_is_written_at_its_place_and_carries_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uncompiled(CompiledLoop):
        def __call__(self, state: str, num_steps: int, *args: Any) -> dict[str, Tensor]:
            return self.uncompiled(torch.tensor([0, num_steps]), *args)

    def add(carried: Any, x: Tensor, factor: float) -> tuple[Any, Any]:
        sums = carried["sum"] + x.cumsum(0)
        return {"sum": sums[-1]}, {"sum": sums * factor, "x": (x,)}

    monkeypatch.setattr(cpu_loop, "CompiledLoop", Uncompiled)
    rows, start = CompiledRows("a test", add), {"sum": torch.tensor(1.0)}
    for x, sums in (([1.0, 2.0, 4.0], [2.0, 4.0, 8.0]), ([5.0], [6.0])):
        found = rows("as ever", len(x), start, torch.tensor(x), (10.0,))
        assert found is not None
        assert found[0]["sum"] == sums[-1]
        assert found[1]["sum"].tolist() == [10 * each for each in sums]
        assert found[1]["x"][0].tolist() == x
        assert start["sum"] == 1.0


@pytest.mark.parametrize(("num_ended", "num_padded"), [(0, 2), (1, 2), (2, 2), (3, 32)])
def test_final_observations_of_one_number_stand_for_the_same_successors(num_ended: int, num_padded: int) -> None:
    envs = rl.make_vec("CartPole-v1", num_envs=4, backend="tensor", seed=1)
    collector = rl.Collector(rl.ActorCritic.for_envs(envs), envs)
    buffer = rl.RolloutBuffer(8, 4, envs.single_observation_space, envs.single_action_space)
    collector.attach_buffer(buffer)
    collector.collect(num_steps=32)
    rollout: Any = collector.rollout()
    for k, index in enumerate((3, 17, 30)[:num_ended]):  # in the first row, within, and in the last
        rollout.terminated.view(-1)[index] = True
        rollout.successor.view(32, -1)[index] = 100.0 + k
    rollout.final_index = rollout.terminated.flatten().nonzero().squeeze(1)
    rollout.final_obs = rollout.successor.view(32, -1)[rollout.final_index]
    padded = rollout.of_one_shape()
    assert padded.final_index.shape == (num_padded,)
    for each in (rollout, padded, padded.plain()):
        assert torch.equal(each.next_obs, rollout.successor)
        assert torch.equal(rl.Rollout.next_obs.fget(each), rollout.successor)  # type: ignore[attr-defined]
    assert torch.equal(padded.plain().ends, rollout.done)
    assert torch.equal(padded.plain().final_index, rollout.final_index)
