"""The policy that plays and the envs, as users pass them, and the episodes that are played."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from rltrainer.algorithms import Algorithm, load_policy
from rltrainer.collect import Collector, CollectStats
from rltrainer.envs import make_vec
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.field_rules import Flag, NonNegativeInt, PositiveInt, checked
from rltrainer.loggers import RunFolder
from rltrainer.nets import Policy

Player = Policy | Algorithm | str | os.PathLike[str]
"""A policy, an algorithm, or what one was saved to: a file, the folder of a run, a checkpoint."""
Env = gym.Env[Any, Any]
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


def policy_of(owner: str, player: Player) -> Policy:
    """Return the policy that is meant; of the folder of a run that of the best algorithm, read from its file.

    Raises:
        ParamsError: it is none of what a policy is known by.
        CheckpointError: see `rl.load_policy`.
    """
    if isinstance(player, str | os.PathLike) and str(player):
        path = Path(player)
        in_checkpoint = path / "algorithm.safetensors"
        if path.is_dir():
            path = in_checkpoint if in_checkpoint.exists() else RunFolder(path).best
        return load_policy(path)
    if isinstance(player, Algorithm):
        return player.policy
    if isinstance(player, Policy):
        return player
    rule = "must be a policy, an algorithm, or the path of a file or folder that one was saved to"
    raise ParamsError(field_error_text(owner, "policy", rule, player))


@contextmanager
def vector_of(
    owner: str,
    env: Env | str | Callable[[], Env],
    num_envs: int = 1,
    wrappers: Sequence[Callable[[Env], Env]] = (),
    **env_kwargs: Any,
) -> Iterator[VectorEnv]:
    """Make envs of this process, and close them at the end; an env that exists is the only one, and stays open.

    Args:
        owner: who asks, for errors.
        env: an id, a factory, or an env.
        num_envs: how many, of an id or a factory.
        wrappers: see `make_vec`.
        env_kwargs: of an id.

    Raises:
        ParamsError: it is none of these.
    """
    if isinstance(env, gym.Env):
        envs = make_vec(lambda: env, 1, backend="sync", wrappers=wrappers)
        try:
            yield envs
        finally:
            envs.closed = True  # else gymnasium would close the user's env with this one
        return
    if not (isinstance(env, str) and env) and not callable(env):
        rule = "must be a gymnasium id, a factory of envs, or an env"
        raise ParamsError(field_error_text(owner, "env", rule, env))
    options = env_kwargs if isinstance(env, str) else {}
    envs = make_vec(env, num_envs, backend="sync", wrappers=wrappers, **options)
    try:
        yield envs
    finally:
        envs.close()


def play(
    owner: str,
    policy: Policy,
    envs: VectorEnv,
    episodes: int,
    seed: int | None = None,
    explore: bool = False,
    max_episode_steps: int | None = None,
) -> CollectStats:
    """Play episodes: with a seed the same ones each time, and without touching torch's global generator."""
    episodes = checked(owner, "episodes", episodes, PositiveInt)
    seed = checked(owner, "seed", seed, NonNegativeInt | None)
    explore = checked(owner, "explore", explore, Flag)
    limit = checked(owner, "max_episode_steps", max_episode_steps, PositiveInt | None)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):  # a collector draws a seed until it has one
        collector = Collector(policy, envs, max_episode_steps=limit)
    if seed is not None:
        collector.seed(seed)
    return collector.collect(num_episodes=episodes, explore=explore)
