"""Envs that two vector envs have in common, however they are wrapped."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym

ANY_ENV = (gym.Env, gym.vector.VectorEnv)


def share_an_env(one: gym.vector.VectorEnv[Any, Any, Any], other: gym.vector.VectorEnv[Any, Any, Any]) -> bool:
    """Return whether a step or reset of the one would move the other."""
    mine = {id(env) for env in _all_envs(one)}
    return any(id(env) in mine for env in _all_envs(other))


def _all_envs(envs: object) -> Iterator[object]:
    """Yield an env and all envs that it holds: what a wrapper wraps, the single envs of a vector."""
    seen: set[int] = set()
    todo = [envs]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, ANY_ENV):
            yield value
            todo += vars(value).values()
        elif isinstance(value, list | tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            todo += [item for item in items if isinstance(item, ANY_ENV)]
