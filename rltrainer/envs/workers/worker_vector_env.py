"""Our vector env of worker processes."""

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rltrainer.envs.backends.masked_resets import NO_TRANSITION, Env, MaskedVectorEnv, StepOutcome, copy_rows
from rltrainer.envs.checks import check_reward_shape, check_same_spaces
from rltrainer.envs.workers import worker_envs
from rltrainer.envs.workers.shared_arrays import SharedArrays
from rltrainer.envs.workers.worker import Worker
from rltrainer.envs.workers.worker_envs import CALL, INFOS, LOAD, RESET, SET, STEP, StepResult
from rltrainer.envs.workers.worker_infos import merge_infos
from rltrainer.envs.workers.worker_pool import WorkerOptions, WorkerPool
from rltrainer.errors import EnvError
from rltrainer.spaces import leaf_spaces
from rltrainer.tree import Tree, map_tree
from rltrainer.types import State


class WorkerVectorEnv(MaskedVectorEnv):
    """Steps N envs in worker processes, each a few of them.

    The same seeds give the same data as in this process, bit for bit. Actions are cast to the dtype of their space.

    An env that raises, takes longer than `step_timeout` for its making, a step or a reset, or dies with its process,
    raises an `EnvError`; after the latter two all workers are ended. With `on_env_error="restart"` it is made anew
    instead, and with it the other envs of a process that died or was killed:

    - In the step in which an episode broke off, the env reports `truncated=True`, reward 0 and its last observation
      once more, and `infos["rltrainer_no_transition"]` marks it. No transition took place: the adapter marks the cell
      `valid=False`, and the trace ends with the transition before it. The episode is not counted.
    - The next episode begins as after any other end, with the next seed of the env.
    - A reset that fails is done again with the same seed.

    Args:
        factories: one per env; each returns a new env, all with equal spaces.
        seed: see `MaskedVectorEnv`.
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
            self._arrays = SharedArrays(self._spaces, action_spaces, self.num_envs)
            self._close_file = weakref.finalize(self, os.close, self._arrays.file)
            self._pool.attach(self._arrays)
        except BaseException:
            self._pool.end(grace=0.5)
            raise
        # Envs that lost their episode outside of a step: the next step reports it.
        self._lost: set[int] = set()

    @property
    def num_restarts(self) -> int:
        """Number of failures that led to a restart."""
        return self._pool.num_restarts

    def _reset(self, due: dict[int, int | None], options: dict[str, Any] | None) -> tuple[Tree, dict[str, Any]]:
        infos: dict[str, Any] = {}
        todo = due
        while todo:
            shares = [(worker, [(i, todo[i]) for i in worker.envs if i in todo]) for worker in self._pool.workers]
            arguments = [(worker, (share, options)) for worker, share in shares if share]
            results, renewed = self._pool.ask(self._when, RESET, arguments)
            for worker, result in results:
                merge_infos(infos, result or {}, worker.rows, self.num_envs)
            # Their worker died, but it was not their turn.
            self._lost |= renewed - due.keys() - self._needs_reset - self._parked
            todo = {i: due[i] for i in todo if i in renewed}
        self._lost -= due.keys()
        obs = map_tree(np.copy, self._arrays.obs)
        copy_rows(obs, self._obs, self._lost)
        return obs, infos

    def step(self, actions: Any) -> StepOutcome:
        """Step every env that is not parked; see `MaskedVectorEnv.step`."""
        self._begin_step()
        arrays = self._arrays
        map_tree(self._write_action, arrays.action, actions)
        arrays.skipped[:] = False
        arrays.skipped[[*self._lost, *self._parked]] = True
        results, renewed = self._pool.ask(self._when, STEP, [(worker, ()) for worker in self._pool.workers])
        obs = map_tree(np.copy, arrays.obs)
        reward, terminated, truncated = arrays.reward.copy(), arrays.terminated.copy(), arrays.truncated.copy()
        if parts := [(w, r.rewards) for w, r in results if isinstance(r, StepResult) and r.rewards is not None]:
            reward = _stack_rewards(parts, self.num_envs)
        infos = self._gather_infos(results)
        if broken := (renewed | self._lost) - self._parked:
            rows = sorted(broken)
            copy_rows(obs, self._obs, rows)
            reward[rows], terminated[rows], truncated[rows] = 0.0, False, True
            infos[NO_TRANSITION] = np.isin(np.arange(self.num_envs), rows)
            self._lost = set()
        return self._end_step(obs, reward, terminated, truncated, infos)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, or read its attribute; the values travel through a pipe."""
        arguments = [(worker, (name, args, kwargs)) for worker in self._pool.workers]
        results, _ = self._pool.ask(f"call({name!r})", CALL, arguments)
        return tuple(value for _, values in results for value in values)

    def _set_each(self, name: str, values: Sequence[Any]) -> None:
        arguments = [(worker, (name, values[worker.rows])) for worker in self._pool.workers]
        self._pool.ask(f"set_attr({name!r})", SET, arguments)

    def _load_each(self, states: Sequence[State]) -> None:
        self._pool.ask(self._when, LOAD, [(worker, (states[worker.rows],)) for worker in self._pool.workers])

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env and end the workers, in at most five seconds; never raises."""
        self._pool.end()
        self._close_file()

    def _gather_infos(self, results: list[tuple[Worker, Any]]) -> dict[str, Any]:
        columns = self._arrays.info
        schemas = [worker.schema if result == INFOS else None for worker, result in results]
        if len(schemas) == len(self._pool.workers) and schemas[0] and schemas.count(schemas[0]) == len(schemas):
            return schemas[0].read(columns)
        infos: dict[str, Any] = {}
        for (worker, result), schema in zip(results, schemas, strict=True):
            if schema is not None:
                merge_infos(infos, schema.read(columns[worker.rows]), worker.rows, self.num_envs)
            elif isinstance(result, StepResult):
                merge_infos(infos, result.infos, worker.rows, self.num_envs)
        return infos

    def _declare_as(self, descriptions: list[tuple[Any, ...]]) -> None:
        observation_space, action_space, metadata, render_mode, code, _ = descriptions[0]
        self.are_saveable = all(description[-1] for description in descriptions)
        for worker, (*spaces, _, _, _, _) in zip(self._pool.workers, descriptions, strict=True):
            check_same_spaces(worker.envs[0], (spaces[0], spaces[1]), 0, (observation_space, action_space))
        here = os.path.realpath(worker_envs.__file__)
        if code != here:
            raise EnvError(f"the workers imported rltrainer from {code}, not from {here}: use start_method='spawn'")
        self._declare((observation_space, action_space), metadata, render_mode)

    def _write_action(self, here: Any, actions: Any) -> None:
        """Copy actions to where the workers read them."""
        if np.shape(actions) != here.shape:
            self._raise_invalid("step", "actions", f"must have shape {here.shape}", actions)
        here[...] = actions


def _stack_rewards(parts: list[tuple[Worker, Any]], num_envs: int) -> Any:
    """Arrange rewards of several agents [N, A]; raise a `SpaceError` if not all envs reward as many."""
    first, values = parts[0]
    reward = np.zeros((num_envs, *values.shape[1:]))
    for worker, values in parts:
        check_reward_shape(worker.envs[0], values[0], first.envs[0], reward.shape[1:])
        reward[worker.rows] = values
    return reward
