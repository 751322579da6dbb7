"""Curves of logs, on common steps; groups of runs; scores of tasks: by numbers worked out by hand."""

from pathlib import Path

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.tools.plots import run_data
from rltrainer.tools.plots.run_data import Curve, curve, grouped, on_common_steps, run_scores, step_unit
from tests.unit.tools.plots.conftest import MakeRun, returns
from tests.unit.tools.refusals import refuses


def test_a_curve_has_the_last_finite_value_of_each_step(make_run: MakeRun) -> None:
    rows = [(0, 1.0), (10, np.nan), (10, 2.0), (10, 3.0), (20, np.inf), (5, 7.0), (30, 1e308)]
    found = curve(make_run({"mine": [(step, {"depth": value}) for step, value in rows]}), "mine/depth")
    assert found is not None
    assert found.step.tolist() == [0, 5, 10]
    assert found.value.tolist() == [1, 7, 3]


def test_common_steps_are_those_that_all_runs_know(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Curve(np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 0.0]))
    second = Curve(np.array([5.0, 15.0, 30.0]), np.array([1.0, 3.0, 6.0]))
    # From 5, where the second begins, to 20, where the first ends. The first at 5: halfway from 0 to 10; the second
    # at 20: a third of the way from 3 to 6.
    steps, values = on_common_steps([first, second])
    assert steps.tolist() == [5, 10, 15, 20]
    assert values.tolist() == [[5, 1], [10, 2], [5, 3], [0, 4]]
    monkeypatch.setattr(run_data, "MAX_POINTS", 3)
    assert on_common_steps([Curve(np.arange(101.0), np.zeros(101))])[0].tolist() == [0, 50, 100]


def test_runs_are_grouped_by_algorithm_and_params_but_not_by_seed(make_run: MakeRun) -> None:
    runs = [
        make_run({}, lr=0.1, trainer={"seed": 1, "max_epochs": 3}),
        make_run({}, lr=0.1, trainer={"seed": 2, "max_epochs": 3}),
        make_run({}, lr=0.2, trainer={"seed": 1, "max_epochs": 3}),
        make_run({}, algorithm="A2C", lr=0.1),
    ]
    groups = grouped("learning_curves", [str(runs[0].folder.path), *runs[1:]])
    assert {name: [run.name for run in of_name] for name, of_name in groups.items()} == {
        "PPO, lr 0.1": ["run", "run-2"],
        "PPO, lr 0.2": ["run-3"],
        "A2C": ["run-4"],
    }


def test_what_a_run_was_told_names_its_group_and_its_steps(make_run: MakeRun) -> None:
    run, old = make_run({}), rl.RunFolder(Path("old"))
    assert step_unit(run) == "env steps"
    offline = {"trainer": {"params": "OfflineTrainerParams", "fields": {"buffer": {"live": "ReplayBuffer"}}}}
    assert step_unit(rl.Run(run.folder, offline)) == "gradient steps"
    assert step_unit(rl.Run(run.folder, {})) == "env steps"
    # A folder of before the class was written has the params' name.
    told = {name: value for name, value in run.params.items() if name != "algorithm_class"}
    assert list(grouped("learning_curves", [rl.Run(old, told)])) == ["PPO"]
    assert list(grouped("learning_curves", [rl.Run(old, {})])) == ["old"]


def test_scores_of_tasks(make_run: MakeRun) -> None:
    tasks = {
        "CartPole-v1": [make_run(returns(20.0, 260.0)), make_run(returns(500.0, 500.0))],
        "Pendulum-v1": [make_run(returns(-1200.0, -200.0)), make_run(returns(-1200.0, -1200.0, -700.0))],
    }
    # (260 - 20) / 480 and (500 - 20) / 480; (-200 + 1200) / 1000 and (-700 + 1200) / 1000: the last score counts.
    ranges = {"CartPole-v1": (20.0, 500.0), "Pendulum-v1": (-1200.0, -200.0)}
    assert run_scores(tasks, ranges).tolist() == [[0.5, 1.0], [1.0, 0.5]]
    assert run_scores(tasks).tolist() == [[260.0, -200.0], [500.0, -700.0]]


def test_scores_that_make_no_array_are_refused(make_run: MakeRun) -> None:
    run = make_run(returns(1.0))
    text = "run_scores.tasks: must have equally many runs of each task, one at least; g"
    refuses(ParamsError, text, run_scores, {"a": [run], "b": [run, run]})
    refuses(ParamsError, "run_scores.tasks: must have equally many", run_scores, {})
    text = "run_scores.ranges: must have two different scores for 'b', those that beco"
    refuses(ParamsError, text, run_scores, {"a": [run], "b": [run]}, {"a": (0.0, 1.0)})
    refuses(ParamsError, "run_scores.value: must be a number in the log of", run_scores, {"a": [run]}, value="test/x")
