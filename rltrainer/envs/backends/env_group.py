"""Single envs that one process steps one after the other: those of `SyncVectorEnv`, or of a worker."""

import copy
import logging
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate

from rltrainer.envs.checks import check_flag, check_info, check_obs, check_reward, describe
from rltrainer.errors import EnvError, ParamsError, RLTrainerError, SpaceError, field_error_text
from rltrainer.spaces import leaf_spaces
from rltrainer.tree import Tree, map_tree
from rltrainer.types import State

Env = gym.Env[Any, Any]
Info = dict[str, Any]
_NOTHING: Info = {}


class EnvGroup:
    """Makes envs, steps them one after the other, and knows in which of them an exception was raised.

    Args:
        num_envs: how many.
        fail: called as `fail(i, error)` with what env i raises in a step or reset; the other envs go on, unless it
            raises.
        first: the index of the first env in the vector env.

    Attributes:
        spaces: observation and action space, once `make` was called.
        current: a list or array of one integer, the env that is being called; -1 before the first.
        reward_shape: of one env's reward, once it was seen: `(A,)` with A agents.
    """

    spaces: tuple[gym.Space[Any], gym.Space[Any]]

    def __init__(self, num_envs: int, fail: Callable[[int, BaseException], None], first: int = 0) -> None:
        self.envs: list[Env] = []
        self.current: Any = [-1]
        self.reward_shape: tuple[int, ...] | None = None
        self._first, self._fail = first, fail
        self._usual_types: set[tuple[type, ...]] = set()  # of rewards, flags and infos that were found right
        # Only for gymnasium's way of gathering infos.
        self._gatherer: gym.vector.VectorEnv[Any, Any, Any] = gym.vector.VectorEnv()
        self._gatherer.num_envs = num_envs

    def make(self, factories: Sequence[Callable[[], Env]]) -> None:
        """Make all envs, one with each factory, which is not kept: what holds it may not be pickled.

        Raises:
            EnvError: a factory raises, or returns something else than a new env.
            SpaceError: an env's spaces differ from the first one's, or are not supported.
        """
        for i, factory in enumerate(factories, self._first):
            self._make(i, factory)
        self._obs_spaces = leaf_spaces(self.spaces[0])
        only = self._obs_spaces  # where an observation is an array, it is looked at in place
        self._usual_obs = (only.shape, only.dtype) if isinstance(only, gym.spaces.Box) else (None, None)
        self._action_space = batch_space(self.spaces[1], len(factories))

    def remake(self, i: int, factory: Callable[[], Env]) -> None:
        """Replace env i by a new one; raises as `make` does."""
        _close(i, self.envs[i - self._first])
        self._make(i, factory)

    def step(self, obs: Tree, actions: Any, skipped: Container[int]) -> tuple[list[Any], list[Any], list[Any], Any]:
        """Step envs, and check what they return against their spaces, rewards and flags.

        Args:
            obs: arrays [N, ...] for the observations of all envs of the vector env.
            actions: a batch of actions of these envs.
            skipped: the envs that are left out.

        Returns:
            rewards, terminated, truncated and infos; those of envs that were left out or failed are zeros, False, {}.
        """
        if isinstance(actions, dict | tuple):  # the rows of an array need no help
            actions = list(iterate(self._action_space, actions))
        if not hasattr(actions, "__len__") or getattr(actions, "ndim", 1) == 0 or len(actions) != len(self.envs):
            rule = f"must hold one action per env ({len(self.envs)})"
            raise ParamsError(field_error_text("SyncVectorEnv.step", "actions", rule, actions))
        first, current, num_envs = self._first, self.current, len(self.envs)
        (shape, dtype), known, is_flat = self._usual_obs, self._usual_types, type(obs) is np.ndarray
        rewards: list[Any] = [np.zeros(self.reward_shape) if self.reward_shape else 0.0] * num_envs
        terminated, truncated, infos = [False] * num_envs, [False] * num_envs, [_NOTHING] * num_envs
        for j, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            i = first + j
            if i in skipped:
                continue
            current[0] = i
            try:
                env_obs, reward, ended, cut, info = env.step(action)
                # NumPy would broadcast another shape, and take texts for numbers and flags.
                if type(env_obs) is not np.ndarray or env_obs.shape != shape or env_obs.dtype != dtype:
                    check_obs(f"env {i} obs", self._obs_spaces, env_obs)
                if (type(reward), type(ended), type(cut), type(info)) not in known:
                    self._check_outcome(i, reward, ended, cut, info)
                if is_flat:
                    obs[i] = env_obs
                else:
                    write_row(obs, i, env_obs)
                rewards[j] = np.array(reward, np.float64) if self.reward_shape else float(reward)
                terminated[j], truncated[j], infos[j] = ended, cut, info
            except BaseException as error:
                self._fail(i, error)
        return rewards, terminated, truncated, infos

    def reset(self, obs: Tree, seeds: Iterable[tuple[int, int | None]], options: Info | None) -> list[Info]:
        """Reset envs, given as (index, seed), and return the infos of all, empty for those that were not."""
        infos: list[Info] = [{} for _ in self.envs]
        for i, seed in seeds:
            self.current[0] = i
            try:
                env_obs, info = self.envs[i - self._first].reset(seed=seed, options=copy.deepcopy(options))
                check_obs(f"env {i} obs", self._obs_spaces, env_obs)
                write_row(obs, i, env_obs)
                check_info(f"env {i} info", info)
                infos[i - self._first] = info
            except BaseException as error:
                self._fail(i, error)
        return infos

    def gather(self, infos: Sequence[Info]) -> Info:
        """Return infos, one per env, as gymnasium's vector envs do."""
        gathered: Info = {}
        for j, info in enumerate(infos):
            if info:
                gathered = self._gatherer._add_info(gathered, info, j)
        return gathered

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call each env's method of this name, its wrappers' included, or read its attribute."""
        values = []
        for i, env in enumerate(self.envs, self._first):
            self.current[0] = i
            value = env.get_wrapper_attr(name)
            values.append(value(*args, **kwargs) if callable(value) else value)
        return values

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set each env's attribute to its value."""
        for i, (env, value) in enumerate(zip(self.envs, values, strict=True), self._first):
            self.current[0] = i
            env.set_wrapper_attr(name, value)

    @property
    def are_saveable(self) -> bool:
        """Tell whether each env can save and load its state."""
        return all(isinstance(env, SaveableEnv) for env in self.envs)

    def load_states(self, states: Sequence[State]) -> None:
        """Let each env load its state."""
        for i, (env, state) in enumerate(zip(self.envs, states, strict=True), self._first):
            self.current[0] = i
            try:
                env.load_state_dict(state)  # type: ignore[attr-defined]  # of a `SaveableEnv`
            except BaseException as error:
                self._fail(i, error)

    def close(self) -> None:
        """Close every env; one that fails is logged and does not keep the others open."""
        for i, env in enumerate(self.envs, self._first):
            _close(i, env)

    def _make(self, i: int, factory: Callable[[], Env]) -> None:
        self.current[0] = i
        try:
            env = factory()
        except RLTrainerError:
            raise
        except Exception as error:
            hint = ". A factory is called without arguments: lambda: MyEnv(...)" if "argument" in str(error) else ""
            raise EnvError(f"env {i}: the factory raised {type(error).__name__}: {error}{hint}") from error
        if not isinstance(env, gym.Env):
            has_agents = callable(getattr(env, "observation_space", None))
            hint = "rl.JointEnv or rl.AgentsAsEnvs takes several agents" if has_agents else "Does it lack a return?"
            raise EnvError(f"env {i}: the factory must return a gymnasium.Env, got {describe(env)}. {hint}")
        for j, other in enumerate(self.envs, self._first):
            if env is other:
                raise EnvError(f"env {i}: the factory returned the same object as for env {j}; it must make a new env")
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gym.Space):
                rule, hint = (
                    f"must be a gymnasium.Space; got {describe(getattr(env, name, None))}",
                    "Set it in __init__.",
                )
                raise SpaceError(f"env {i} {name}: {rule}. {hint}")
        spaces = env.observation_space, env.action_space
        if not self.envs:
            self.spaces = spaces
        self.envs[i - self._first : i - self._first + 1] = [env]
        check_same_spaces(i, spaces, self._first, self.spaces)

    def _check_outcome(self, i: int, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Check all but the observation of a step; types of numbers and flags that pass are known from then on."""
        check_reward(f"env {i} reward", reward)
        check_flag(f"env {i} terminated", terminated)
        check_flag(f"env {i} truncated", truncated)
        check_info(f"env {i} info", info)
        if self.reward_shape is None:
            self.reward_shape = np.shape(reward)
        check_reward_shape(i, reward, self._first, self.reward_shape)
        if all(isinstance(value, int | float | np.generic) for value in (reward, terminated, truncated)):
            self._usual_types.add((type(reward), type(terminated), type(truncated), type(info)))


def check_same_spaces(i: int, found: tuple[Any, Any], first: int, expected: tuple[Any, Any]) -> None:
    """Raise a `SpaceError` unless env i has the same observation and action space as env `first`."""
    for name, here, there in zip(("observation_space", "action_space"), expected, found, strict=True):
        if here != there:
            raise SpaceError(f"env {i} {name}: expected {here}, as env {first} has, got {there}")


def check_reward_shape(i: int, reward: Any, first: int, expected: tuple[int, ...] | None) -> None:
    """Raise a `SpaceError` unless env i rewards as many agents as env `first`."""
    if np.shape(reward) != expected:
        raise SpaceError(f"env {i} reward: expected shape {expected}, as env {first} has, got {describe(reward)}")


def failure_text(i: int, when: str, name: str, message: str) -> str:
    """Say that env i raised an exception of this type name and message."""
    hint = ""
    if "to unpack" in message or "cannot unpack" in message:
        of_step = "step returns (obs, reward, terminated, truncated, info)"
        hint = f". {of_step if when.startswith('step') else 'reset returns (obs, info)'} since gymnasium 0.26"
    elif "unexpected keyword argument" in message and when.startswith("reset"):
        hint = ". Write def reset(self, *, seed=None, options=None)"
    return f"env {i} failed during {when}: {name}: {message}{hint}"


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


def copy_rows(target: Tree, source: Tree, rows: Iterable[int]) -> None:
    """Copy some envs' observations from arrays [N, ...] into others."""
    for i in rows:
        write_row(target, i, map_tree(lambda leaf, i=i: leaf[i], source))


def _close(i: int, env: Env) -> None:
    try:
        env.close()
    except (Exception, SystemExit) as error:
        logging.getLogger("rltrainer").warning("env %d failed during close: %r", i, error)


@runtime_checkable
class SaveableEnv(Protocol):
    """An env, or a vector env as a whole, whose state can be saved and loaded.

    A run that is resumed loads it, instead of repeating the actions of the episode. What is asked for it is the vector
    env, as a collector got it; or else each single env of `make_vec`'s backends `sync` and `workers`: its outermost
    wrapper, which speaks for what it wraps, time limits and frame stacks too.

    A state is data: tensors, numbers, strings, booleans and None, in dicts with string keys and in lists. It holds all
    that decides what comes next, the state of random generators too, but not the last observation.
    """

    def state_dict(self) -> State:
        """Return the state; it must not change when the env goes on."""

    def load_state_dict(self, state: State) -> None:
        """Go where a state was; the env was reset before."""
