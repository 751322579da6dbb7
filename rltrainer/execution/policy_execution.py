"""Run functions that call a policy: as written, as a compiled loop of the CPU, or as CUDA graphs.

```
each collection   begin(exploration, explore, *key)  # `key`: what else a graph depends on and does not see
envs of the host  choose(obs, memory, generator)     # one CUDA graph and one copy down; None: as written
envs of tensors   draws(obs, memory, generator)      # the random numbers of a row, to be drawn for all rows at once
                  rows(num_rows, carried, drawn)     # as written, one compiled loop, or CUDA graphs of 128 rows
if that fails     the log or a warning gives the reason, and the function runs as written from then on
```
"""

import contextlib
import copy
import functools
import logging
from collections.abc import Callable, Hashable, Iterator
from typing import Any, cast

import torch
from torch import Generator, Tensor

from rltrainer.errors import NonFiniteError
from rltrainer.execution.cpu_loop import CompiledRows
from rltrainer.execution.cuda_graph import MAX_GRAPHS, CudaGraphs, CudaRecorder, HostGraph, undone, without_waiting
from rltrainer.execution.fingerprint import Fingerprint, plain
from rltrainer.nets import Exploration, Policy
from rltrainer.nets.exploration import EpsilonGreedy, GaussianNoise, OrnsteinUhlenbeckNoise
from rltrainer.nets.noise import Draw, DrawRecord
from rltrainer.plan import no_progress
from rltrainer.schedules import value_at
from rltrainer.tree import Tree, map_tensors, map_tree

ROWS_PER_GRAPH = 128
"""Rows in one CUDA graph: more take longer to record, and memory, and a replay costs little beside so many."""


class ScheduledExploration:
    """An exploration (`copy`) with its scheduled numbers as tensors, which a graph reads again at each replay."""

    def __init__(self, exploration: Exploration, device: torch.device) -> None:
        self.original, self.copy = exploration, copy.copy(exploration)
        self._schedules = {name: value for name, value in vars(exploration).items() if callable(value)}
        # Float64 tensors are rounded at the same place as Python's numbers.
        self._tensors = {name: torch.zeros((), dtype=torch.float64, device=device) for name in self._schedules}
        self._progress: float | None = None
        for name, tensor in self._tensors.items():
            object.__setattr__(self.copy, name, tensor)  # the dataclass is frozen

    def follow(self, progress: float) -> None:
        """Take the values at this progress."""
        if progress != self._progress:
            self._progress = progress
            for name, schedule in self._schedules.items():
                self._tensors[name].fill_(value_at(schedule, progress))


class PolicyExecution:
    """Runs a pure function of tensors that calls `Policy.select_action`, with the numbers that it has as written.

    The function explores by `replacing`, if that is not None. A graph is recorded for each state of policy,
    exploration and key, and again after a change that it would not see: other modules, hooks, modes or memory of
    weights, other attributes of a user's policy or of `rules`. Schedules are followed.
    """

    def __init__(
        self, policy: Policy, function: Callable[..., Any], device: torch.device, rules: object = None
    ) -> None:  # fmt: skip
        self.replacing: Exploration | None = None  # the policy's exploration, while the function runs
        self._policy, self._function, self._device, self._rules = policy, function, device, rules
        self._explorations: dict[int, ScheduledExploration] = {}
        self._draws: dict[Hashable, list[Draw] | None] = {}
        self._choices: dict[Hashable, HostGraph] = {}
        self._current: HostGraph | None = None
        self._has_given_up = False
        # Set at the start of every collection.
        self._acting: Exploration | None = None
        self._explore, self._replaces, self._state = True, False, ""
        self._key: tuple[Hashable, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without what is compiled and recorded, which runs the original's networks."""
        return type(self), (self._policy, self._function, self._device, self._rules)

    def begin(self, exploration: Exploration | None, explore: bool, *key: Hashable) -> bool:
        """Prepare for a collection; return whether the function may be recorded.

        `exploration` replaces the policy's own; `key` names what else the function depends on beside tensors.
        """
        if self._has_given_up:
            return False
        policy = self._policy
        acting = (policy.exploration if exploration is None else exploration) if explore else None
        self._acting, self._explore, self._replaces = acting, explore, exploration is not None
        is_recorded = policy.cuda_graph and self._device.type != "cpu"
        state, key = self._fingerprint() if is_recorded else "", (explore, self._replaces, id(acting), *key)
        if state != self._state or key != self._key:
            self._state, self._key, self._current = state, key, None
        if id(acting) in self._explorations:
            self._explorations[id(acting)].follow(policy.progress())
        return is_recorded

    @functools.cached_property
    def _fingerprint(self) -> Fingerprint:
        tensors = [*self._policy.parameters(), *self._policy.buffers()]
        return Fingerprint(self._policy, [self._policy], tensors, is_recorded=True)

    @functools.cached_property
    def _recorder(self) -> CudaRecorder:
        return CudaRecorder(self._device)

    @contextlib.contextmanager
    def exploring(self) -> Iterator[None]:
        """Let the policy explore by a copy in this block, so that no graph holds the value of a schedule."""
        policy, acting, copied = self._policy, self._acting, None
        if acting is not None:
            known = self._explorations.setdefault(id(acting), ScheduledExploration(acting, self._device))
            known.follow(policy.progress())
            copied = known.copy
        own = policy.exploration, policy.progress
        policy.exploration, policy.progress = copied, no_progress
        self.replacing = copied if self._replaces else None
        try:
            yield
        finally:
            policy.exploration, policy.progress = own

    def choose(
        self, obs: Tree, memory: Tensor | None, generator: Generator
    ) -> tuple[dict[str, Tensor], Tensor | None] | None:
        """Return the dict and the next memory of `function(obs, memory, generator)`; None if that cannot be recorded.

        The observations [N, ...] stay at one place, and so does the next memory, on the device. What is in the dict is
        on the host, valid until the next call.
        """
        current = self._current
        if current is None or current.obs is not obs or current.generator is not generator:
            current = self._current = self._find(obs, memory, generator)
            if current is None:
                return None
        if current.memory is not memory and current.memory is not None and memory is not None:
            current.memory.copy_(memory)
        return current(), current.memory

    @property
    def _is_known(self) -> bool:
        """False with a user's exploration, which may look at the progress of the training in any way."""
        return self._acting is None or type(self._acting) in (EpsilonGreedy, GaussianNoise, OrnsteinUhlenbeckNoise)

    def _find(self, obs: Tree, memory: Tensor | None, generator: Generator) -> HostGraph | None:
        key = self._state, self._key, id(obs), id(generator)  # a graph keeps these objects: no other gets their ids
        if key not in self._choices and not self._has_given_up:
            try:
                if len(self._choices) == MAX_GRAPHS:
                    raise RuntimeError(f"what it depends on has changed {MAX_GRAPHS} times")
                if not self._is_known:
                    raise RuntimeError(f"the exploration {type(self._acting).__name__} is not of rltrainer")
                given = self._function, obs, memory, generator, self._recorder, self._device
                with self._fingerprint.unchanged(), undone([*self._policy.buffers()], [generator]), self.exploring():
                    graph = HostGraph(*given)
                self._choices[key] = graph
            except Exception as error:  # if it is the policy's own, the call without a graph raises it
                self._has_given_up = True
                reason = str(error).strip().partition("\n")[0]
                text = "%s acts without a CUDA graph, which cannot be recorded: %s"
                logging.getLogger("rltrainer").info(text, type(self._policy).__name__, reason)
        return self._choices.get(key)

    @torch.no_grad()
    def draws(self, obs: Tree, memory: Tensor | None, generator: Generator) -> list[Draw] | None:
        """Return the random numbers that a choice for all envs asks for; None if it draws them in another way."""
        if not self._is_known:
            return None
        if self._key not in self._draws:
            before, record = generator.get_state(), cast(Generator, DrawRecord(generator))
            try:
                with self.exploring():
                    given: dict[str, Any] = {"generator": record, "exploration": self.replacing}
                    self._policy.select_action(obs, memory, explore=self._explore, **given)
                self._draws[self._key] = cast(DrawRecord, record).draws
            except NonFiniteError:
                return None  # a step by itself raises it again, with its number
            except TypeError as error:  # of torch: it is no generator
                self._draws[self._key] = None
                text = "%s acts step by step in envs of tensors, as it draws its random numbers by itself: %s"
                logging.getLogger("rltrainer").info(text, type(self._policy).__name__, error)
            finally:
                generator.set_state(before)
        return self._draws[self._key]

    def rows(self, num_rows: int, carried: Tree, inputs: Any, *fixed: Any) -> tuple[Tree, Tree]:
        """Return `function(carried, inputs, *fixed)`: what the last row carries on, and the outputs [T, ...].

        The function takes any number of rows of the inputs [T, ...] at once. On the CPU they are a compiled loop if the
        policy's updates are compiled; on CUDA some rows are one CUDA graph. Call it in a block of `exploring`.
        """
        if self._device.type == "cpu":
            found = self._loop(str(self._key), num_rows, carried, inputs, fixed) if self._policy.is_compiled else None
            return found or self._function(carried, inputs, *fixed)
        parts = []
        for first in range(0, num_rows, ROWS_PER_GRAPH):
            some = map_tensors(lambda x: x[first : first + ROWS_PER_GRAPH], inputs)  # noqa: B023  # called at once
            carried, outputs = self._replayed(carried, some, *fixed)
            parts.append(outputs)
        return carried, parts[0] if len(parts) == 1 else map_tree(lambda *x: torch.cat(x), *parts)

    @functools.cached_property
    def _loop(self) -> CompiledRows:
        return CompiledRows("a rollout of envs of tensors", self._function)

    @functools.cached_property
    def _graphs(self) -> CudaGraphs:
        name = "a rollout of envs of tensors"
        return CudaGraphs(self._recorded, lambda: [*self._policy.buffers()], self._recorder, name=name)

    def _replayed(self, *args: Any) -> Any:
        if self._policy.cuda_graph and self._graphs.is_on:
            try:
                return self._graphs(str((self._state, self._key, plain(vars(self._rules)))), *args)
            except Exception as error:  # if it is the policy's own, the call without a graph raises it
                self._graphs.give_up(error)
        return self._function(*args)

    def _recorded(self, state: str, *args: Any) -> Any:
        with self._fingerprint.unchanged(), without_waiting():
            return self._function(*args)
