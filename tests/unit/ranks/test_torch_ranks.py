"""Ranks in processes: the place that a launcher gives, every collective, and the failure of one."""

from functools import partial
from pathlib import Path

import pytest
import torch

from rltrainer.errors import ParamsError, RLTrainerError
from rltrainer.ranks.ranks import Alone
from rltrainer.ranks.torch_ranks import process_ranks, torchrun_place
from rltrainer.tools.runs.ranked import run_ranks
from tests.unit.ranks.rank_programs import describe, draw_in_runs, expected, fail_and_continue, set_variables


def test_the_place_is_that_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torchrun_place() is None
    set_variables(monkeypatch)
    assert torchrun_place() == (1, 4)


@pytest.mark.parametrize("changes", [{"WORLD_SIZE": None}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_one_process_is_alone(changes: dict[str, str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch, **changes)
    assert torchrun_place() is None
    ranks = process_ranks(is_exact=True)
    assert (type(ranks), ranks.rank, ranks.world, ranks.is_exact) == (Alone, 0, 1, True)


SET = r"must be set beside WORLD_SIZE \(4\); got None \(NoneType\)\. torchrun sets all of these; without it, unset"


@pytest.mark.parametrize(("changes", "text"), [
    ({"WORLD_SIZE": "two"}, r"environment\.WORLD_SIZE: must be an integer of at least 1; got 'two' \(str\)"),
    ({"WORLD_SIZE": "0"}, r"environment\.WORLD_SIZE: must be an integer of at least 1; got '0' \(str\)"),
    ({"RANK": "4"}, r"environment\.RANK: must be an integer in \[0, 4\); got '4' \(str\)\. torchrun sets it"),
    ({"RANK": "-1"}, r"environment\.RANK: must be an integer in \[0, 4\)"),
    ({"RANK": None}, rf"environment\.RANK: {SET}"),
    ({"MASTER_PORT": None}, rf"environment\.MASTER_PORT: {SET}"),
])  # fmt: skip
def test_variables_that_contradict_each_other_are_named(
    changes: dict[str, str | None], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(monkeypatch, **changes)
    with pytest.raises(ParamsError, match=text):
        torchrun_place()


def test_a_build_without_torch_distributed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch)
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(RLTrainerError, match=r"is built without torch\.distributed, which a run of 4 processes needs"):
        process_ranks()


@pytest.mark.full
def test_processes_agree_and_so_do_their_threads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ranks = run_ranks("test", 2, partial(describe, tmp_path))
    assert capfd.readouterr().out == "printed by 0\n"
    for rank, (found, place) in enumerate(ranks):
        assert place == ["1", 1, None, str(tmp_path / "run")]
        for plain in found[:2]:
            assert plain == expected(rank, 2)
        for lane, of_four in enumerate(found[2:]):
            assert of_four == expected(2 * rank + lane, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.full
def test_ranks_that_catch_the_failure_of_one_continue() -> None:
    first, second = run_ranks("test", 2, fail_and_continue)
    closed = [f"ValueError: number {i}" for i in range(2)]
    assert second == [closed[0], closed[0], closed[1], closed[1], 2]
    for i in range(2):
        error, later = first[2 * i : 2 * i + 2]
        assert error.startswith("RankLostError: rank 1 of 2: Traceback (most recent call last):\n")
        assert error.splitlines()[-1] == later == closed[i]
    assert first[-1] == 2


@pytest.mark.full
def test_ranks_have_global_random_streams_of_their_own_within_a_run(tmp_path: Path) -> None:
    (whole, cut, rest), (other, other_cut, other_rest) = run_ranks("test", 2, partial(draw_in_runs, tmp_path))
    assert len({number for draws in whole + other for number in draws}) == 5 * (2 * len(whole) - 1)
    assert whole[-1] == other[-1] == rest[-1] == other_rest[-1]
    assert [cut[:-1] + rest, other_cut[:-1] + other_rest] == [whole, other]
