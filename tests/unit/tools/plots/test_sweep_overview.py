"""The picture of a sweep, asked of Matplotlib's own objects."""

from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.tools.plots import sweep


def trial(number: int, score: float | None, state: Any = "complete", **fields: Any) -> rl.SweepTrial:
    return rl.SweepTrial(number, state, fields, score, {}, {})


TRIALS = (
    trial(0, 10.0, lr=1e-4, batch_size=32, hidden_sizes=(64, 64)),
    trial(1, 30.0, lr=1e-2, batch_size=64, hidden_sizes=(256,)),
    trial(2, 20.0, lr=1e-3, batch_size=64, hidden_sizes=(256,)),
    trial(3, 5.0, "pruned", lr=5e-3, batch_size=32, hidden_sizes=(64, 64)),
    trial(4, None, "failed", lr=5e-3, batch_size=32, hidden_sizes=(64, 64)),
)


def test_scores_stand_over_trials_and_over_each_field(tmp_path: Path) -> None:
    figure = sweep(rl.SweepResult(tmp_path / "mine", TRIALS))
    figure.savefig(tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    by_number, lr, batch_size, hidden_sizes = figure.axes
    assert figure.get_suptitle() == "mine"
    complete, pruned, best = by_number.lines
    assert complete.get_xydata().tolist() == [[0, 10], [1, 30], [2, 20]]
    assert (pruned.get_xydata().tolist(), pruned.get_marker()) == ([[3, 5]], "x")
    assert best.get_xydata().tolist() == [[0, 10], [1, 30], [2, 30]]
    assert [text.get_text() for text in by_number.get_legend().get_texts()] == ["complete", "pruned", "best so far"]
    assert (lr.get_xlabel(), lr.get_xscale(), lr.lines[0].get_xdata().tolist()) == ("lr", "log", [1e-4, 1e-2, 1e-3])
    assert (batch_size.get_xscale(), batch_size.lines[1].get_xydata().tolist()) == ("linear", [[32, 5]])
    assert [text.get_text() for text in hidden_sizes.get_xticklabels()] == ["(256,)", "(64, 64)"]
    assert hidden_sizes.lines[0].get_xydata().tolist() == [[1, 10], [0, 30], [0, 20]]
    assert {axes.get_ylabel() for axes in figure.axes} == {"score"}


def test_few_numbers_stand_side_by_side(tmp_path: Path) -> None:
    trials = tuple(trial(number, float(number), batch_size=[256, 32, 64][number % 3]) for number in range(6))
    axes = sweep(rl.SweepResult(tmp_path, trials)).axes[1]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["32", "64", "256"]
    assert axes.lines[0].get_xdata().tolist() == [2, 0, 1, 2, 0, 1]


def test_trials_may_have_other_fields_and_none_may_be_complete(tmp_path: Path) -> None:
    few = (trial(0, 1.0, "pruned", a=1.0), trial(1, 2.0, "pruned", b=True))
    figure = sweep(rl.SweepResult(tmp_path, few))
    figure.savefig(tmp_path / "sweep.png")
    assert [axes.get_xlabel() for axes in figure.axes] == ["trial", "a", "b"]
    with pytest.raises(ParamsError, match=r"^sweep.result: must have a trial with a score; got "):
        sweep(rl.SweepResult(tmp_path, TRIALS[4:]))
