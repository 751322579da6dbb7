"""Training in an env and from data at once, by a recipe: RLPD, and algorithms that data trained first."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.tools.cli.train_command import _recipe_of
from rltrainer.tools.recipes.training import choose_recipe
from tests.unit.tools.recipes.any_recipes import logged

ONLINE: dict[str, Any] = {
    "max_epochs": 2, "test_step_num_episodes": 2, "batch_size": 8, "show_progress": False, "verbose": False,
    "runtime": rl.RuntimeParams(compile=False), "num_env_steps": 40, "num_envs": 2, "warmup_num_env_steps": 8,
    "collection_step_num_env_steps": 4, "update_step_num_gradient_steps_per_sample": 0.5,
}  # fmt: skip
RLPD: dict[str, Any] = ONLINE | {"hidden_sizes": (8,), "offline_share": 0.5}


def metrics(info: rl.InfoStats) -> list[Any]:
    return [epoch.update.metrics for epoch in info.epochs]


def test_redq_with_data_is_rlpd_as_the_same_program_is(tmp_path: Path) -> None:
    logged().save(path := tmp_path / "log.safetensors")
    found = rl.train("Pendulum-v1", "redq", data=path, folder=tmp_path, seed=3, **RLPD)
    rl.seed(3)
    envs, tests = rl.make_vec("Pendulum-v1", 2), rl.make_vec("Pendulum-v1", 2)
    spaces = envs.single_observation_space, envs.single_action_space
    net = rl.NetParams(norm="layer")
    policy = rl.SquashedActorCritic.for_spaces(*spaces, num_critics=10, hidden_sizes=(8,), critic_net=net)
    buffer = rl.MixedBuffer(rl.ReplayBuffer(40, *spaces, num_envs=2), rl.ReplayBuffer.load(path), 0.5)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs, buffer), test_collector=rl.Collector(policy, tests), seed=3,
        epoch_num_steps=20, initial_test=False,
        **{name: ONLINE[name] for name in ONLINE.keys() - {"num_envs", "num_env_steps"}},
    )  # fmt: skip
    expected = rl.REDQ(policy).run_training(params)
    assert metrics(found.info) == metrics(expected)
    assert found.info.best_score == expected.best_score
    assert rl.recipes.recipe_of(found.folder) == found.recipe
    assert (found.recipe.source, found.recipe.data) == ("RLPD, Ball et al. 2023", str(path))  # type: ignore[union-attr]
    assert found.recipe.with_fields().trainer["update_step_num_gradient_steps_per_sample"] == 0.5
    both: Any = {"data": path, "offline_share": 0.5}
    assert choose_recipe("Pendulum-v1", None, both)[0].name == "redq/Pendulum-v1"
    assert choose_recipe("CartPole-v1", None, both)[0].name == "double_dqn/CartPole-v1"
    assert choose_recipe("Pendulum-v1", "sac", both)[0].source == "RL Zoo"


@pytest.mark.full
@pytest.mark.parametrize("is_file", [True, False])
def test_it_resumes_bit_for_bit(is_file: bool, tmp_path: Path) -> None:
    log = logged()
    log.save(tmp_path / "log.safetensors")

    def data() -> Any:
        return tmp_path / "log.safetensors" if is_file else copy.deepcopy(log)

    more = {"num_env_steps": 80, "max_epochs": 4, "capacity": 40}
    short = rl.train("Pendulum-v1", "redq", data=data(), folder=tmp_path / "a", **RLPD)
    longer = rl.resume(short.folder.path, max_epochs=4, **({} if is_file else {"data": data()}))
    whole = rl.train("Pendulum-v1", "redq", data=data(), folder=tmp_path / "a", **RLPD | more)
    assert metrics(longer.info) == metrics(whole.info)
    for one, other in zip(longer.algorithm.policy.parameters(), whole.algorithm.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    if not is_file:
        with pytest.raises(CheckpointError, match=r"recipe.json: Recipe.data: .* pass data=\.\.\."):
            rl.resume(short.folder.path)
        with pytest.raises(CheckpointError, match="MixedBuffer.offline"):
            rl.resume(short.folder.path, max_epochs=6, data=logged(num_steps=40))


@pytest.mark.full
@pytest.mark.parametrize("name", ["iql", "rebrac", "cql", "cal_ql", "fql"])
def test_what_data_has_taught_goes_on_with_the_data(name: str, tmp_path: Path) -> None:
    log = logged()
    small: Any = {"hidden_sizes": (8,), "num_gradient_steps": 4, "folder": tmp_path}
    quiet = {key: ONLINE[key] for key in ("show_progress", "verbose", "batch_size", "runtime")}
    offline = rl.train(None, name, data=log, **small, **quiet).algorithm
    offline.save(tmp_path / "offline.safetensors")
    offline = rl.load(tmp_path / "offline.safetensors")
    found: Any = rl.train("Pendulum-v1", offline, data=log, offline_share=0.25, folder=tmp_path, **ONLINE)
    assert (type(found.algorithm), found.info.env_step) == (type(offline), 40)
    assert (found.recipe.offline_share, found.recipe.policy) == (0.25, {})
    buffer = found.recipe.make_trainer().params.training_collector.buffer
    assert (type(buffer), buffer.offline, buffer.offline_share) == (rl.MixedBuffer, log, 0.25)


def test_a_recipe_written_before_has_neither() -> None:
    document = json.loads((recipe := rl.recipes.get("sac/Pendulum-v1")).to_json())
    for field in ("data", "offline_share"):
        del document["fields"][field]
    del document["fields"]["params"]["fields"]["entropy_in_target"]
    assert rl.Recipe.from_json(json.dumps(document)) == recipe


def test_a_command_names_both(tmp_path: Path) -> None:
    both = ["--env", "Pendulum-v1", "--data", "x.npz", "--offline-share", "0.25"]
    for args, name in ((["redq"], "redq"), ([], "redq"), (["iql"], "iql"), (["--recipe", "sac/Pendulum-v1"], "sac")):
        recipe, words = _recipe_of([*args, *both])
        assert isinstance(recipe, rl.Recipe)
        assert (recipe.algorithm, recipe.data) == (name, "x.npz")
        assert words
    assert isinstance(_recipe_of(["redq", *both[:4]])[0], rl.OfflineRecipe)
