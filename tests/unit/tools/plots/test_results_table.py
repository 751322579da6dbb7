"""Tables of results, with numbers that can be worked by hand."""

from pathlib import Path

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.tools.cli import main
from rltrainer.tools.recipes.cookbook import write_recipe
from tests.unit.tools.plots.conftest import MakeRun, returns
from tests.unit.tools.refusals import refuses


def test_a_row_for_each_env_and_algorithm(make_run: MakeRun) -> None:
    runs = []
    for env, algorithm, scores in (
        ("CartPole-v1", "PPO", (1.0, 2.0, 3.0)),
        ("CartPole-v1", "A2C", (400.0, 500.0)),
        ("Acrobot-v1", "PPO", (-100.0,)),
    ):
        for seed, score in enumerate(scores):
            runs.append(make_run(returns(9.0, score), algorithm=algorithm, trainer={"seed": seed}))
            write_recipe(rl.recipes.get("ppo", env), runs[-1].folder)
    # Of 1, 2 and 3, resamples are 1, 1, 1 with a probability of 1 in 27, which is more than 2.5 %.
    assert rl.plots.table(runs) == (
        "| env         | algorithm | runs | mean |   std | 95 % interval |\n"
        "| ----------- | --------- | ---: | ---: | ----: | ------------- |\n"
        "| CartPole-v1 | PPO       |    3 |    2 |     1 | 1 to 3        |\n"
        "| CartPole-v1 | A2C       |    2 |  450 | 70.71 | 400 to 500    |\n"
        "| Acrobot-v1  | PPO       |    1 | -100 |       |               |\n"
    )


def test_groups_keep_their_names_and_envs_their_rows(make_run: MakeRun) -> None:
    runs = [make_run(returns(score)) for score in (1.0, 2.0, 3.0)]
    write_recipe(rl.recipes.get("ppo", "CartPole-v1"), runs[0].folder)
    assert rl.plots.table({"a|b\nc": runs}, confidence=0.4).splitlines() == [
        "| env         | algorithm | runs | mean |    std | 40 % interval |",
        "| ----------- | --------- | ---: | ---: | -----: | ------------- |",
        "| CartPole-v1 | a\\|b c    |    1 |    1 |        |               |",
        "|             | a\\|b c    |    2 |  2.5 | 0.7071 | 2.5 to 2.5    |",  # half of the resamples are 2, 3
    ]


def test_what_is_wrong_is_named(make_run: MakeRun) -> None:
    run = make_run(returns(1.0))
    text = "table.value: must be a number in the log of .*, one of "
    refuses(ParamsError, f"{text}test/return, test/score; got 'test/retrun'", rl.plots.table, run, "test/retrun")
    refuses(ParamsError, f"{text}none, as it is empty; got", rl.plots.table, make_run({}))
    for runs in ([], {}, {"PPO": []}):
        text = "table.runs: must be runs or their folders, or lists of them by name, and not be empty"
        refuses(ParamsError, text, rl.plots.table, runs)
    text = "bootstrap_interval.confidence: must be a number between 0 and 1; got 95"
    refuses(ParamsError, text, rl.plots.table, [run, run], confidence=95)


def test_a_command_prints_and_writes_it(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [make_run(returns(score), trainer={"seed": seed}) for seed, score in enumerate((1.0, 3.0))]
    assert main(["plot", "runs", "--table"]) == 0
    printed = capsys.readouterr().out
    assert printed == rl.plots.table(runs, "test/return")
    assert main(["plot", *(str(run.folder.path) for run in runs), "--table", "--path", "results.md"]) == 0
    assert Path("results.md").read_text() == printed
    assert not Path("curves.png").exists()
