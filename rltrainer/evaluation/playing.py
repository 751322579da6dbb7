"""The envs in which a policy plays, as users pass them, and the episodes that are played."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import torch

from rltrainer.collect import Collector, CollectStats
from rltrainer.envs import make_vec
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.field_rules import Flag, NonNegativeInt, PositiveInt, checked
from rltrainer.nets import Policy

Env = gym.Env[Any, Any]
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


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
