"""What commands take where nothing is said, and however it is said: defaults, spellings, files in place of runs."""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.tools.cli import main, pictures, run_commands, train_command

pytest.importorskip("click")
Capture = pytest.CaptureFixture[str]


class Ended(Exception):
    """Ends a command where its work would begin."""


def test_defaults_are_those_that_the_help_shows() -> None:
    from rltrainer.tools.cli.commands import commands

    found = {
        f"{name} {option.opts[0]}": option.default
        for name, command in commands.commands.items()
        for option in command.params
        if getattr(option, "show_default", None)
    }
    assert found == {
        "train --seed": "0", "train --folder": "runs",
        "sweep --trials": 20, "sweep --seeds": 1, "sweep --seed": 0,
        "evaluate --num-episodes": 20, "evaluate --seed": 10_001, "evaluate --device": "auto",
        "watch --num-episodes": 1, "watch --seed": 10_001, "watch --device": "auto",
        "record --num-episodes": 1, "record --seed": 10_001, "record --device": "auto",
        "verify --folder": "verified", "verify --seed": 11,
        "plot --value": "test/return",
    }  # fmt: skip


def recipe_of(command: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the recipe that a command trains by, and train nothing."""
    seen: list[Any] = []

    def run_recipe(recipe: Any, folder: Any, **live: Any) -> None:
        seen.append(recipe)
        raise Ended

    monkeypatch.setattr(train_command, "run_recipe", run_recipe)
    with pytest.raises(Ended):
        main(shlex.split(command))
    return seen[0]


@pytest.mark.parametrize(("words", "algorithm", "seed"), [
    ("PPO --env CartPole-v1", "ppo", 0), ("DiscreteSAC --env CartPole-v1", "discrete_sac", 0),
    ("discrete-sac --env CartPole-v1 --seed 3", "discrete_sac", 3), ("A2C --env CartPole", "a2c", 0),
])  # fmt: skip
def test_an_algorithm_is_known_however_it_is_written(
    words: str, algorithm: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(f"train {words}", monkeypatch)
    assert (recipe.algorithm, recipe.env, recipe.seed) == (algorithm, "CartPole-v1", seed)


@pytest.mark.parametrize("env", ["CartPole-v1", "MountainCar-v0"])
def test_options_may_be_written_with_underscores(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(f"train a2c --env={env} --num_envs 3 --runtime.num_threads 1 --batch_size=16", monkeypatch)
    found = (recipe.num_envs, recipe.trainer["runtime"].num_threads, recipe.trainer["batch_size"])
    assert found == (3, 1, 16)


def test_recommended_settings_are_of_as_many_envs_as_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (
        recipe_of(f"train reinforce --env CartPole-v1 --num{end} 3", monkeypatch) for end in ("-envs", "_envs")
    )
    assert one == other
    assert one.num_envs == 3


def test_own_rules_of_tensors_are_named_like_an_own_env(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tests.unit.envs.tensors.test_tensor_vector_env:Count"
    recipe = recipe_of(f"train ppo --env {name} --backend tensor", monkeypatch)
    assert (recipe.env.__name__, recipe.backend) == ("Count", "tensor")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a short run."""
    recipe = rl.recipes.get("ppo/CartPole-v1").with_fields(
        num_env_steps=256, max_epochs=1, test_step_num_episodes=1, show_progress=False, verbose=False,
        runtime=rl.RuntimeParams(compile=False), update_step_num_repetitions=1,
    )  # fmt: skip
    folder = rl.RunFolder(tmp_path_factory.mktemp("runs") / "ppo_CartPole-v1")
    folder.path.mkdir()
    rl.recipes.run_recipe(recipe, folder)
    return folder.path


def noted_loads(module: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str]]:
    """Return a list to which paths and devices of the policies that a module loads are added."""
    loaded: list[tuple[Path, str]] = []

    def load_policy(path: Path, device: str) -> Any:
        loaded.append((path, device))
        return rl.load_policy(path)

    monkeypatch.setattr(module, "load_policy", load_policy)
    return loaded


@pytest.mark.parametrize("saved", ["", "best.safetensors", "checkpoints/checkpoint-*"])
def test_a_run_is_evaluated_by_its_folder_or_a_file(
    saved: str, run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = run.glob(saved) if saved else [run]
    asked: list[Any] = []

    def evaluate(*args: Any, **options: Any) -> rl.CollectStats:
        asked.extend((args, options))
        return rl.evaluate_policy(args[0], args[1], 2, **options)

    monkeypatch.setattr(run_commands, "evaluate_policy", evaluate)
    loaded = noted_loads(run_commands, monkeypatch)
    assert main(["evaluate", str(path)]) == 0
    (_, make_env, episodes), options = asked
    assert (loaded, episodes, options) == ([(path, "auto")], 20, {"seed": 10_001})
    assert make_env().spec.id == "CartPole-v1"
    assert re.match(r"return [\d.]+ \+-", capsys.readouterr().out)


def test_a_file_without_its_run_needs_its_env(run: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copy(run / "best.safetensors", tmp_path / "agent.safetensors")
    assert main(["evaluate", "agent.safetensors"]) == 1
    assert "agent.safetensors: lies in no run that says its env. Name it: --env CartPole-v1" in capsys.readouterr().err
    assert main(["evaluate", "agent.safetensors", "--env", "CartPole-v1", "--num-episodes", "1"]) == 0
    assert main(["evaluate", "nothing.safetensors", "--env", "CartPole-v1"]) == 1
    assert "nothing.safetensors: expected the folder of a run" in capsys.readouterr().err


@pytest.mark.parametrize(("filmed", "film"), [
    ("run", "run/videos/best.mp4"),
    ("run/best.safetensors", "run/videos/best.mp4"),
    ("run/checkpoints/checkpoint-000000000256", "run/videos/checkpoint-000000000256.mp4"),
    ("agent.safetensors --env CartPole-v1", "agent.mp4"),
])  # fmt: skip
def test_a_film_lies_beside_what_it_shows(
    filmed: str, film: str, run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, "run")
    shutil.copy(run / "best.safetensors", "agent.safetensors")
    asked: list[Any] = []

    def record(policy: Any, env: Any, path: Path, **options: Any) -> rl.CollectStats:
        asked.extend((path, options))
        return rl.evaluate_policy(policy, env, 1, seed=1)

    monkeypatch.setattr(pictures, "record", record)
    loaded = noted_loads(pictures, monkeypatch)
    assert main(["record", *filmed.split(), "--device", "cuda:1"]) == 0
    assert asked == [Path(film), {"num_episodes": 1, "seed": 10_001}]
    assert loaded == [(Path(filmed.split()[0]), "cuda:1")]
    assert capsys.readouterr().out.startswith(f"{film}: returns ")


def test_a_graph_lies_beside_what_it_is_of(run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(run, "run")
    shutil.copy(run / "best.safetensors", "agent.safetensors")
    asked: list[tuple[Path, Path]] = []
    monkeypatch.setattr(run_commands, "export_onnx", lambda *args: asked.append(args))
    for exported in ("run", "agent.safetensors"):
        assert main(["export", exported]) == 0
    assert asked == [(Path(f"{name}.safetensors"), Path(f"{name}.onnx")) for name in ("run/best", "agent")]
    assert capsys.readouterr().out == "run/best.onnx\nagent.onnx\n"


def test_all_runs_of_a_folder_are_drawn(run: Path, tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(run, "runs/one")
    assert main(["plot", "runs"]) == 0  # a single one has its page
    assert capsys.readouterr().out == "runs/one/learning_curve.png\nruns/one/page.html\n"
    assert [path.name for path in rl.open_run("runs/one").pictures] == ["learning_curve.png", "page.html"]
    assert main(["plot", "runs/one", "--path", "curve.xyz"]) == 1
    assert "plot.path: must end in .png, .svg or .pdf; got 'curve.xyz' (str)" in capsys.readouterr().err
    shutil.copytree(run, "runs/deeper/two")
    shutil.copytree(run, "runs/sweep/trials/0")
    (tmp_path / "runs/sweep/sweep.json").write_text("{}")
    Path("runs/circle").symlink_to(tmp_path / "runs")
    shutil.copytree(run, "runs/young")
    for log in (tmp_path / "runs/young/logs").iterdir():
        log.write_text("")
    assert main(["plot", "runs"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "curves.png\n"
    assert shown.err == "rltrainer: runs/young is left out, as it has logged no test/return yet\n"
    assert main(["plot", "nowhere"]) == 1
    assert main(["plot", "runs/young"]) == 1
    assert "must be a number in the log of runs/young" in capsys.readouterr().err
