"""Our vector env of worker processes."""

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rltrainer.envs.backends.env_group import Env, check_reward_shape, check_same_spaces, write_row
from rltrainer.envs.backends.masked_resets import RESTARTED, MaskedVectorEnv
from rltrainer.envs.workers import worker_envs
from rltrainer.envs.workers.shared_arrays import SharedArrays
from rltrainer.envs.workers.worker import Worker
from rltrainer.envs.workers.worker_envs import CALL, INFOS, RESET, SET, STEP, StepResult
from rltrainer.envs.workers.worker_infos import merge_infos, read_columns
from rltrainer.envs.workers.worker_pool import WorkerOptions, WorkerPool
from rltrainer.errors import EnvError, ParamsError, field_error_text
from rltrainer.spaces import leaf_spaces
from rltrainer.tree import Tree, map_tree


class WorkerVectorEnv(MaskedVectorEnv):
    """Steps N envs in worker processes, each a few of them; a finished env waits for a reset, as in `SyncVectorEnv`.

    The same seeds give the same data as in this process, bit for bit. Every call returns new arrays. Actions are cast
    to the dtype of the action space.

    An env that raises, takes longer than `step_timeout` for a step or reset, or dies with its process, raises an
    `EnvError`; after the latter two all workers are ended. With `on_env_error="restart"` it is made anew instead, and
    with it the other envs of a process that died or was killed:

    - In the step in which an episode broke off, the env reports `truncated=True`, reward 0 and its last observation
      once more, and `infos["rltrainer_restarted"]` marks it. No transition took place: the adapter marks the cell
      `valid=False`, so that it is never trained on, and the trace ends with the transition before it. The episode is
      not counted.
    - The next episode begins as after any other end, with the next seed of the env.
    - A reset that fails is done again with the same seed.

    Args:
        factories: one per env; each returns a new env, all with equal spaces.
        seed: what the adapter derives the seeds of all episodes from (`base_seed`).
        options: the fields of `WorkerOptions`, which `make_vec` explains.

    Raises:
        EnvError: a factory cannot travel to another process, raises, or returns something else than a new env.
        SpaceError: an env's spaces differ from the first one's, or are not supported.
    """

    def __init__(self, factories: Sequence[Callable[[], Env]], seed: int | None = None, **options: Any) -> None:
        super().__init__(len(factories), seed)
        self._pool = WorkerPool(factories, WorkerOptions(**options))
        try:
            self._declare_as(self._pool.descriptions)
            action_spaces = leaf_spaces(self.single_action_space)
            self._arrays = SharedArrays(self._spaces, action_spaces, self.num_envs, len(self._pool.workers))
            self._close_file = weakref.finalize(self, os.close, self._arrays.file)
            self._pool.attach(self._arrays)
        except BaseException:
            self._pool.end(grace=0.5)
            raise
        self._obs = self._empty_obs()
        # Envs that lost their episode outside of a step: the next step reports it.
        self._lost: set[int] = set()

    @property
    def num_restarts(self) -> int:
        """How many failures led to a restart."""
        return self._pool.num_restarts

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        """Reset all envs, or those of `options["reset_mask"]` ([N] bool); see `SyncVectorEnv.reset`."""
        rows, env_options = self._split_options(options)
        seeds = self._seeds(seed)
        due = {i: seeds[i] for i in (range(self.num_envs) if rows is None else rows)}
        infos: dict[str, Any] = {}
        remaining = due
        while remaining:
            asked = [
                (worker, [(i, remaining[i]) for i in worker.envs if i in remaining]) for worker in self._pool.workers
            ]
            arguments = [(worker, ([*pairs], env_options)) for worker, pairs in asked if pairs]
            results, renewed = self._pool.ask(f"reset after {self._num_steps} steps", RESET, arguments)
            for worker, result in results:
                merge_infos(infos, result or {}, worker.rows, self.num_envs)
            # Their worker died, but it was not their turn.
            self._lost |= renewed - due.keys() - self._needs_reset - self._parked
            remaining = {i: due[i] for i in remaining if i in renewed}
        self._lost -= due.keys()
        self._needs_reset -= due.keys()
        self._parked -= due.keys()
        before = self._obs
        self._obs = map_tree(np.copy, self._arrays.obs)
        self._restore(self._obs, before, self._lost)
        self._is_first_reset = False
        return map_tree(np.copy, self._obs), infos

    def step(self, actions: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """Step every env that is not parked.

        Returns:
            observations, rewards, terminated, truncated, infos.

        Raises:
            EnvError: an env raises, hangs, dies with its worker, or is at its end and was not reset.
            SpaceError: at its first step, an env returns something else than its spaces, a number and two bools.
        """
        if self._needs_reset:
            raise self._reset_is_due()
        self._num_steps += 1
        arrays = self._arrays
        map_tree(_write_action, arrays.action, actions)
        arrays.skipped[:] = False
        arrays.skipped[[*self._lost, *self._parked]] = True
        arguments: list[Any] = [(worker, ()) for worker in self._pool.workers]
        results, renewed = self._pool.ask(f"step {self._num_steps}", STEP, arguments)
        obs = map_tree(np.copy, arrays.obs)
        reward, terminated, truncated = arrays.reward.copy(), arrays.terminated.copy(), arrays.truncated.copy()
        if parts := [(w, r.rewards) for w, r in results if isinstance(r, StepResult) and r.rewards is not None]:
            reward = _stack_rewards(parts, self.num_envs)
        infos = self._gather_infos(results)
        if broken := (renewed | self._lost) - self._parked:
            rows = sorted(broken)
            self._restore(obs, self._obs, broken)
            reward[rows], terminated[rows], truncated[rows] = 0.0, False, True
            infos[RESTARTED] = np.isin(np.arange(self.num_envs), rows)
            self._lost = set()
        done = terminated | truncated
        if np.count_nonzero(done):
            self._needs_reset.update(np.flatnonzero(done).tolist())
        self._obs = obs
        return obs, reward, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """Return each env's frame."""
        return self.call("render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, or read its attribute; the values travel through a pipe."""
        arguments = [(worker, (name, args, kwargs)) for worker in self._pool.workers]
        results, _ = self._pool.ask(f"call({name!r})", CALL, arguments)
        return tuple(value for _, values in results for value in values)

    def set_attr(self, name: str, values: Any) -> None:
        """Set each env's attribute: a list or tuple holds one value per env."""
        each = self._values_per_env(values)
        if len(each) != self.num_envs:
            rule = f"must hold one value per env ({self.num_envs})"
            raise ParamsError(field_error_text("WorkerVectorEnv.set_attr", "values", rule, values))
        arguments = [(worker, (name, [each[i] for i in worker.envs])) for worker in self._pool.workers]
        self._pool.ask(f"set_attr({name!r})", SET, arguments)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env and end the workers, in at most five seconds; never raises."""
        self._pool.end()
        self._close_file()

    def _gather_infos(self, results: list[tuple[Worker, Any]]) -> dict[str, Any]:
        """Return the infos of a step."""
        columns = self._arrays.info
        schemas = [worker.schema if result == INFOS else None for worker, result in results]
        if len(schemas) == len(self._pool.workers) and schemas[0] and schemas.count(schemas[0]) == len(schemas):
            return read_columns(schemas[0], columns)
        infos: dict[str, Any] = {}
        for worker, result in results:
            if result == INFOS and worker.schema is not None:
                part = read_columns(worker.schema, columns[worker.rows])
                merge_infos(infos, part, worker.rows, self.num_envs)
            elif isinstance(result, StepResult):
                merge_infos(infos, result.infos, worker.rows, self.num_envs)
        return infos

    def _declare_as(self, descriptions: list[tuple[Any, ...]]) -> None:
        observation_space, action_space, metadata, render_mode, code = descriptions[0]
        for worker, (*spaces, _, _, _) in zip(self._pool.workers, descriptions, strict=True):
            check_same_spaces(worker.envs[0], (spaces[0], spaces[1]), 0, (observation_space, action_space))
        here = os.path.realpath(worker_envs.__file__)
        if code != here:
            raise EnvError(f"the workers imported rltrainer from {code}, not from {here}: use start_method='spawn'")
        self._declare((observation_space, action_space), metadata, render_mode)

    def _restore(self, obs: Tree, before: Tree, rows: set[int]) -> None:
        """Give envs the observations that they had before."""
        for i in rows:
            write_row(obs, i, map_tree(lambda leaf, i=i: leaf[i], before))


def _write_action(here: Any, actions: Any) -> None:
    """Copy actions to where the workers read them.

    Raises:
        ParamsError: another shape.
    """
    if np.shape(actions) != here.shape:
        raise ParamsError(field_error_text("WorkerVectorEnv.step", "actions", f"must have shape {here.shape}", actions))
    here[...] = actions


def _stack_rewards(parts: list[tuple[Worker, Any]], num_envs: int) -> Any:
    """Arrange rewards of several agents [N, A].

    Raises:
        SpaceError: not all envs reward as many.
    """
    first, values = parts[0]
    reward = np.zeros((num_envs, *values.shape[1:]))
    for worker, values in parts:
        check_reward_shape(worker.envs[0], values[0], first.envs[0], reward.shape[1:])
        reward[worker.rows] = values
    return reward
