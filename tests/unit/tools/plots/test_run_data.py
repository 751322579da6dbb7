"""Curves of logs, on common steps; groups of runs; scores of tasks: by numbers worked out by hand."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.tools.plots import run_data
from rltrainer.tools.plots.run_data import (
    Curve,
    curve,
    env_name,
    grouped,
    needed_curve,
    on_common_steps,
    run_scores,
    step_unit,
)
from rltrainer.tools.recipes.cookbook import write_recipe
from tests.unit.tools.plots.conftest import MakeRun, returns
from tests.unit.tools.refusals import refuses


def test_a_curve_has_the_last_finite_value_of_each_step(make_run: MakeRun) -> None:
    rows = [(0, 1.0), (10, np.nan), (10, 2.0), (10, 3.0), (20, np.inf), (5, 7.0), (30, 1e308)]
    found = curve(make_run({"mine": [(step, {"depth": value}) for step, value in rows]}), "mine/depth")
    assert found is not None
    assert found.step.tolist() == [0, 5, 10]
    assert found.value.tolist() == [1, 7, 3]


def test_there_is_no_curve_of_what_is_not_logged(make_run: MakeRun) -> None:
    run = make_run({"test": [(0, {"score": 1.0, "return": np.nan})]})
    assert curve(run, "test/return") is None
    assert curve(run, "update/loss") is None
    text = (
        r"learning_curves.value: must be a number in the log of .*, one of test/score, test/return; got 'test/retrun'"
    )
    refuses(ParamsError, text, needed_curve, "learning_curves", run, "test/retrun")
    with pytest.raises(ParamsError, match="one of none, as it is empty; got"):
        needed_curve("learning_curves", make_run({}), "test/return")


def test_common_steps_are_those_that_all_runs_know() -> None:
    first = Curve(np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 0.0]))
    second = Curve(np.array([5.0, 15.0, 30.0]), np.array([1.0, 3.0, 6.0]))
    # From 5, where the second begins, to 20, where the first ends. The first at 5: halfway from 0 to 10; the second
    # at 20: a third of the way from 3 to 6.
    steps, values = on_common_steps([first, second])
    assert steps.tolist() == [5, 10, 15, 20]
    assert values.tolist() == [[5, 1], [10, 2], [5, 3], [0, 4]]


def test_runs_without_a_common_step_have_no_points() -> None:
    steps, values = on_common_steps(
        [Curve(np.array([0.0, 1.0]), np.zeros(2)), Curve(np.array([2.0, 3.0]), np.zeros(2))]
    )
    assert (steps.shape, values.shape) == ((0,), (0, 2))


def test_long_curves_have_fewer_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_data, "MAX_POINTS", 3)
    steps, _ = on_common_steps([Curve(np.arange(101.0), np.zeros(101))])
    assert steps.tolist() == [0, 50, 100]


def test_runs_are_grouped_by_algorithm_and_params_but_not_by_seed(make_run: MakeRun) -> None:
    runs = [
        make_run({}, lr=0.1, trainer={"seed": 1, "max_epochs": 3}),
        make_run({}, lr=0.1, trainer={"seed": 2, "max_epochs": 3}),
        make_run({}, lr=0.2, trainer={"seed": 1, "max_epochs": 3}),
        make_run({}, algorithm="A2C", lr=0.1),
    ]
    groups = grouped("learning_curves", runs)
    assert {name: [run.name for run in of_name] for name, of_name in groups.items()} == {
        "PPO, lr 0.1": ["run", "run-2"],
        "PPO, lr 0.2": ["run-3"],
        "A2C": ["run-4"],
    }


def test_runs_of_recipes_are_grouped_by_env_too(make_run: MakeRun) -> None:
    runs = [make_run({}), make_run({}), make_run({})]
    for run, env in zip(runs, ("CartPole-v1", "CartPole-v1", "Acrobot-v1"), strict=True):
        write_recipe(dataclasses.replace(rl.recipes.get("ppo", "CartPole-v1"), env=env), run.folder)
    groups = grouped("learning_curves", runs)
    assert {name: len(of_name) for name, of_name in groups.items()} == {
        "PPO, env CartPole-v1": 2,
        "PPO, env Acrobot-v1": 1,
    }
    assert env_name(make_run({})) is None


def test_groups_may_be_named_and_runs_opened_by_their_folder(make_run: MakeRun) -> None:
    first, second = make_run({}), make_run({}, lr=1.0)
    groups = grouped("learning_curves", {"mine": [str(first.folder.path), second], "one": first.folder.path})
    assert {name: [run.name for run in of_name] for name, of_name in groups.items()} == {
        "mine": ["run", "run-2"],
        "one": ["run"],
    }
    assert list(grouped("learning_curves", first.folder.path)) == ["PPO"]


def test_a_folder_of_before_the_class_was_written_has_the_params_name(make_run: MakeRun) -> None:
    told = make_run({}).told
    run = rl.Run(rl.RunFolder(Path("old")), {name: value for name, value in told.items() if name != "algorithm_class"})
    assert list(grouped("learning_curves", [run])) == ["PPO"]
    assert list(grouped("learning_curves", [rl.Run(rl.RunFolder(Path("old")), {})])) == ["old"]


@pytest.mark.parametrize("runs", [[], {}, {"PPO": []}])
def test_no_runs_are_refused(runs: run_data.Runs) -> None:
    with pytest.raises(ParamsError, match="learning_curves.runs: must be runs or their folders, or lists of them by"):
        grouped("learning_curves", runs)


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    refuses(CheckpointError, "expected the folder of a run", grouped, "learning_curves", [tmp_path / "nothing"])


def test_the_unit_of_steps(make_run: MakeRun) -> None:
    assert step_unit(make_run({})) == "env steps"
    run = make_run({})
    offline = {"trainer": {"params": "OfflineTrainerParams", "fields": {"buffer": {"live": "ReplayBuffer"}}}}
    assert step_unit(rl.Run(run.folder, offline)) == "gradient steps"
    assert step_unit(rl.Run(run.folder, {})) == "env steps"


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
    with pytest.raises(ParamsError, match="run_scores.ranges: must have two different scores for 'b', those that beco"):
        run_scores({"a": [run], "b": [run]}, {"a": (0.0, 1.0)})
    with pytest.raises(ParamsError, match="run_scores.value: must be a number in the log of"):
        run_scores({"a": [run]}, value="test/success")
