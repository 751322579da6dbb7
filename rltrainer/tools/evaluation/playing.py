"""The envs in which a policy plays, as users pass them, and the episodes that are played."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import torch

from rltrainer.collect import Collector, CollectStats
from rltrainer.envs import AgentsAsEnvs, make_vec
from rltrainer.envs.agents.agents_as_envs import AGENT
from rltrainer.envs.agents.parallel_env import ParallelEnv, is_parallel
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets import Policy
from rltrainer.validation.field_rules import Flag, NonNegativeInt, PositiveInt, checked

Env = gym.Env[Any, Any]
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


@contextmanager
def vector_of(
    owner: str,
    env: Env | ParallelEnv | str | Callable[[], Env | ParallelEnv],
    player: Policy,
    num_envs: int = 1,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    **env_kwargs: Any,
) -> Iterator[VectorEnv]:
    """Make envs of this process, and close them at the end; an env that exists is the only one, and stays open.

    Of parallel envs each agent is a row.

    Args:
        owner: who asks, for errors.
        env: an id, a factory, or an env.
        player: the policy that shall play there.
        num_envs: how many, of an id or a factory.
        wrappers: see `make_vec`.
        env_kwargs: of an id.

    Raises:
        ParamsError: it is none of these.
    """
    is_made = isinstance(env, gym.Env) or is_parallel(env)
    if not is_made and not (isinstance(env, str) and env) and not callable(env):
        rule = "must be a gymnasium id, a factory of envs, or an env"
        hint = "Pass what makes one copy: lambda: parallel_env()." if isinstance(env, AgentsAsEnvs) else ""
        raise ParamsError(field_error_text(owner, "env", rule, env, hint))
    make: Any = env
    if is_made:
        make, num_envs = (lambda: env), 1
    first, make = _looked_at(make)
    if is_parallel(first):
        agent_id = AGENT in _parts(player.observation_space) and AGENT not in _parts(
            first.observation_space(first.possible_agents[0])
        )
        envs: VectorEnv = AgentsAsEnvs(lambda: _wrapped(make(), wrappers), num_envs, agent_id=agent_id)
    else:
        options = env_kwargs if isinstance(env, str) else {}
        envs = make_vec(make, num_envs, backend="sync", wrappers=wrappers, **options)
    try:
        yield envs
    finally:
        if is_made:
            envs.closed = True  # else gymnasium would close the user's env with this one
        else:
            envs.close()


def _looked_at(make: Any) -> tuple[Any, Any]:
    """Return the first env of a factory, and a factory that returns that one first; None where there is none.

    What goes wrong goes wrong again, and is told, when the envs are made.
    """
    if isinstance(make, str):
        return None, make
    try:
        first = make()
    except Exception:
        return None, make
    if not is_parallel(first) and not isinstance(first, gym.Env):
        return None, make
    waiting = [first]
    return first, lambda: waiting.pop() if waiting else make()


def _wrapped(env: Any, wrappers: Sequence[Callable[[Any], Any]]) -> Any:
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _parts(space: Any) -> Any:
    return getattr(space, "spaces", ())


def play(
    owner: str,
    policy: Policy,
    envs: VectorEnv,
    episodes: int,
    seed: int | None = None,
    explore: bool = False,
    max_episode_steps: int | None = None,
    per_env: int = 1,
) -> CollectStats:
    """Play episodes: with a seed the same ones each time, and without touching torch's global generator.

    Their number is that of each of `per_env` rows.
    """
    episodes = checked(owner, "episodes", episodes, PositiveInt)
    seed = checked(owner, "seed", seed, NonNegativeInt | None)
    explore = checked(owner, "explore", explore, Flag)
    limit = checked(owner, "max_episode_steps", max_episode_steps, PositiveInt | None)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):  # a collector draws a seed until it has one
        collector = Collector(policy, envs, max_episode_steps=limit)
    if seed is not None:
        collector.seed(seed)
    return collector.collect(num_episodes=episodes * per_env, explore=explore)
