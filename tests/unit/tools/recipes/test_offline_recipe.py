"""Training from logged data by a recipe: from files and buffers, with and without an env; then on in the env."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError, RLTrainerError
from rltrainer.tools.cli.train_command import _recipe_of
from tests.unit.tools.recipes.any_recipes import logged
from tests.unit.tools.refusals import refuses

SHORT: dict[str, Any] = {
    "num_gradient_steps": 20, "max_epochs": 2, "test_step_num_episodes": 2, "batch_size": 8, "show_progress": False,
    "verbose": False, "runtime": rl.RuntimeParams(compile=False),
}  # fmt: skip


def test_a_file_trains_as_the_same_program_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged().save(tmp_path / "log.safetensors")
    found = rl.train(
        "Pendulum-v1", "td3bc", data=tmp_path / "log.safetensors", folder=tmp_path, seed=3, alpha=1.0,
        hidden_sizes=(8,), **SHORT | {"verbose": True},
    )  # fmt: skip
    folder = tmp_path / "td3bc_Pendulum-v1"
    words = f"rl.train: the recommended settings of td3bc on data; 20 gradient steps, to {folder}"
    assert capsys.readouterr().out.splitlines()[0] == words
    rl.seed(3)
    envs = rl.make_vec("Pendulum-v1", 2)
    buffer = rl.ReplayBuffer.load(tmp_path / "log.safetensors")
    spaces = buffer.observation_space, buffer.action_space
    policy = rl.DeterministicActorCritic.for_spaces(*spaces, hidden_sizes=(8,))
    params = rl.OfflineTrainerParams(
        buffer=buffer, test_collector=rl.Collector(policy, envs), test_step_num_episodes=2, max_epochs=2,
        epoch_num_steps=10, batch_size=8, seed=3, verbose=False, show_progress=False, runtime=SHORT["runtime"],
        initial_test=False,
    )  # fmt: skip
    expected = rl.TD3BC(policy, rl.TD3BCParams(alpha=1.0)).run_training(params)
    assert found.info.best_score == expected.best_score
    assert [e.update.metrics for e in found.info.epochs] == [e.update.metrics for e in expected.epochs]
    recipe = rl.recipes.recipe_of(found.folder)
    assert recipe == found.recipe
    assert isinstance(recipe, rl.OfflineRecipe)
    assert recipe.data == str(tmp_path / "log.safetensors")


def test_without_an_env_the_last_algorithm_is_kept(tmp_path: Path) -> None:
    found = rl.train(data=logged(), folder=tmp_path, **SHORT)
    assert found.recipe.name == "td3bc/buffer"
    assert found.info.best_score is None
    kept, obs = rl.load_policy(found.folder.best), np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(kept.predict(obs), found.algorithm.policy.predict(obs))
    logged("CartPole-v1").save(tmp_path / "choices.safetensors")
    found = rl.train(data=str(tmp_path / "choices.safetensors"), folder=tmp_path, **SHORT)
    assert found.recipe.name == "discrete_cql/choices"


def test_a_run_goes_on_by_its_recipe(tmp_path: Path) -> None:
    logged().save(tmp_path / "log.safetensors")
    short = rl.train(None, "td3bc", data=str(tmp_path / "log.safetensors"), folder=tmp_path, **SHORT)
    longer = rl.recipes.recipe_of(short.folder).with_fields(max_epochs=4)
    again = rl.recipes.run_recipe(longer, short.folder)
    more = {"num_gradient_steps": 40, "max_epochs": 4}
    whole = rl.train(None, "td3bc", data=str(tmp_path / "log.safetensors"), folder=tmp_path, **SHORT | more)
    assert again.info.gradient_step == 40
    assert [e.update.metrics for e in again.info.epochs] == [e.update.metrics for e in whole.info.epochs]


def test_a_recipe_of_a_buffer_needs_it_again(tmp_path: Path) -> None:
    log = logged()
    found = rl.train("Pendulum-v1", "bc", data=log, folder=tmp_path, **SHORT)
    with pytest.raises(CheckpointError, match=r"recipe.json: OfflineRecipe.data: .* pass data=\.\.\."):
        rl.recipes.recipe_of(found.folder)
    assert rl.recipes.recipe_of(found.folder, data=log) == found.recipe


ONLINE: dict[str, Any] = {name: value for name, value in SHORT.items() if name != "num_gradient_steps"} | {
    "num_env_steps": 40, "num_envs": 2, "warmup_num_env_steps": 8, "collection_step_num_env_steps": 4,
}  # fmt: skip


def weights(algorithm: rl.Algorithm) -> list[np.ndarray[Any, Any]]:
    return [value.detach().numpy().copy() for value in algorithm.policy.parameters()]


def test_an_algorithm_goes_on_in_an_env_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offline = rl.train(None, "sac", data=logged(), folder=tmp_path, hidden_sizes=(8,), lr=1e-3, **SHORT)
    sac, before = offline.algorithm, weights(offline.algorithm)
    found = rl.train("Pendulum-v1", sac, folder=tmp_path, seed=5, **ONLINE | {"verbose": True})
    folder = tmp_path / "sac_Pendulum-v1"
    words = f"rl.train: sac continues; recipe sac/Pendulum-v1 (RL Zoo); 40 env steps, to {folder}"
    assert capsys.readouterr().out.splitlines()[0] == words
    for kept, value in zip(before, weights(sac), strict=True):
        np.testing.assert_array_equal(kept, value)
    assert found.recipe.params == sac.params
    assert found.recipe.policy == {}
    rl.seed(5)
    envs, test_envs = rl.make_vec("Pendulum-v1", 2), rl.make_vec("Pendulum-v1", 2)
    again: Any = rl.load(folder / "start.safetensors")
    buffer = rl.ReplayBuffer(40, envs.single_observation_space, envs.single_action_space, num_envs=2)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(again.policy, envs, buffer), test_step_num_episodes=2,
        test_collector=rl.Collector(again.policy, test_envs),
        max_epochs=2, epoch_num_steps=20, collection_step_num_env_steps=4, batch_size=8,
        warmup_num_env_steps=8, seed=5, verbose=False, show_progress=False, runtime=SHORT["runtime"],
        **{name: value for name, value in found.recipe.trainer.items() if name.startswith("update_step")},
    )  # fmt: skip
    expected = again.run_training(params)
    assert [e.update.metrics for e in found.info.epochs] == [e.update.metrics for e in expected.epochs]
    assert found.info.best_score == expected.best_score


@pytest.mark.parametrize(("name", "env"), [
    ("iql", "Pendulum-v1"), ("td3bc", "Pendulum-v1"), ("cql", "Pendulum-v1"), ("discrete_cql", "CartPole-v1"),
])  # fmt: skip
def test_what_data_has_taught_goes_on_in_an_env(name: str, env: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"folder": tmp_path, "hidden_sizes": (8,), "lr": 1e-4}
    offline = rl.train(None, name, data=logged(env), **fields, **SHORT).algorithm
    found = rl.train(env, offline, folder=tmp_path, **ONLINE)
    assert (type(found.algorithm), found.info.env_step) == (type(offline), 40)
    assert found.recipe.params == offline.params
    assert rl.recipes.recipe_of(found.folder) == found.recipe
    for kept, value in zip(weights(offline), weights(rl.load(found.folder.path / "start.safetensors")), strict=True):
        np.testing.assert_array_equal(kept, value)
    by_path, words = _recipe_of([name, "--env", env, "--start", str(found.folder.path)])
    assert isinstance(by_path, rl.Recipe)
    assert words == f"no recipe for {env}, so the recommended settings of {name}"


def test_a_run_that_went_on_is_resumed_where_its_folder_was_moved_to(tmp_path: Path) -> None:
    sac = rl.train(None, "sac", data=logged(), folder=tmp_path / "a", hidden_sizes=(8,), **SHORT).algorithm
    short = rl.train("Pendulum-v1", sac, folder=tmp_path / "a", **ONLINE)
    moved = rl.RunFolder(short.folder.path.parent.rename(tmp_path / "b") / short.folder.path.name)
    recipe = rl.recipes.recipe_of(moved)
    assert recipe.start == str(moved.path / "start.safetensors")
    again = rl.recipes.run_recipe(recipe.with_fields(max_epochs=4), moved)
    more = {"num_env_steps": 80, "max_epochs": 4, "capacity": 40}
    whole = rl.train("Pendulum-v1", sac, folder=tmp_path, **ONLINE | more)
    assert again.info.env_step == whole.info.env_step == 80
    assert [e.update.metrics for e in again.info.epochs] == [e.update.metrics for e in whole.info.epochs]


def test_the_env_says_which_algorithm_suits_data_that_does_not(tmp_path: Path) -> None:
    log = logged()
    actions = np.random.default_rng(0).uniform(-2, 2, (20, 1)).astype(np.float32)
    np.savez(
        tmp_path / "log.npz", observations=np.zeros((20, 3), np.float32), actions=actions, rewards=np.zeros(20),
        terminals=np.arange(20) % 10 == 9, timeouts=np.zeros(20, bool),
    )  # fmt: skip
    found = rl.train("Pendulum-v1", data=tmp_path / "log.npz", folder=tmp_path, **SHORT)
    assert found.recipe.name == "td3bc/Pendulum-v1"
    assert found.algorithm.policy.action_space == log.action_space


def test_a_file_goes_on_with_other_params(tmp_path: Path) -> None:
    first = rl.train(None, "sac", data=logged(), folder=tmp_path, hidden_sizes=(8,), **SHORT)
    recipe = rl.recipes.get("sac/Pendulum-v1").with_fields(start=first.folder.path, lr=1e-5, **ONLINE)
    trainer: Any = recipe.make_trainer()
    assert trainer.algorithm.params.lr == 1e-5
    for kept, value in zip(weights(first.algorithm), weights(trainer.algorithm), strict=True):
        np.testing.assert_array_equal(kept, value)
    trainer.run()
    assert float(trainer.algorithm.actor_optimizer.method.lr) == pytest.approx(1e-5)
    for collector in trainer.params.collectors().values():
        collector.close()


def test_what_cannot_go_on_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    envs, folder = rl.make_vec("Pendulum-v1", 1), tmp_path / "runs"
    sac = rl.SAC(rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,)))
    sac.save(tmp_path / "sac.safetensors")
    bc = rl.BC(rl.Actor.for_envs(envs))
    envs.close()
    for algorithm, fields, text in (
        (sac, {"hidden_sizes": (8,)}, "Recipe.policy: must have no options where a saved algorithm continues"),
        (
            "ppo",
            {"start": tmp_path / "sac.safetensors"},
            "Recipe.start: must be a saved PPO; .* It is a SAC: name that.",
        ),
        (bc, {}, "Recipe.algorithm: must be one that trains in an env; got 'bc'"),
        ("sac.safetensors", {}, r"train.algorithm: must be .*\. A saved algorithm continues by start="),
        ("sac", {"start": "nowhere.safetensors"} | ONLINE, "nowhere.safetensors: "),
        (sac, {"env": "MountainCarContinuous-v0"} | ONLINE, "Collector.policy.observation_space: expected Box"),
    ):
        options: Any = {"env": "Pendulum-v1", "algorithm": algorithm, "folder": folder} | fields
        refuses(RLTrainerError, text, rl.train, **options)
    assert list(folder.iterdir()) == []
