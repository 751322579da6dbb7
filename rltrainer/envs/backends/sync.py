"""Our in-process vector env: it steps its envs one after the other, and names the one that fails."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import iterate

from rltrainer.envs.backends.masked_resets import Env, MaskedVectorEnv, SaveableEnv, StepOutcome, copy_rows, write_row
from rltrainer.envs.checks import (
    check_flag,
    check_info,
    check_obs,
    check_reward,
    check_reward_shape,
    check_same_spaces,
    describe,
    failure_text,
    is_of_signal,
)
from rltrainer.errors import NOT_OF_ENV, EnvError, RLTrainerError, SpaceError
from rltrainer.processes.program import Failure
from rltrainer.tree import Tree, map_tree
from rltrainer.types import State

Info = dict[str, Any]
_NOTHING: Info = {}


class SyncVectorEnv(MaskedVectorEnv):
    """Steps N envs in this process; a worker process steps its share of envs with one.

    Each factory returns a new env, all with equal spaces; else it raises an `EnvError` or a `SpaceError`.
    """

    # In a worker, `first` is the index of its first env, and the array `current` holds the index of the env that is
    # being called. There an env's exception is raised as it is, because the parent names the env.
    def __init__(
        self, factories: Sequence[Callable[[], Env]], seed: int | None = None, *, first: int = 0, current: Any = None
    ) -> None:
        super().__init__(len(factories), seed)
        self.envs: list[Env] = []
        self.memory: Tree | None = None  # arrays [N, ...] for all observations; None makes new ones at each call
        self._first, self._names_failures = first, current is None
        self._current = [-1] if current is None else current
        self._reward_shape: tuple[int, ...] | None = None  # `(A,)` with A agents, once it was seen
        self._usual_types: set[tuple[type, ...]] = set()  # of rewards, flags and infos that passed the checks
        try:
            for number, factory in enumerate(factories, first):  # not kept: they may hold what cannot be pickled
                self._make(number, factory)
            env = self.envs[0]
            self._declare((env.observation_space, env.action_space), env.metadata, env.render_mode)
            self.are_saveable = all(isinstance(env, SaveableEnv) for env in self.envs)
        except BaseException:
            self.close_extras()
            raise
        only = self._spaces  # where an observation is one array, it is checked in place
        self._usual_obs = (only.shape, only.dtype) if isinstance(only, gym.spaces.Box) else (None, None)

    def _reset(self, due: dict[int, int | None], options: Info | None) -> tuple[Tree, Info]:
        obs = map_tree(np.copy, self._obs) if self.memory is None else self.memory
        infos: list[Info] = [_NOTHING] * self.num_envs
        try:
            for i, seed in due.items():
                number = self._current[0] = self._first + i
                env_obs, infos[i] = self.envs[i].reset(seed=seed, options=copy.deepcopy(options))
                check_obs(f"env {number} obs", self._spaces, env_obs)
                write_row(obs, i, env_obs)
                check_info(f"env {number} info", infos[i])
        except BaseException as error:
            self._fail(error)
        return obs, self._gathered(infos)

    def step(self, actions: Any) -> StepOutcome:
        """Step every env that is not parked; other actions are a `ParamsError`. See `MaskedVectorEnv.step`."""
        self._begin_step()
        if isinstance(actions, dict | tuple):  # the rows of an array need no help
            actions = list(iterate(self.action_space, actions))
        if not hasattr(actions, "__len__") or getattr(actions, "ndim", 1) == 0 or len(actions) != self.num_envs:
            self._raise_invalid("step", "actions", f"must hold one action per env ({self.num_envs})", actions)
        first, current, parked, num_envs = self._first, self._current, self._parked, self.num_envs
        if (obs := self.memory) is None:
            obs = map_tree(np.empty_like, self._obs)
            if parked:
                copy_rows(obs, self._obs, parked)
        (shape, dtype), known, is_flat = self._usual_obs, self._usual_types, type(obs) is np.ndarray
        rewards: list[Any] = [0.0] * num_envs
        terminated, truncated, infos = [False] * num_envs, [False] * num_envs, [_NOTHING] * num_envs
        try:
            for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
                if i in parked:
                    continue
                current[0] = first + i
                env_obs, reward, ended, cut, info = env.step(action)
                # NumPy would broadcast another shape, and take texts for numbers and flags.
                if type(env_obs) is not np.ndarray or env_obs.shape != shape or env_obs.dtype != dtype:
                    check_obs(f"env {first + i} obs", self._spaces, env_obs)
                if (type(reward), type(ended), type(cut), type(info)) not in known:
                    self._check_outcome(first + i, reward, ended, cut, info)
                if is_flat:
                    obs[i] = env_obs
                else:
                    write_row(obs, i, env_obs)
                rewards[i] = np.array(reward, np.float64) if self._reward_shape else float(reward)
                terminated[i], truncated[i], infos[i] = ended, cut, info
        except BaseException as error:
            self._fail(error)
        if self._reward_shape:  # of envs that were left out too
            rewards = [np.broadcast_to(reward, self._reward_shape) for reward in rewards]
        flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return self._end_step(obs, np.array(rewards, np.float64), *flags, self._gathered(infos) if any(infos) else {})

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, its wrappers' included, or read its attribute."""
        values = (env.get_wrapper_attr(name) for env in self._called())
        return tuple(value(*args, **kwargs) if callable(value) else value for value in values)

    def _set_each(self, name: str, values: Sequence[Any]) -> None:
        for env, value in zip(self._called(), values, strict=True):
            env.set_wrapper_attr(name, value)

    def load_states(self, states: Sequence[State]) -> None:
        """Let each env, which was reset before, load its state."""
        self._when = "load_state_dict"
        try:
            for env, state in zip(self._called(), states, strict=True):
                env.load_state_dict(state)  # type: ignore[attr-defined]  # of a `SaveableEnv`
        except BaseException as error:
            self._fail(error)

    def _called(self) -> Iterator[Env]:
        """Yield each env, and note that it is being called."""
        for number, env in enumerate(self.envs, self._first):
            self._current[0] = number
            yield env

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env; one that fails is logged and does not keep the others open."""
        for i, env in enumerate(self.envs, self._first):
            try:
                env.close()
            except (Exception, SystemExit) as error:
                logging.getLogger("rltrainer").warning("env %d failed during close: %r", i, error)

    def _make(self, number: int, factory: Callable[[], Env]) -> None:
        self._current[0] = number
        try:
            env = factory()
        except RLTrainerError:
            raise
        except (Exception, SystemExit) as error:
            text = Failure.of(error).message
            hint = ". A factory is called without arguments: lambda: MyEnv(...)" if "argument" in text else ""
            raise EnvError(f"env {number}: the factory raised {type(error).__name__}: {text}{hint}") from error
        if not isinstance(env, gym.Env):
            has_agents = callable(getattr(env, "observation_space", None))
            hint = "rl.JointEnv or rl.AgentsAsEnvs takes several agents" if has_agents else "Does it lack a return?"
            raise EnvError(f"env {number}: the factory must return a gymnasium.Env, got {describe(env)}. {hint}")
        for j, other in enumerate(self.envs, self._first):
            if env is other:
                text = f"the factory returned the same object as for env {j}; it must make a new env"
                raise EnvError(f"env {number}: {text}")
        for name in ("observation_space", "action_space"):
            if not isinstance(found := getattr(env, name, None), gym.Space):
                rule = f"must be a gymnasium.Space; got {describe(found)}"
                raise SpaceError(f"env {number} {name}: {rule}. Set it in __init__.")
        self.envs.append(env)
        expected = self.envs[0].observation_space, self.envs[0].action_space
        check_same_spaces(number, (env.observation_space, env.action_space), self._first, expected)

    def _check_outcome(self, i: int, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Check all but the observation of a step; types of numbers and flags that pass are known from then on."""
        check_reward(f"env {i} reward", reward)
        check_flag(f"env {i} terminated", terminated)
        check_flag(f"env {i} truncated", truncated)
        check_info(f"env {i} info", info)
        if self._reward_shape is None:
            self._reward_shape = np.shape(reward)
        check_reward_shape(i, reward, self._first, self._reward_shape)
        if all(isinstance(value, int | float | np.generic) for value in (reward, terminated, truncated)):
            self._usual_types.add((type(reward), type(terminated), type(truncated), type(info)))

    def _gathered(self, infos: Sequence[Info]) -> Info:
        """Return infos, one per env, as gymnasium's vector envs do: `x` [N], and which envs have it, `_x` [N]."""
        gathered: Info = {}
        for i, info in enumerate(infos):
            if info:
                try:
                    _gather(gathered, info, i, self.num_envs)
                except RecursionError:
                    raise SpaceError(f"env {self._first + i} info: its dicts are nested too deeply") from None
        return gathered

    def _fail(self, error: BaseException) -> NoReturn:
        is_of_env = isinstance(error, Exception | SystemExit) and not isinstance(error, NOT_OF_ENV)
        if not is_of_env or not self._names_failures or is_of_signal(error):
            raise error
        raise EnvError(failure_text(self._current[0], self._when, Failure.of(error))) from error


def _gather(gathered: Info, info: Info, i: int, num_envs: int) -> None:
    for key, value in info.items():
        if isinstance(value, dict) and key != "final_obs":
            _gather(gathered.setdefault(key, {}), value, i, num_envs)
        else:
            if key not in gathered:
                if key == "final_obs":  # as a rule only some envs have one
                    gathered[key] = np.full(num_envs, None)
                elif isinstance(value, np.ndarray):
                    gathered[key] = np.zeros((num_envs, *value.shape), value.dtype)
                else:
                    is_number = type(value) in (int, float, bool) or isinstance(value, np.number)
                    gathered[key] = np.zeros(num_envs, type(value)) if is_number else np.full(num_envs, None)
            gathered[key][i] = value
        gathered.setdefault(f"_{key}", np.zeros(num_envs, np.bool_))[i] = True
