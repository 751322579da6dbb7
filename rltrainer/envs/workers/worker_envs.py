"""The envs of one worker process, and what is done with them there."""

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from rltrainer.envs.backends.masked_resets import Env
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.workers.shared_arrays import SharedArrays
from rltrainer.envs.workers.worker_infos import Schema
from rltrainer.errors import RLTrainerError
from rltrainer.tree import Tree, map_tree

DESCRIBE, ATTACH, STEP, RESET, REMAKE, CALL, SET, LOAD, QUIT = b"d", b"m", b"s", b"r", b"n", b"c", b"a", b"l", b"q"
"""Commands to a worker."""

INFOS = b"i"
"""The result of a step whose infos are in shared memory."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that env `env` raised in a worker, as text: not every exception survives a pickle.

    One that `is_ours` is of `rltrainer.errors`, whose message says everything.
    """

    env: int
    type_name: str
    message: str
    traceback: str
    is_ours: bool

    @classmethod
    def of(cls, env: int, error: BaseException) -> Self:
        """Return the failure that an exception is."""
        try:
            message = str(error)
        except Exception:
            message = "(the exception's __str__ failed)"
        trace = "".join(traceback.format_exception(error))
        return cls(env, type(error).__name__, message, trace, isinstance(error, RLTrainerError))


@dataclass(frozen=True, slots=True)
class StepResult:
    """The part of a step's result that does not fit into shared memory.

    Args:
        infos: gathered, of the worker's envs.
        schema: of the infos that come through shared memory from now on.
        rewards: [n, A], of several agents: nobody knows their number in advance. None for one agent.
    """

    infos: dict[str, Any]
    schema: Schema | None
    rewards: np.ndarray[Any, Any] | None


class WorkerEnvs:
    """The envs of one worker; what they raise is collected, SystemExit and KeyboardInterrupt included.

    Its `pulse` is the env that it is in, -1 between envs. `receive_file` returns the descriptor of the shared arrays,
    when they are to be attached.
    """

    def __init__(
        self, factories: Sequence[Callable[[], Env]], first: int, pulse: Any, receive_file: Callable[[], int]
    ) -> None:
        self._factories, self._first, self._receive_file = factories, first, receive_file
        self._failures: list[Failure] = []
        self._schema: Schema | None = None  # of the infos that the parent was told last
        self._envs: SyncVectorEnv | None = None
        self._pulse = pulse
        pulse[0] = -1
        self._commands: dict[bytes, Callable[..., Any]] = {
            DESCRIBE: self._describe,
            ATTACH: self._attach,
            STEP: self._step,
            RESET: self._reset,
            REMAKE: lambda i: self._made.remake(i - first, factories[i - first]),
            CALL: lambda name, args, kwargs: self._made.call(name, *args, **kwargs),
            SET: lambda name, values: self._made.set_attr(name, values),
            LOAD: lambda states: self._made.load_states(states),
        }

    def answer(self, command: bytes, *args: Any) -> tuple[Any, Sequence[Failure]]:
        """Do what the parent says; return the command's result, None after a failure that ends it, and the failures."""
        result, self._failures = None, []
        try:
            result = self._commands[command](*args)
        except BaseException as error:
            self._fail(self._pulse[0], error)
        self._pulse[0] = -1
        return result, self._failures

    def close(self) -> None:
        """Close every env."""
        if self._envs is not None:
            self._envs.close_extras()

    @property
    def _made(self) -> SyncVectorEnv:
        assert self._envs is not None, "DESCRIBE makes the envs"
        return self._envs

    def unsendable(self, error: Exception) -> Failure:
        """Return what the parent is told where an answer cannot be pickled."""
        text = (
            f"env {self._first}, or another env of its worker process, returned something that cannot be sent from "
            f"process to process, in its info, attribute or frame: {type(error).__name__}: {error}"
        )
        return Failure(self._first, "EnvError", text, "", True)

    def _describe(self) -> tuple[Any, ...]:
        """Make the envs; return spaces, metadata, render mode of the first, where this code is, if all are saveable."""
        made = SyncVectorEnv(self._factories, first=self._first, current=self._pulse, fail=self._fail)
        self._envs, first, code = made, made.envs[0], os.path.realpath(__file__)
        spaces = made.single_observation_space, made.single_action_space
        return *spaces, first.metadata, first.render_mode, code, made.are_saveable

    def _attach(self, layout: tuple[Tree, Tree, int]) -> None:
        """Map the arrays whose descriptor comes next."""
        arrays = SharedArrays(*layout, file := self._receive_file())
        os.close(file)  # the memory lives as long as the arrays do
        own = slice(self._first, self._first + self._made.num_envs)
        self._made.memory = map_tree(lambda array: array[own], arrays.obs)
        self._action = map_tree(lambda array: array[own], arrays.action)
        self._reward, self._skipped = arrays.reward[own], arrays.skipped[own]
        self._terminated, self._truncated = arrays.terminated[own], arrays.truncated[own]
        self._info = arrays.info[own]

    def _step(self) -> bytes | StepResult | None:
        """Step all envs but the skipped ones; return None without infos, INFOS with those in shared memory."""
        # A copy: envs keep the last action they were given.
        actions = map_tree(np.copy, self._action)
        envs = self._made
        envs.park(np.flatnonzero(self._skipped))
        _, rewards, self._terminated[:], self._truncated[:], gathered = envs.step(actions)
        by_agent = rewards if rewards.ndim > 1 else None
        if by_agent is None:
            self._reward[:] = rewards
            if not any(envs.infos):
                return None
            if self._schema is not None and not self._failures and self._schema.write(envs.infos, self._info):
                return INFOS
        self._schema = Schema.of(envs.infos[0])
        return StepResult(gathered, self._schema, by_agent)

    def _reset(self, seeds: Sequence[tuple[int, int | None]], options: dict[str, Any] | None) -> Any:
        """Reset envs, given as (index, seed); return their infos, if there are any."""
        return self._made.begin({i - self._first: seed for i, seed in seeds}, options)[1] or None

    def _fail(self, i: int, error: BaseException) -> None:
        """Remember what env i raised."""
        self._failures.append(Failure.of(i, error))
