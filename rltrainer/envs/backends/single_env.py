"""What a vector env does with each of its single envs, whether in this process or in a worker."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import iterate

from rltrainer.envs.adapter.checks import check_flag, check_obs, check_reward, describe
from rltrainer.errors import EnvError, RLTrainerError, SpaceError
from rltrainer.tree import Tree

Env = gym.Env[Any, Any]


def make_env(i: int, factory: Callable[[], Env]) -> Env:
    """Call the factory of env i.

    Raises:
        EnvError: it raises, or returns something else than an env.
    """
    try:
        env = factory()
    except RLTrainerError:
        raise
    except Exception as error:
        raise EnvError(f"env {i}: the factory raised {type(error).__name__}: {error}") from error
    if not isinstance(env, gym.Env):
        raise EnvError(f"env {i}: the factory must return a gymnasium.Env, got {describe(env)}")
    return env


def check_is_new(i: int, env: Env, others: Iterable[Env], first: int = 0) -> None:
    """Check that a factory did not return an env that it had returned before, for env `first` and the following.

    Raises:
        EnvError: it did.
    """
    for j, other in enumerate(others, first):
        if env is other:
            raise EnvError(f"env {i}: the factory returned the same object as for env {j}; it must make a new env")


def check_same_spaces(i: int, found: tuple[Any, Any], first: int, expected: tuple[Any, Any]) -> None:
    """Check that env i has the same observation and action space as env `first`.

    Raises:
        SpaceError: it has not.
    """
    for name, here, there in zip(("observation_space", "action_space"), expected, found, strict=True):
        if here != there:
            raise SpaceError(f"env {i} {name}: expected {here}, as env {first} has, got {there}")


def check_step(i: int, spaces: Tree, obs: Tree, reward: Any, terminated: Any, truncated: Any) -> None:
    """Check what the first step of env i returned.

    Raises:
        SpaceError: something else than an observation of these spaces, a number and two bools.
    """
    check_obs(f"env {i} obs", spaces, obs)
    check_reward(f"env {i} reward", reward)
    check_flag(f"env {i} terminated", terminated)
    check_flag(f"env {i} truncated", truncated)


def check_reward_shape(i: int, reward: Any, first: int, expected: tuple[int, ...] | None) -> None:
    """Check that env i rewards as many agents as env `first`.

    Raises:
        SpaceError: it does not.
    """
    if np.shape(reward) != expected:
        raise SpaceError(f"env {i} reward: expected shape {expected}, as env {first} has, got {describe(reward)}")


def failure_text(i: int, when: str, name: str, message: str) -> str:
    """Say that env i raised an exception of this type name and message."""
    return f"env {i} failed during {when}: {name}: {message}"


def split_actions(space: gym.Space[Any], actions: Any) -> Iterable[Any]:
    """Split a batch of actions; the rows of an array need no help."""
    return iterate(space, actions) if isinstance(actions, dict | tuple) else actions


def write_row(arrays: Tree, i: int, value: Tree) -> None:
    """Write one env's observation; called for each env at each step, hence no generic walk over the tree."""
    if isinstance(arrays, np.ndarray):
        arrays[i] = value
    elif isinstance(arrays, dict):
        for key, part in arrays.items():
            write_row(part, i, value[key])
    else:
        for part, item in zip(arrays, value, strict=True):
            write_row(part, i, item)


def call_env(env: Env, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an env's method of this name, its wrappers' included, or read its attribute."""
    value = env.get_wrapper_attr(name)
    return value(*args, **kwargs) if callable(value) else value


def close_env(i: int, env: Env) -> None:
    """Close env i; what it raises is logged."""
    try:
        env.close()
    except Exception as error:
        logging.getLogger("rltrainer").warning("env %d failed during close: %r", i, error)
