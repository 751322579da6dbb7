"""The recipes that come with the package: whole, checked, buildable, and found by their names."""

import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.tools.recipes.algorithms import ALGORITHMS
from rltrainer.tools.recipes.cookbook import FOLDER, find, is_atari, read_recipe
from tests.unit.tools.recipes.any_recipes import any_recipe
from tests.unit.tools.refusals import error_text

NAMES = rl.recipes.names()


def test_there_are_many_for_the_usual_envs() -> None:
    assert len(NAMES) >= 40
    assert {path.stem for path in FOLDER.glob("*.toml")} <= set(ALGORITHMS)
    assert all(re.fullmatch(r"[a-z0-9_]+/(MinAtar/)?[\w-]+", name) for name in NAMES)
    envs = {name.partition("/")[2] for name in NAMES}
    assert {"CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3", "BipedalWalker-v3", "HalfCheetah-v5"} <= envs


def require_extra_of(env: str) -> None:
    """Skip where the package is missing that an env needs, and register its envs."""
    if env.startswith(("LunarLander", "Bipedal")):
        pytest.importorskip("Box2D")
    elif env.startswith("MinAtar/"):
        pytest.importorskip("minatar")
        rl.make_vec(env, 1).close()
    elif is_atari(env):
        gym.register_envs(pytest.importorskip("ale_py"))
    elif env.endswith("-v5"):
        pytest.importorskip("mujoco")


@pytest.mark.parametrize("name", NAMES)
def test_each_is_of_an_env_that_gymnasium_has_and_says_where_it_comes_from(name: str) -> None:
    recipe = rl.recipes.get(name)
    assert recipe.name == name
    assert isinstance(recipe.env, str)
    require_extra_of(recipe.env)
    assert gym.spec(recipe.env).id == recipe.env
    assert recipe.source != "own" or recipe.published_score is None
    assert (recipe.published_score is None) == (recipe.published_as == "")
    assert rl.Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("name", NAMES)
def test_each_makes_its_trainer(name: str) -> None:
    recipe = rl.recipes.get(name)
    require_extra_of(str(recipe.env))
    trainer = recipe.with_fields(test_step_num_episodes=1, capacity=recipe.num_envs * 4).make_trainer()
    assert type(trainer.algorithm) is ALGORITHMS[recipe.algorithm]
    assert trainer.algorithm.params == recipe.params
    for field, value in recipe.trainer.items():
        assert getattr(trainer.params, field) == value
    planned = trainer.params.planned_num_steps
    assert recipe.num_env_steps <= planned <= 1.07 * recipe.num_env_steps
    assert recipe.length == f"{planned:,} env steps"
    assert 13 <= trainer.params.max_epochs <= 25
    assert not trainer.params.initial_test
    for collector in trainer.params.collectors().values():
        collector.close()


def test_smooth_exploration_is_sampled_again_as_in_the_source() -> None:
    """RL Zoo's default is once per rollout; None would keep it for an episode, of a thousand steps in MountainCar."""
    recipes = [recipe for recipe in map(rl.recipes.get, NAMES) if recipe.policy.get("use_sde", False)]
    for recipe in recipes:
        num_steps = recipe.trainer["collection_step_num_env_steps"] // recipe.num_envs
        assert 0 < recipe.policy["sde_sample_interval"] <= num_steps, recipe.name
    assert len(recipes) == 8
    names = {recipe.name for recipe in recipes}
    assert {"ppo/MountainCarContinuous-v0", "sac/MountainCarContinuous-v0"} <= names


@pytest.mark.parametrize(("num_env_steps", "max_epochs", "epochs"), [
    (39 * 256, 20, (20, 2)),  # of one collection there would be 39, of three 13
    (39 * 256 + 1, 20, (20, 2)), (29 * 256, 20, (15, 2)), (16 * 256, 20, (16, 1)),
    (41 * 256, 20, (21, 2)),  # never fewer steps: 20 of 2 are but 40
    (25 * 256, 20, (25, 1)),  # of two there would be 13, which is further off
    (1, 20, (1, 1)), (1000 * 256, 3, (3, 334)), (12 * 256, 7, (6, 2)),
])  # fmt: skip
def test_epochs_are_whole_and_as_many_as_asked(num_env_steps: int, max_epochs: int, epochs: tuple[int, int]) -> None:
    recipe = rl.recipes.get("ppo/CartPole-v1").with_fields(num_env_steps=num_env_steps, max_epochs=max_epochs)
    trainer = recipe.with_fields(test_step_num_episodes=1).make_trainer()
    assert (trainer.params.max_epochs, trainer.params.epoch_num_steps) == (epochs[0], epochs[1] * 256)
    other = recipe.with_fields(num_env_steps=2560, max_epochs=5, epoch_num_steps=300)  # of two collections each
    assert other.length == "2,560 env steps"
    # 40,000 steps were rounded down to one such collection.
    assert recipe.with_fields(num_env_steps=40_000, collection_step_num_env_steps=32_768).length == "65,536 env steps"


def test_what_a_recipe_says_is_what_the_source_says() -> None:
    """RL Zoo's ppo.yml, CartPole-v1, and its qrdqn.yml: n_steps 32 of 8 envs; targets once in 256 env steps."""
    recipe = rl.recipes.get("ppo", "CartPole-v1")
    params: Any = recipe.params
    found = (params.lr, params.clip, params.gamma, params.gae_lambda)
    assert found == (rl.LinearSchedule(1e-3), rl.LinearSchedule(0.2), 0.98, 0.8)
    assert recipe.trainer["collection_step_num_env_steps"] == 32 * 8
    params = rl.recipes.get("qrdqn/CartPole-v1").params
    assert (params.target_update_interval, params.max_grad_norm, params.adam_eps) == (128, None, 0.01 / 64)


def test_a_recipe_for_an_env_is_found(measured_as: Callable[..., None]) -> None:
    measured_as({})
    for env, algorithm, name in (
        ("CartPole-v1", None, "ppo/CartPole-v1"), ("Pendulum-v1", None, "sac/Pendulum-v1"),
        ("MountainCar-v0", None, "ppo/MountainCar-v0"), ("HalfCheetah-v4", None, "sac/HalfCheetah-v5"),
        ("CartPole-v0", "dqn", "dqn/CartPole-v1"), ("ALE/Breakout-v5", None, "ppo/BreakoutNoFrameskip-v4"),
        ("ALE/Qbert-v5", "dqn", "dqn/PongNoFrameskip-v4"),  # all games are trained alike
        ("MinAtar/Breakout-v0", None, "dqn/MinAtar/Breakout-v1"), ("Nothing-v1", None, None),
        ("CartPole-v1", "td3", None),
    ):  # fmt: skip
        found = find(env, algorithm)
        assert (found and found[0].name) == name


TABLE = {"num_env_steps": 1000, "params": {"gamma": 0.9}, "trainer": {"batch_size": "none"}}


@pytest.mark.parametrize(("change", "text"), [
    ({"params": {"gama": 0.9}}, "PPOParams: unknown field 'gama'. Did you mean 'gamma'?"),
    ({"params": {"gamma": 2.0}}, "PPOParams.gamma: must be "),
    ({"trainer": {"batch_sise": 1}}, "Recipe.trainer: has no option 'batch_sise'; got "),
    ({"trainer": {"batch_size": 0}}, "OnPolicyTrainerParams.batch_size: must be a positive integer or None; got 0"),
    ({"trainer": {"hooks": []}}, "Recipe.trainer: has no option 'hooks'; got "),
    ({"policy": {"hiden_sizes": [1]}}, "Recipe.policy: has no option 'hiden_sizes'; got "),
    ({"num_env": 2}, "Recipe: unknown field 'num_env'. Did you mean 'num_envs'?"),
    ({"num_envs": 0}, "Recipe.num_envs: must be a positive integer; got 0 (int)"),
    ({"wrappers": "TimeLimit"}, "Recipe.wrappers: must be a sequence of names of wrappers, or of dicts of a name as"),
    ({"wrappers": ["Timelimit"]}, "Recipe.wrappers: must name one of ActionMask, AtariWrapper, "),
    ({"wrappers": ["os.system"]}, "Recipe.wrappers: must name one of ActionMask, AtariWrapper, "),
    ({"wrappers": [{"max_episode_steps": 3}]}, "Recipe.wrappers: must name one of ActionMask, AtariWrapper, "),
    ({"test_wrappers": [{"wrapper": "TimeLimit"}]},
     "Recipe.test_wrappers: TimeLimit: missing a required argument: 'max_episode_steps'; got "),
    ({"wrappers": [{"wrapper": "AtariWrapper", "stack": 4}]},
     "Recipe.wrappers: AtariWrapper has no argument 'stack'; got "),
    ({"params": {"optimizer": {"known": "os.system"}}}, "ppo/x.params.optimizer: this release of rltrainer knows no"),
    ({"params": {"optimizer": {"live": "f"}}}, "ppo/x.params.optimizer: a recipe holds data only, not 'f'"),
])  # fmt: skip
def test_a_table_is_read_by_the_fields_of_the_dataclasses(change: dict[str, Any], text: str) -> None:
    recipe = read_recipe("ppo", "CartPole-v1", TABLE)
    assert (recipe.params.gamma, recipe.trainer) == (0.9, {"batch_size": None})
    assert error_text(ParamsError, read_recipe, "ppo", "x", TABLE | change).startswith(text)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_name_has_two_meanings(name: str) -> None:
    """`with_fields` finds each by its name alone."""
    groups = any_recipe(name).fields_by_owner().values()
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_envs_are_wrapped_as_the_recipe_says_and_those_of_tests_otherwise() -> None:
    wrappers = ({"wrapper": "TimeLimit", "max_episode_steps": 7}, "TimeAwareObservation")
    recipe = rl.recipes.get("ppo", "CartPole-v1").with_fields(wrappers=list(wrappers), num_envs=2)
    assert recipe.wrappers == wrappers
    assert rl.Recipe.from_json(recipe.to_json()) == recipe
    trainer = recipe.make_trainer()
    stats = trainer.params.training_collector.collect(num_episodes=4)  # type: ignore[attr-defined]  # a collector
    assert stats.lengths.tolist() == [7] * 4
    assert trainer.algorithm.policy.observation_space.shape == (5,)
    other = recipe.with_fields(test_wrappers=("TimeAwareObservation",))
    assert other.make_env(render_mode="rgb_array").render_mode == "rgb_array"
    policy = trainer.algorithm.policy
    assert rl.evaluate_policy(policy, other.make_envs(2, for_tests=True), 4, seed=1).lengths.min() > 7
    assert rl.evaluate_policy(policy, other.make_envs(2), 4, seed=1).lengths.max() == 7
    assert rl.evaluate_policy(policy, recipe.make_env, 4, seed=1).lengths.max() == 7


def test_an_atari_recipe_trains_on_lives_and_is_tested_on_games() -> None:
    pytest.importorskip("ale_py")
    recipe = rl.recipes.get("dqn", "BreakoutNoFrameskip-v4").with_fields(capacity=500, test_step_num_episodes=1)
    trainer = recipe.make_trainer(max_epochs=1)
    collector: Any = trainer.params.training_collector
    assert collector.buffer.nbytes < 500 * 84 * 84 * 1.1  # each frame once
    assert collector.collect(num_steps=300, random=True).lengths.max() < 150
    test: Any = trainer.params.test_collector
    assert test.collect(num_episodes=1, random=True).lengths[0] > 100
