"""The program of a worker process that steps some of the envs of a `WorkerVectorEnv`."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from rltrainer.envs.backends.masked_resets import Env
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.processes.program import Link
from rltrainer.processes.shared_arrays import SharedArrays
from rltrainer.tree import Tree, map_tree
from rltrainer.types import State


@dataclass(frozen=True, slots=True)
class StepResult:
    """The part of a step's result that is not in shared memory."""

    infos: dict[str, Any]
    """Of the worker's envs, gathered as gymnasium does."""
    rewards: np.ndarray[Any, Any] | None
    """[n, A] of several agents, whose number is not known in advance; None for one agent."""


class WorkerEnvs:
    """The envs of one worker, the first with index `first`; the pulse is the env that is being called."""

    envs: SyncVectorEnv

    def __init__(self, link: Link, factories: Sequence[Callable[[], Env]], first: int) -> None:
        self._link, self._factories, self._first = link, factories, first

    def describe(self) -> tuple[Any, ...]:
        """Make the envs; return spaces, metadata, render mode of the first, where this code is, if all are saveable."""
        made = self.envs = SyncVectorEnv(self._factories, first=self._first, current=self._link.pulse, fail=_fail)
        first, spaces = made.envs[0], (made.single_observation_space, made.single_action_space)
        return *spaces, first.metadata, first.render_mode, HERE, made.are_saveable

    def attach(self, layout: Tree) -> None:
        """Map the arrays whose descriptor comes with the call."""
        arrays = SharedArrays(layout, self._link.receive_file()).arrays
        rows = slice(self._first, self._first + self.envs.num_envs)
        own = {name: map_tree(lambda array: array[rows], tree) for name, tree in arrays.items()}
        self.envs.memory, self._action, self._skipped = own["obs"], own["action"], own["skipped"]
        self._reward, self._terminated, self._truncated = own["reward"], own["terminated"], own["truncated"]

    def step(self) -> StepResult | None:
        """Step all envs but the skipped ones; return None if all of it is in shared memory."""
        actions = map_tree(np.copy, self._action)  # envs keep the last action they were given
        self.envs.park(np.flatnonzero(self._skipped))
        _, rewards, self._terminated[:], self._truncated[:], infos = self.envs.step(actions)
        if rewards.ndim > 1:
            return StepResult(infos, rewards)
        self._reward[:] = rewards
        return StepResult(infos, None) if infos else None

    def reset(self, seeds: Sequence[tuple[int, int | None]], options: dict[str, Any] | None) -> Any:
        """Reset envs, given as (index, seed); return their infos, if there are any."""
        return self.envs.begin({i - self._first: seed for i, seed in seeds}, options)[1] or None

    def call(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
        """See `WorkerVectorEnv.call`."""
        return self.envs.call(name, *arguments, **options)

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set each env's attribute to its value."""
        self.envs.set_attr(name, list(values))

    def load_states(self, states: Sequence[State]) -> None:
        """Let each env load its state."""
        self.envs.load_states(states)

    def close(self) -> None:
        """Close every env."""
        if hasattr(self, "envs"):
            self.envs.close_extras()


HERE = os.path.realpath(__file__)


def _fail(i: int, error: BaseException) -> NoReturn:
    raise error
