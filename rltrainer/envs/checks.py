"""Checks of what an env returned against its spaces; a text names env and leaf, what was expected and what came."""

import signal
import traceback
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rltrainer.errors import SpaceError
from rltrainer.processes.program import Failure
from rltrainer.spaces import leaf_shape
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import is_int


class StepCheck:
    """Checks the results of a vector env's steps: the first one, and later ones of another shape or dtype (0.6 us)."""

    # NumPy would broadcast another shape, and take texts and floats for flags, without an error.

    def __init__(self, space: Tree, num_envs: int) -> None:
        self._space, self._batch = space, (num_envs,)
        self._looks: Any = None  # of the last step that was checked
        self._reward_shape: tuple[int, ...] | None = None

    def __call__(self, obs: Tree, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Raise a `SpaceError` that names what is wrong."""
        try:
            of_rest = reward.shape, reward.dtype, terminated.shape, terminated.dtype, truncated.shape, truncated.dtype
            looks = _looks_of(obs), of_rest
            if looks == self._looks:
                return
        except AttributeError:
            looks = None
        check_info("vector env info", info)
        check_obs("vector env obs", self._space, obs, self._batch)
        check_reward("vector env reward", reward, self._batch)
        check_flag("vector env terminated", terminated, self._batch)
        check_flag("vector env truncated", truncated, self._batch)
        if self._reward_shape not in (None, shape_of(reward)):
            raise SpaceError(f"vector env reward: expected shape {self._reward_shape}, got {describe(reward)}")
        self._looks, self._reward_shape = looks, shape_of(reward)


def check_obs(who: str, space: Tree, obs: Tree, batch: tuple[int, ...] = ()) -> None:
    """Raise a `SpaceError` unless observations [*batch, ...] fit leaf spaces; choices may have any integer dtype."""
    # Texts start with `who`, such as `env 3 obs`; `batch` are axes in front of the space's shape, or none.
    if not _is_usual(space, obs, batch):
        _check_parts(who, space, obs, batch)


def _check_parts(who: str, space: Tree, obs: Tree, batch: tuple[int, ...]) -> None:
    if isinstance(space, dict):
        if not isinstance(obs, dict) or set(obs) != set(space):
            raise SpaceError(f"{who}: expected a dict with the keys {list(space)}, got {describe(obs)}")
        for key, part in space.items():
            _check_parts(f'{who}["{key}"]', part, obs[key], batch)
    elif isinstance(space, tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space):
            raise SpaceError(f"{who}: expected a tuple of {len(space)}, got {describe(obs)}")
        for i, part in enumerate(space):
            _check_parts(f"{who}[{i}]", part, obs[i], batch)
    else:
        shape = (*batch, *leaf_shape(space))
        if shape_of(obs) != shape or not _fits_dtype(space, _dtype_name(obs)):
            hint = "the space must be declared with the shape that reset and step return"
            if shape_of(obs) == shape:
                hint = "the dtype differs: cast it, or declare the space with it"
            elif isinstance(obs, list | float | tuple):
                hint = "return a NumPy array of the space's dtype"
            raise SpaceError(f"{who}: expected {space.dtype} {shape}, got {describe(obs)} ({hint})")


def check_flag(who: str, flag: Any, batch: tuple[int, ...] = ()) -> None:
    """Raise a `SpaceError` unless `terminated` or `truncated` is bool, of shape `batch`."""
    is_scalar = not batch and isinstance(flag, bool)
    if not is_scalar and (shape_of(flag) != batch or _dtype_name(flag) != "bool"):
        expected = f"bool {batch}" if batch else "bool"
        raise SpaceError(f"{who}: expected {expected}, got {describe(flag)} (write bool(...) where the env returns it)")


def check_info(who: str, info: Any) -> None:
    """Raise a `SpaceError` unless an info is a dict."""
    if not isinstance(info, dict):
        hint = "leave out DictInfoToList" if isinstance(info, list) else "an empty one, {}, will do"
        raise SpaceError(f"{who}: expected a dict, got {describe(info)} ({hint})")


def check_reward(who: str, reward: Any, batch: tuple[int, ...] = ()) -> None:
    """Raise a `SpaceError` unless a reward is numbers of shape `batch`, or one per agent `(*batch, num_agents)`."""
    is_plain_number = isinstance(reward, int | float)
    shape = () if is_plain_number else shape_of(reward)
    is_number = is_plain_number or _dtype_name(reward).startswith(("float", "bfloat", "int", "uint", "bool"))
    if not is_number or shape is None or shape[: len(batch)] != batch or len(shape) > len(batch) + 1:
        expected = f"numbers {batch}, or {(*batch, 'num_agents')}" if batch else "a number, or one per agent"
        hint = (
            "does the env compute one in every case?" if reward is None else "write float(...) where the env returns it"
        )
        raise SpaceError(f"{who}: expected {expected}, got {describe(reward)} ({hint})")


def check_same_spaces(i: int, found: tuple[Any, Any], first: int, expected: tuple[Any, Any]) -> None:
    """Raise a `SpaceError` unless env i has the same observation and action space as env `first`."""
    for name, here, there in zip(("observation_space", "action_space"), expected, found, strict=True):
        if here != there:
            raise SpaceError(f"env {i} {name}: expected {here}, as env {first} has, got {there}")


def check_reward_shape(i: int, reward: Any, first: int, expected: tuple[int, ...] | None) -> None:
    """Raise a `SpaceError` unless env i rewards as many agents as env `first`."""
    if np.shape(reward) != expected:
        raise SpaceError(f"env {i} reward: expected shape {expected}, as env {first} has, got {describe(reward)}")


def failure_text(i: int, when: str, failure: Failure) -> str:
    """Say that env i raised an exception."""
    name, message = failure.type_name, failure.message
    hint = ""  # for envs that were written for gym, before gymnasium
    if "to unpack" in message or "cannot unpack" in message:
        of_step = "step returns (obs, reward, terminated, truncated, info)"
        hint = f". {of_step if when.startswith('step') else 'reset returns (obs, info)'} since gymnasium 0.26"
    elif "unexpected keyword argument" in message and when.startswith("reset"):
        hint = ". Write def reset(self, *, seed=None, options=None)"
    return f"env {i} failed during {when}: {name}: {message}{hint}"


def is_of_signal(error: BaseException) -> bool:
    """Return whether the program's own handler of a signal has exited, whatever ran at that time."""
    codes = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    return isinstance(error, SystemExit) and any(f.f_code in codes for f, _ in traceback.walk_tb(error.__traceback__))


def describe(value: Any) -> str:
    """Say in a few words what a value is: `uint8 (84, 84, 3)`, `a tuple of 2`, `NoneType None`."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return f"{_dtype_name(value)} {shape_of(value)}"
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:40] + '...'}"


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, tensor or plain integer, else None."""
    if is_int(value):
        return ()
    return tuple(value.shape) if isinstance(value, np.ndarray | np.generic | torch.Tensor) else None


def _dtype_name(value: Any) -> str:
    if is_int(value):
        return "int64"
    return str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")


def _fits_dtype(space: Any, name: str) -> bool:
    if isinstance(space, spaces.Box):
        return name == str(space.dtype)
    return name.startswith(("int", "uint")) or (isinstance(space, spaces.MultiBinary) and name == "bool")


def _is_usual(space: Tree, obs: Tree, batch: tuple[int, ...]) -> bool:
    """Return whether an observation is made as most are: a quick check for each step; others may fit, too."""
    if isinstance(space, dict):
        is_same = type(obs) is dict and obs.keys() == space.keys()
        return is_same and all(_is_usual(part, obs[key], batch) for key, part in space.items())
    if isinstance(space, tuple):
        is_same = type(obs) is tuple and len(obs) == len(space)
        return is_same and all(_is_usual(part, item, batch) for part, item in zip(space, obs, strict=True))
    if type(obs) is np.ndarray:
        return bool(obs.dtype == space.dtype) and obs.shape == (*batch, *leaf_shape(space))
    return isinstance(space, spaces.Discrete) and type(obs) in (int, np.int64) and not batch


def _looks_of(tree: Tree) -> Any:
    """Return the keys of a tree and the shape and dtype of each leaf, in a form that can be compared."""
    if isinstance(tree, dict):
        return {key: _looks_of(part) for key, part in tree.items()}
    return tuple(map(_looks_of, tree)) if isinstance(tree, tuple) else (tree.shape, tree.dtype)
