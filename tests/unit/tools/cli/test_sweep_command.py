"""`rltrainer sweep`: ranges as options, and what it says at the end."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.tools.cli import main
from rltrainer.tools.cli.fields import shown
from rltrainer.tools.cli.values import read_range, read_value

pytest.importorskip("click")
pytest.importorskip("optuna")
SHORT = "--num-env-steps 512 --max-epochs 2 --test-step-num-episodes 2"
Capture = pytest.CaptureFixture[str]


def test_a_sweep_by_options_and_what_it_came_to(capsys: Capture) -> None:
    command = f"sweep ppo --env CartPole-v1 {SHORT} --trials 2 --gamma 0.97 --lr log:1e-4:1e-2 --hidden-sizes 8,/16,16"
    assert main(shlex.split(command)) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "rltrainer: recipe ppo/CartPole-v1 (RL Zoo); 2 trials of 512 env steps, to sweeps/ppo_CartPole-v1\n"
    )
    assert re.search(r"^rltrainer: the best is trial [01] with score [\d.]+, in sweeps/ppo_CartPole-v1$", out, re.M)
    assert (Path("sweeps") / "ppo_CartPole-v1" / "sweep.png").stat().st_size > 1000
    train = re.search(r"^rltrainer: train it with: rltrainer (train ppo --env CartPole-v1 .*)$", out, re.M)
    assert train is not None
    assert main([*shlex.split(train[1]), "--show-progress", "false"]) == 0
    trained, swept = (
        rl.recipes.recipe_of(rl.RunFolder(path))
        for path in ("runs/ppo_CartPole-v1", next(Path("sweeps/ppo_CartPole-v1").glob("trial-*/seed-0")))
    )
    assert trained.num_env_steps == swept.num_env_steps == 512
    assert vars(trained.params)["gamma"] == vars(swept.params)["gamma"] == 0.97
    capsys.readouterr()
    assert main(shlex.split(command)) == 0  # all is there
    assert capsys.readouterr().out == "".join(re.split(r"(?m)^trial [01]: .*\n", out))
    assert main(shlex.split("plot sweeps/ppo_CartPole-v1 --path drawn/sweep.png")) == 0
    assert capsys.readouterr().out == "drawn/sweep.png\n"
    assert Path("drawn/sweep.png").read_bytes() == Path("sweeps/ppo_CartPole-v1/sweep.png").read_bytes()


def test_without_ranges_the_usual_ones_are_taken(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def stop(*args: Any, **options: Any) -> None:
        asked.append((*args, options))
        raise KeyboardInterrupt

    monkeypatch.setattr("rltrainer.tools.cli.sweep_command.run_sweep", stop)
    assert main(shlex.split("sweep --recipe sac/Pendulum-v1 --seeds 3 --seed 2 --processes 1 --folder a")) == 130
    [(recipe, space, options)] = asked
    assert (recipe.name, space, options.pop("folder")) == ("sac/Pendulum-v1", None, Path("a"))
    assert options == {"num_trials": 20, "num_seeds": 3, "seed": 2, "num_processes": 1, "executor": "processes"}
    assert "rltrainer: saved; the same command continues" in capsys.readouterr().err
    assert main(shlex.split("sweep --recipe sac/Pendulum-v1 --executor ray")) == 130
    assert asked[1][2]["executor"] == "ray"


@pytest.mark.parametrize(("text", "expected"), [
    ("log:1e-5:1e-2", rl.LogUniform(1e-5, 1e-2)), ("uniform:0:1", rl.Uniform(0.0, 1.0)), ("1..20", range(1, 21)),
    ("32/64", [32, 64]), ("8,/16,16", [(8,), (16, 16)]), ("ReLU/Tanh", [read_value("ReLU"), read_value("Tanh")]),
    ("none/linear:1e-3", [None, rl.LinearSchedule(1e-3)]), ("3", None), ("linear:1e-3", None), ("600:second", None),
])  # fmt: skip
def test_words_are_ranges(text: str, expected: Any) -> None:
    assert read_range(text) == expected


@pytest.mark.parametrize("value", [(64,), (64, 64), 1.2345678901e-3, None, True, rl.LinearSchedule(1.25e-7, 0.1, 0.5)])
def test_what_a_trial_had_can_be_given_again(value: Any) -> None:
    assert read_value(shown(value)) == value
