"""Acting as a CUDA graph: a policy's choice for all envs is launched at once, and comes down in one copy.

A small policy is dozens of kernels of a few microseconds, and launching one takes as long as running it.
"""

import contextlib
import copy
import logging
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from rltrainer.execution.cuda_graph import MAX_GRAPHS, CudaRecorder, HostGraph, undone
from rltrainer.execution.fingerprint import Fingerprint
from rltrainer.nets import Exploration, Policy
from rltrainer.nets.exploration import EpsilonGreedy, GaussianNoise, OrnsteinUhlenbeckNoise
from rltrainer.nets.policy import Decision
from rltrainer.plan import no_progress
from rltrainer.schedules import value_at
from rltrainer.tree import Tree

# The column of the memory that an action was chosen with.
MEMORY = "state"
# A user's exploration may look at the progress of the training in any way.
RECORDED_EXPLORATIONS = (EpsilonGreedy, GaussianNoise, OrnsteinUhlenbeckNoise)


@dataclass(slots=True)
class Recording:
    """A recorded choice for these observations, with this generator; it changes the memory in place."""

    obs: Tree
    generator: Generator
    memory: Tensor | None
    graph: HostGraph  # delivers the action, and columns of a buffer
    exploration: Exploration | None


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


class ScheduledExplorations:
    """The explorations with which a policy acts, each as a copy with its scheduled numbers as tensors."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._known = policy, dict[int, ScheduledExploration]()

    def follow(self, exploration: Exploration | None) -> None:
        """Take the numbers of the policy's progress, if there is a copy."""
        if exploration is not None and id(exploration) in self._known:
            self._known[id(exploration)].follow(self._policy.progress())

    @contextlib.contextmanager
    def used(self, exploration: Exploration | None) -> Iterator[Exploration | None]:
        """Let the policy explore by a copy in this block, so that no graph holds the value of a schedule; yield it."""
        policy, copied = self._policy, None
        if exploration is not None:
            known = self._known.setdefault(id(exploration), ScheduledExploration(exploration, policy.device))
            known.follow(policy.progress())
            copied = known.copy
        own = policy.exploration, policy.progress
        policy.exploration, policy.progress = copied, no_progress
        try:
            yield copied
        finally:
            policy.exploration, policy.progress = own


def fingerprint_of(policy: Policy) -> Fingerprint:
    """Return the names for what a recorded choice of a policy depends on."""
    return Fingerprint(policy, [policy], [*policy.parameters(), *policy.buffers()], is_recorded=True)


class ActingGraph:
    """Runs `Policy.select_action` for all envs as a CUDA graph, with the numbers that it returns without one.

    A graph is recorded for each state of the policy, exploration and set of columns, and again after a change that it
    would not see: other modules, hooks, modes or memory of weights, other attributes of a user's policy. Schedules are
    followed. A policy that cannot be recorded acts without a graph; the log gives the reason, once.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._recorder: CudaRecorder | None = None
        self._state = fingerprint_of(policy)
        self._explorations = ScheduledExplorations(policy)
        self._recordings: dict[Hashable, Recording] = {}
        self._current: Recording | None = None
        self._has_given_up = False
        # Set at the start of every collection.
        self._key: tuple[Hashable, ...] = ()
        self._exploration: Exploration | None = None  # that replaces the policy's
        self._acting: Exploration | None = None
        self._explore, self._columns = True, tuple[str, ...]()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the graphs, which read the original's networks."""
        return type(self), (self.policy,)

    def begin(self, exploration: Exploration | None, explore: bool, columns: tuple[str, ...]) -> None:
        """Prepare for a collection with these columns; `exploration` replaces the policy's own."""
        if self._has_given_up:
            return
        self._exploration, self._explore, self._columns = exploration, explore, columns
        acting = self.policy.exploration if exploration is None else exploration
        self._acting = acting = acting if explore else None
        key = self._state(), explore, exploration is None, id(acting), columns
        if key != self._key:
            self._key, self._current = key, None
        self._explorations.follow(acting)

    def decide(self, obs: Tree, memory: Tensor | None, generator: Generator) -> Decision | None:
        """Decide for observations [N, ...], the same memory at each step; None if that cannot be recorded.

        The action and the columns are on the host, valid until the next call; the next memory is on the device.
        """
        if self._has_given_up:
            return None
        current = self._current
        if current is None or current.obs is not obs or current.generator is not generator:
            current = self._current = self._find(obs, memory, generator)
            if current is None:
                return None
        if current.memory is not memory and current.memory is not None and memory is not None:
            current.memory.copy_(memory)
        values = current.graph()
        return Decision(values["action"], current.memory, values)

    def _find(self, obs: Tree, memory: Tensor | None, generator: Generator) -> Recording | None:
        key = (*self._key, id(obs), id(generator))  # a recording keeps these objects: their ids are not used again
        if key not in self._recordings:
            try:
                self._recordings[key] = self._record(obs, memory, generator)
            except Exception as error:  # if it is the policy's own, the call without a graph raises it
                self._has_given_up = True
                reason = str(error).strip().partition("\n")[0]
                text = "%s acts without a CUDA graph, which cannot be recorded: %s"
                logging.getLogger("rltrainer").info(text, type(self.policy).__name__, reason)
        return self._recordings.get(key)

    def _record(self, obs: Tree, memory: Tensor | None, generator: Generator) -> Recording:
        policy, acting = self.policy, self._acting
        if len(self._recordings) == MAX_GRAPHS:
            raise RuntimeError(f"what it depends on has changed {MAX_GRAPHS} times")
        if acting is not None and type(acting) not in RECORDED_EXPLORATIONS:
            raise RuntimeError(f"the exploration {type(acting).__name__} is not of rltrainer")
        own = None if memory is None else memory.clone()
        self._recorder = self._recorder or CudaRecorder(policy.device)
        state = [*policy.buffers(), *([] if own is None else [own])]
        with self._state.unchanged(), undone(state, [generator]), self._explorations.used(acting) as exploration:

            def choose(deliver: Callable[[dict[str, Tensor]], None]) -> None:
                replacing = None if self._exploration is None else exploration
                given: dict[str, Any] = {"explore": self._explore, "generator": generator, "exploration": replacing}
                decision = policy.select_action(obs, own, **given)
                if own is None and decision.state is not None:
                    raise RuntimeError("decide returns a memory, and initial_state none")
                values: dict[str, Any] = {"action": decision.action}
                for name in self._columns:
                    value = own if name == MEMORY and own is not None else decision.extra.get(name)
                    if value is not None:
                        values[name] = value() if callable(value) else value
                deliver(values)
                if own is not None and decision.state is not None:
                    own.copy_(decision.state)  # after the column of the memory was delivered

            graph = HostGraph(choose, self._recorder, policy.device, [generator])
        return Recording(obs, generator, own, graph, acting)
