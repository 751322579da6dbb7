"""The envs of one worker process, and what is done with them there."""

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from rltrainer.envs.adapter.checks import check_obs
from rltrainer.envs.backends.single_env import (
    Env,
    call_env,
    check_is_new,
    check_reward_shape,
    check_same_spaces,
    check_step,
    close_env,
    make_env,
    split_actions,
    write_row,
)
from rltrainer.envs.workers.shared_arrays import SharedArrays
from rltrainer.envs.workers.worker_infos import InfoWriter, Schema
from rltrainer.errors import RLTrainerError
from rltrainer.tree import Tree, map_tree

INFOS = b"i"
"""The result of a step whose infos are in shared memory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in a worker, as text: not every exception survives a pickle.

    Args:
        env: in which env it was raised.
        type_name: its type's name.
        message: what `str` says of it.
        traceback: the worker's.
        is_ours: it is one of `rltrainer.errors`, whose message says everything.
    """

    env: int
    type_name: str
    message: str
    traceback: str
    is_ours: bool

    @classmethod
    def of(cls, env: int, error: BaseException) -> "Failure":
        """Describe an exception that env `env` raised."""
        try:
            message = str(error)
        except Exception:
            message = "(the exception's __str__ failed)"
        trace = "".join(traceback.format_exception(error))
        return cls(env, type(error).__name__, message, trace, isinstance(error, RLTrainerError))


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step returns that does not fit into shared memory.

    Args:
        infos: gathered, of the worker's envs.
        schema: of the infos that come through shared memory from now on.
        rewards: [n, A], of several agents: nobody knows their number in advance. None for one agent.
    """

    infos: dict[str, Any]
    schema: Schema | None
    rewards: np.ndarray[Any, Any] | None


Answer = tuple[Any, Sequence[Failure]]
"""The result, and what the envs raised."""


class WorkerEnvs:
    """The envs of one worker.

    What an env raises is collected, SystemExit and KeyboardInterrupt included, and the other envs go on.

    Args:
        factories: one per env.
        first: the index of the first env in the vector env.
        receive_file: returns the descriptor of the shared arrays, when they are to be attached.
    """

    def __init__(self, factories: Sequence[Callable[[], Env]], first: int, receive_file: Callable[[], int]) -> None:
        self._factories, self._first, self._receive_file = factories, first, receive_file
        self._envs: list[Env] = []
        self._unchecked = set(range(first, first + len(factories)))
        self._reward_shape: tuple[int, ...] | None = None

    def describe(self) -> Answer:
        """Make the envs; return spaces, metadata and render mode of the first, and where this code comes from."""
        for i, factory in enumerate(self._factories, self._first):
            try:
                env = make_env(i, factory)
                check_is_new(i, env, self._envs, self._first)
                self._envs.append(env)
                if i == self._first:
                    self._own_spaces = env.observation_space, env.action_space
                check_same_spaces(i, (env.observation_space, env.action_space), self._first, self._own_spaces)
            except BaseException as error:
                return None, [Failure.of(i, error)]
        first = self._envs[0]
        return (*self._own_spaces, first.metadata, first.render_mode, os.path.realpath(__file__)), ()

    def attach(self, spaces: Tree, action_spaces: Tree, num_envs: int, num_workers: int, number: int) -> Answer:
        """Map the arrays whose descriptor comes next; this is worker `number`."""
        arrays = SharedArrays(spaces, action_spaces, num_envs, num_workers, self._receive_file())
        arrays.close()
        first, last = self._first, self._first + len(self._envs)

        def own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return array[first:last]

        self._spaces, self._obs, self._current = spaces, arrays.obs, arrays.current[number : number + 1]
        self._action = map_tree(own, arrays.action)
        self._action_space = batch_space(self._own_spaces[1], len(self._envs))
        self._reward, self._skipped = own(arrays.reward), own(arrays.skipped)
        self._terminated, self._truncated = own(arrays.terminated), own(arrays.truncated)
        self._infos = InfoWriter(own(arrays.info))
        return None, ()

    def step(self) -> Answer:
        """Step all envs but the skipped ones.

        Returns:
            None if there are no infos, INFOS if they are in shared memory, else a `StepResult`.
        """
        # A copy: envs keep the last action they were given.
        actions = split_actions(self._action_space, map_tree(np.copy, self._action))
        skipped = self._skipped.tolist()
        rewards: list[Any] = []
        all_terminated, all_truncated = [], []
        infos: list[dict[str, Any]] = [{} for _ in self._envs]
        failures = []
        for j, (env, action) in enumerate(zip(self._envs, actions, strict=True)):
            i = self._first + j
            value: Any = None
            terminated = truncated = False
            if not skipped[j]:
                self._current[0] = i
                try:
                    obs, reward, terminated, truncated, infos[j] = env.step(action)
                    if i in self._unchecked:
                        self._check_step(i, obs, reward, terminated, truncated)
                    value = np.array(reward, np.float64) if self._reward_shape else float(reward)
                    write_row(self._obs, i, obs)
                except BaseException as error:
                    failures.append(Failure.of(i, error))
                    terminated, truncated, infos[j] = False, False, {}
            rewards.append(np.zeros(self._reward_shape or ()) if value is None else value)
            all_terminated.append(terminated)
            all_truncated.append(truncated)
        self._current[0] = -1
        self._terminated[:], self._truncated[:] = all_terminated, all_truncated
        by_agent = np.array(rewards) if self._reward_shape else None
        if by_agent is None:
            self._reward[:] = rewards
            if not any(infos):
                return None, failures
            if not failures and self._infos.write(infos):
                return INFOS, ()
        return StepResult(self._infos.gather(infos), self._infos.announce(infos), by_agent), failures

    def reset(self, seeds: Sequence[tuple[int, int | None]], options: dict[str, Any] | None) -> Answer:
        """Reset envs, given as (index, seed); return their infos, if there are any."""
        infos: list[dict[str, Any]] = [{} for _ in self._envs]
        failures = []
        for i, seed in seeds:
            self._current[0] = i
            try:
                obs, info = self._envs[i - self._first].reset(seed=seed, options=options)
                check_obs(f"env {i} obs", self._spaces, obs)
                write_row(self._obs, i, obs)
                infos[i - self._first] = info
            except BaseException as error:
                failures.append(Failure.of(i, error))
        self._current[0] = -1
        return self._infos.gather(infos) or None, failures

    def remake(self, rows: Sequence[int]) -> Answer:
        """Replace envs by new ones."""
        for i in rows:
            j = i - self._first
            close_env(i, self._envs[j])
            try:
                env = make_env(i, self._factories[j])
                check_is_new(i, env, self._envs, self._first)
                check_same_spaces(i, (env.observation_space, env.action_space), self._first, self._own_spaces)
            except BaseException as error:
                return None, [Failure.of(i, error)]
            self._envs[j] = env
            self._unchecked.add(i)
        return None, ()

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """Return what each env's method of this name returns, or the attribute."""
        return self._each(lambda env, i: call_env(env, name, args, kwargs))

    def set_attr(self, name: str, values: Sequence[Any]) -> Answer:
        """Set each env's attribute."""
        _, failures = self._each(lambda env, i: env.set_wrapper_attr(name, values[i - self._first]))
        return None, failures

    def close(self) -> None:
        """Close all envs."""
        for i, env in enumerate(self._envs, self._first):
            close_env(i, env)

    def _each(self, function: Callable[[Env, int], Any]) -> Answer:
        values = []
        for i, env in enumerate(self._envs, self._first):
            self._current[0] = i
            try:
                values.append(function(env, i))
            except BaseException as error:
                self._current[0] = -1
                return None, [Failure.of(i, error)]
        self._current[0] = -1
        return values, ()

    def _check_step(self, i: int, obs: Tree, reward: Any, terminated: Any, truncated: Any) -> None:
        check_step(i, self._spaces, obs, reward, terminated, truncated)
        if self._reward_shape is None:
            self._reward_shape = np.shape(reward)
        check_reward_shape(i, reward, self._first, self._reward_shape)
        self._unchecked.discard(i)
