"""How good a policy is: which episodes are played, in which envs, and what is told of them."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError, SpaceError
from tests.fakes import CountingEnv, counting_envs, tiny_actor_critic
from tests.unit.tools.refusals import refuses


def policy() -> rl.ActorCritic:
    rl.seed(1)
    return tiny_actor_critic(counting_envs())


@pytest.mark.parametrize("mode", [*gym.vector.AutoresetMode, "sync"])
def test_each_env_plays_its_share(mode: Any) -> None:
    lengths = (2, 3, 9)
    factories = [functools.partial(CountingEnv, length=length) for length in lengths]
    if mode == "sync":
        made = iter(factories)
        envs = rl.make_vec(lambda: next(made)(), 3, backend="sync")
    else:
        envs = gym.vector.SyncVectorEnv(factories, autoreset_mode=mode)
    stats = rl.evaluate_policy(policy(), envs, num_episodes=7)
    assert sorted(stats.returns.tolist()) == sorted(stats.lengths.tolist()) == [2, 2, 2, 3, 3, 9, 9]
    assert stats.num_collected_episodes == 7
    assert stats.returns_stat is not None
    assert stats.returns_stat.mean == pytest.approx(30 / 7)
    envs.reset()  # a user's envs stay open


def telling(infos: Callable[[Any], dict[str, Any]]) -> type[CountingEnv]:
    """Return a class of envs that tell these infos of themselves."""

    class Tells(CountingEnv):
        def step(self, action: Any) -> Any:
            *result, _ = super().step(action)
            return *result, infos(self)

    return Tells


class Seeded(gym.vector.VectorWrapper):
    """Gives env i the seed i."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.env.reset(seed=list(range(self.num_envs)), options=options)


@pytest.mark.parametrize(("key", "rate"), [("is_success", 0.75), ("success", 0.75), ("win", None)])
def test_success_is_read_without_being_asked_for(key: str, rate: float | None) -> None:
    envs = gym.vector.SyncVectorEnv([telling(lambda env: {key: np.bool_(env.number != 3)})] * 4)
    envs.reset(seed=1)
    stats = rl.evaluate_policy(policy(), Seeded(envs), num_episodes=4)
    assert (stats.success_rate, list(stats.infos)) == (rate, [key] if rate is not None else [])


def test_success_goes_before_what_is_like_it_and_numbers_before_texts() -> None:
    both = telling(lambda env: {"is_success": False, "success": "perhaps", "energy": 2.5})
    stats = rl.evaluate_policy(policy(), both, num_episodes=3, info_keys=["energy"])
    assert (stats.success_rate, stats.info_means) == (0.0, {"energy": 2.5, "is_success": 0.0})


def test_a_policy_an_algorithm_or_what_it_was_saved_to(tmp_path: Path) -> None:
    algorithm = rl.PPO(policy())
    algorithm.save(tmp_path / "algorithm.safetensors")
    folder = rl.RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.save_best(algorithm)
    algorithm.policy.save(tmp_path / "policy.safetensors")
    players: list[Any] = [
        algorithm.policy, algorithm, tmp_path / "algorithm.safetensors", str(tmp_path / "policy.safetensors"),
        tmp_path, folder.path,
    ]  # fmt: skip
    actions = [acted(player) for player in players]
    assert len(actions[0]) == 10
    assert all(each == actions[0] for each in actions)
    assert len(set(actions[0])) == 1 < len(set(acted(algorithm, explore=True)))
    refuses(CheckpointError, "nothing.safetensors", rl.evaluate_policy, tmp_path / "nothing.safetensors", CountingEnv)


def acted(player: Any, **options: Any) -> list[int]:
    """Return the actions of two episodes."""
    seen = []

    class Sees(CountingEnv):
        def step(self, action: Any) -> Any:
            seen.append(int(action))
            return super().step(action)

    rl.evaluate_policy(player, Sees(), num_episodes=2, seed=3, **options)
    return seen


TOLD_SEED = telling(lambda env: {"seeded": env.number})


def numbers(envs: Any, actor: Any = None, **options: Any) -> list[float]:
    """Return which episodes are played."""
    stats = rl.evaluate_policy(actor or policy(), envs, num_episodes=4, info_keys=["seeded"], **options)
    return stats.infos["seeded"].tolist()


def test_with_a_seed_each_call_plays_the_same_episodes() -> None:
    first = numbers(TOLD_SEED, seed=5)
    assert numbers(TOLD_SEED, seed=5) == first != numbers(TOLD_SEED, seed=6)
    envs = rl.make_vec(TOLD_SEED, 2, seed=7)
    assert numbers(envs) == numbers(envs) == numbers(envs, seed=5)
    assert numbers(TOLD_SEED) == numbers(TOLD_SEED)  # `policy` has seeded torch before
    actor = policy()
    assert numbers(TOLD_SEED, actor) != numbers(TOLD_SEED, actor)


def test_nothing_of_the_program_changes() -> None:
    actor, before = policy(), torch.get_rng_state()
    actor.train()
    rl.evaluate_policy(actor, CountingEnv, num_episodes=2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert actor.training


def test_ids_factories_and_envs() -> None:
    made, closed = [], []

    class Watched(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def close(self) -> None:
            closed.append(self)

    assert rl.evaluate_policy(policy(), Watched, num_episodes=12).num_collected_episodes == 12
    assert (len(made), len(closed)) == (10, 10)
    env = Watched()
    rl.evaluate_policy(policy(), env, num_episodes=2)
    assert len(closed) == 10  # the user's stays open
    actor = tiny_actor_critic(rl.make_vec("CartPole-v1", 1))
    assert rl.evaluate_policy(actor, "CartPole-v1", num_episodes=3).lengths.shape == (3,)
    refuses(SpaceError, "Collector.policy.observation_space", rl.evaluate_policy, policy(), "CartPole-v1")
    stats = rl.evaluate_policy(policy(), lambda: CountingEnv(length=10**9), 2, max_episode_steps=4)
    assert stats.lengths.tolist() == [4, 4]
