"""The device in recipes, trainings and commands: how it is named, refused, printed and kept."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.tools.cli import main
from rltrainer.tools.recipes import recipe as recipes
from rltrainer.tools.recipes.training import devices_line
from tests.unit.tools.recipes.any_recipes import any_recipe, logged
from tests.unit.tools.refusals import error_text

SHORT: dict[str, Any] = {
    "num_env_steps": 64, "max_epochs": 1, "test_step_num_episodes": 1, "show_progress": False,
    "warmup_num_env_steps": 0, "runtime": rl.RuntimeParams(compile=False), "hidden_sizes": (8,),
    "collection_step_num_env_steps": 32,
}  # fmt: skip
ABSENT = "must be a device that PyTorch can use here; got 'cuda:7' (str). There is cpu"


@pytest.mark.parametrize("algorithm", ["ppo", "iql"])
def test_a_recipe_is_data_of_any_machine(algorithm: str) -> None:
    recipe = any_recipe(algorithm)
    assert recipe.device == "auto"
    elsewhere = recipe.with_fields(device="cuda:7")  # it may be read where there is no such device
    assert type(recipe).from_json(elsewhere.to_json()) == elsewhere
    assert error_text(ParamsError, elsewhere.make_trainer).startswith(f"{type(recipe).__name__}.device: {ABSENT}")
    text = error_text(ParamsError, recipe.with_fields, device="gpu")
    assert text.startswith(f"{type(recipe).__name__}.device: must be 'auto', 'cpu', 'cuda', or one GPU by its number")


def test_a_device_that_is_absent_leaves_no_folder(tmp_path: Path) -> None:
    text = error_text(ParamsError, rl.train, "CartPole-v1", "dqn", folder=tmp_path, device="cuda:7", **SHORT)
    assert text.startswith(f"Recipe.device: {ABSENT}")
    assert list(tmp_path.iterdir()) == []


def test_a_training_says_where_it_is_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = rl.train("CartPole-v1", "dqn", folder=tmp_path, **SHORT)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "networks on cpu, as PyTorch sees no CUDA device; replay buffer on cpu"
    run = rl.open_run(result.folder.path)
    assert (run.devices, result.recipe.device) == ({"networks": "cpu", "buffer": "cpu"}, "auto")
    assert run.load_best(device="auto").device.type == "cpu"
    rl.train("CartPole-v1", "dqn", folder=tmp_path, device="cpu", **SHORT)
    assert capsys.readouterr().out.splitlines()[1] == "networks on cpu; replay buffer on cpu"


def test_an_earlier_choice_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = rl.recipes.get("ppo/CartPole-v1").with_fields(hidden_sizes=(8,))
    trainer = recipe.make_trainer()
    monkeypatch.setattr("rltrainer.tools.recipes.training.choose_device", lambda *_: ("cuda", "it is large"))
    assert devices_line(recipe, trainer) == "networks on cpu, as the run began there"


@pytest.mark.parametrize(("devices", "earlier"), [
    ({"networks": "cpu", "buffer": "cuda:0"}, "cpu"), ({}, None), ({"networks": 3, "buffer": "cpu"}, None),
    ("cpu", None),
])  # fmt: skip
def test_the_device_of_a_run_is_read(
    devices: object, earlier: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "params.json").write_text(json.dumps({"devices": devices}))
    asked: list[Any] = []

    def resolve(owner: str, device: str, *args: Any) -> torch.device:
        asked.append((owner, device, *args))
        return torch.device("cpu")

    monkeypatch.setattr(recipes, "resolve_device", resolve)
    recipe = rl.recipes.get("ppo/CartPole-v1")
    trainer = recipe.make_trainer(run_folder=rl.RunFolder(tmp_path))
    policy = trainer.algorithm.policy
    assert asked == [("Recipe", "auto", policy, policy.observation_space, "auto", earlier)]
    recipe.make_trainer()
    assert asked[1][-1] is None


@pytest.mark.parametrize("backend", ["sync", "tensor"])
def test_envs_of_tensors_get_the_device_that_is_chosen_for_them(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked: list[Any] = []

    def make_vec(*args: Any, **options: Any) -> Any:
        asked.append(options.get("device"))
        return rl.make_vec(*args, **options)

    monkeypatch.setattr(recipes, "make_vec", make_vec)
    rl.recipes.get("ppo/CartPole-v1").with_fields(backend=backend).make_trainer()
    assert asked == (["cpu", "cpu"] if backend == "tensor" else [None, None])


def test_data_of_a_file_is_placed_and_a_users_buffer_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def device_for_data(nbytes: int, device: torch.device) -> torch.device:
        asked.append(nbytes)
        return device

    monkeypatch.setattr(recipes, "device_for_data", device_for_data)
    path = str(tmp_path / "log.safetensors")
    logged().save(path)
    fields: dict[str, Any] = {"algorithm": "td3bc", "params": rl.TD3BCParams(), "num_gradient_steps": 4}
    rl.OfflineRecipe(data=path, **fields).make_trainer()
    buffer = rl.ReplayBuffer.load(path)
    assert asked == [buffer.nbytes]
    trainer = rl.OfflineRecipe(data=buffer, **fields).make_trainer()
    assert trainer.params.buffer is buffer
    assert asked == [buffer.nbytes]


def test_a_buffer_that_was_on_the_host_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    recipe = rl.recipes.get("dqn/CartPole-v1")
    policy = recipe.make_trainer().algorithm.policy
    with caplog.at_level(logging.INFO, "rltrainer"):
        for earlier in ({}, {"networks": "cpu", "buffer": "cpu"}):
            assert recipe._device_of_buffer(10**20, policy, earlier).type == "cpu"
    assert caplog.messages == []


@pytest.mark.full
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("click")
    monkeypatch.chdir(tmp_path)
    words = "--num-env-steps 64 --max-epochs 1 --test-step-num-episodes 1 --show-progress false --num-envs 2"
    words += " --collection-step-num-env-steps 64 --runtime.compile false --hidden-sizes 8"
    assert main(["train", "ppo", "--env", "CartPole-v1", "--device", "cuda:7", *words.split()]) == 1
    assert f"rltrainer: Recipe.device: {ABSENT}" in capsys.readouterr().err
    assert main(["train", "ppo", "--env", "CartPole-v1", "--device", "gpu", *words.split()]) == 2
    assert "Write 'cuda'. `--explain device` says more." in " ".join(capsys.readouterr().err.split())
    assert main(["train", "ppo", "--env", "CartPole-v1", "--device", "cpu", *words.split()]) == 0
    assert "\nnetworks on cpu\n" in capsys.readouterr().out
    for command in ("resume", "evaluate", "record"):
        assert main([command, "runs/ppo_CartPole-v1", "--device", "cuda:7"]) == 1, command
        owner = "Recipe" if command == "resume" else "load_policy"
        assert f"rltrainer: {owner}.device: {ABSENT}" in capsys.readouterr().err
    assert main(["resume", "runs/ppo_CartPole-v1", "--device", "cpu", "--max-epochs", "2"]) == 0
    assert main(["evaluate", "runs/ppo_CartPole-v1", "--device", "cpu", "--num-episodes", "1"]) == 0
    assert rl.recipes.recipe_of(rl.RunFolder("runs/ppo_CartPole-v1")).device == "cpu"
