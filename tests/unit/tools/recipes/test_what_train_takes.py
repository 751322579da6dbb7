"""What `rl.train` takes: vector envs, their factories, own algorithms, buffers, envs without a time limit."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import rltrainer as rl
from benchmarks.bit_flip import BitFlip
from rltrainer.errors import CheckpointError, EnvError, ParamsError
from rltrainer.tools.cli import main
from rltrainer.tools.recipes import recipe as recipes
from tests.fakes import CountingEnv, replay_of
from tests.unit.tools.refusals import refuses

SHORT: dict[str, Any] = {
    "num_env_steps": 64, "collection_step_num_env_steps": 32, "max_epochs": 2, "test_step_num_episodes": 2,
    "show_progress": False, "verbose": False, "hidden_sizes": (8,), "batch_size": 8,
}  # fmt: skip


class MyPPO(rl.PPO):
    """A user's algorithm."""


class MySAC(rl.SAC):
    """A user's algorithm."""


def vector(num_envs: int) -> Any:
    return gym.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")


def test_a_vector_env_trains_without_tests_and_stays_open(tmp_path: Path) -> None:
    envs = vector(4)
    found = rl.train(envs, "ppo", folder=tmp_path, **SHORT)
    assert (found.info.env_step, found.info.best_score, found.recipe.num_envs) == (64, None, 4)  # type: ignore[attr-defined]
    assert found.recipe.name == "ppo/SyncVectorEnv"
    envs.reset()  # a closed one cannot
    longer = rl.resume(found.folder.path, env=envs, max_epochs=3)
    assert longer.info.env_step == 96
    for fields, text in (
        ({"num_envs": 3}, r"Recipe.num_envs: must be 4, as the vector env has; got 3"),
        (
            {"max_episode_steps": 9},
            r"Recipe.wrappers: must be none for a vector env; .* a time limit is a wrapper, too",
        ),
        ({"env_kwargs": {"x": 3}}, r"Recipe.env_kwargs: must be none for a vector env; got \{'x': 3\} \(dict\)"),
    ):
        refuses(ParamsError, text, rl.train, envs, "ppo", folder=tmp_path, **SHORT | fields)
    text = "Recipe.buffer: must be made with the functions of a single env; got 'hindsight'"
    refuses(ParamsError, text, rl.train, envs, "dqn", folder=tmp_path, num_envs=4, buffer="hindsight")


@pytest.mark.parametrize("failure", [ValueError, SystemExit])
def test_a_factory_that_fails_is_named(failure: type[BaseException], tmp_path: Path) -> None:
    def make() -> Any:
        raise failure("no such level")

    text = f"env 0: the factory raised {failure.__name__}: no such level"
    refuses(EnvError, text, rl.train, make, "ppo", folder=tmp_path, **SHORT)


def test_a_factory_of_vector_envs_makes_the_test_envs_too(tmp_path: Path) -> None:
    found = rl.train(partial(vector, 2), folder=tmp_path, **SHORT)
    assert (type(found.algorithm), found.info.env_step, found.recipe.num_envs) == (rl.PPO, 64, 2)  # type: ignore[attr-defined]
    assert found.info.best_score is not None
    assert len(rl.evaluate_policy(found.algorithm, partial(vector, 2), 3).returns) == 3


@pytest.mark.parametrize(("cls", "env"), [(MyPPO, "CartPole-v1"), (MySAC, "Pendulum-v1")])
def test_a_users_algorithm_trains_resumes_and_continues(cls: Any, env: str, tmp_path: Path) -> None:
    found = rl.train(env, cls, folder=tmp_path, **SHORT)
    assert (type(found.algorithm), found.recipe.name) == (cls, f"{cls.__name__}/{env}")
    assert found.recipe.params == cls.params_class()
    refuses(CheckpointError, r"pass algorithm=\.\.\.", rl.resume, found.folder.path)
    assert rl.resume(found.folder.path, algorithm=cls, max_epochs=3).info.env_step == 96
    later = {name: value for name, value in SHORT.items() if name != "hidden_sizes"}
    assert type(rl.train(env, found.algorithm, folder=tmp_path, **later).algorithm) is cls


def test_a_class_of_ours_stands_for_its_name(tmp_path: Path) -> None:
    assert rl.train("CartPole-v1", rl.PPO, folder=tmp_path, **SHORT).recipe.name == "ppo/CartPole-v1"


@pytest.mark.parametrize(("buffer", "cls"), [
    (None, rl.ReplayBuffer), ("prioritized", rl.PrioritizedReplayBuffer),
    (rl.PrioritizedReplayBuffer, rl.PrioritizedReplayBuffer), ("hindsight", rl.HindsightReplayBuffer),
])  # fmt: skip
def test_a_buffer_is_named(buffer: Any, cls: Any) -> None:
    recipe = rl.recipes.for_env(BitFlip, "dqn").with_fields(**SHORT, buffer=buffer)
    trainer: Any = recipe.make_trainer()
    assert type(trainer.buffer) is cls
    trainer.run()
    live = {"env": BitFlip} | ({"buffer": buffer} if isinstance(buffer, type) else {})
    assert rl.Recipe.from_json(recipe.to_json(), **live) == recipe


def test_a_buffer_is_given(tmp_path: Path) -> None:
    envs = rl.make_vec(CountingEnv, 1)
    given = replay_of(envs, 50)
    found = rl.train(CountingEnv, "dqn", buffer=given, folder=tmp_path, **SHORT | {"warmup_num_env_steps": 0})
    assert len(given) == 50
    assert rl.resume(found.folder.path, env=CountingEnv, buffer=given, max_epochs=3).info.env_step == 96
    refuses(ParamsError, "Recipe.buffer: must be None on policy", rl.train, CountingEnv, "ppo", buffer=given)
    refuses(ParamsError, "Recipe.buffer: must be 'hindsight', 'prioritized', or a", rl.train, CountingEnv, buffer="her")


def test_a_buffer_is_an_option_of_the_command(tmp_path: Path) -> None:
    words = ["train", "dqn", "--env", "CartPole-v1", "--folder", str(tmp_path), "--buffer", "prioritized"]
    assert main([*words, "--num-env-steps", "256", "--max-epochs", "1", "--test-step-num-episodes", "1"]) == 0
    assert '"buffer": "prioritized"' in (tmp_path / "dqn_CartPole-v1" / "recipe.json").read_text()


def test_an_episode_ends_where_the_env_has_no_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MAX_TEST_STEPS", 30)
    endless = partial(CountingEnv, 10**9)
    found = rl.train(endless, folder=tmp_path, **SHORT)
    assert found.info.best_score == 30
    assert "its episode was truncated after 30 steps (max_episode_steps)" in caplog.text
    caplog.clear()
    limited = rl.train(endless, folder=tmp_path, max_episode_steps=7, **SHORT)
    assert limited.info.best_score == rl.open_run(limited.folder.path).rows("training")["return"][-1] == 7
    own = rl.train("CartPole-v1", folder=tmp_path, **SHORT)  # which has a limit: 500 steps
    assert own.recipe.max_episode_steps is None
    assert "truncated" not in caplog.text
