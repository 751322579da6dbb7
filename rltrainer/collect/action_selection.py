"""The choice of actions for a collection, and the memory between steps."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.envs import EnvAdapter
from rltrainer.envs.adapter.episode_clock import Rows
from rltrainer.errors import CheckpointError, ParamsError, SpaceError, readable
from rltrainer.execution.policy_execution import PolicyExecution
from rltrainer.nets import Exploration, Policy
from rltrainer.nets.exploration import allowed, has_state
from rltrainer.nets.policy import VERSION, Decision
from rltrainer.state.codec import check_like
from rltrainer.tree import Tree

# The column of the memory that an action was chosen with.
MEMORY = "state"
# Columns that do not depend on how the actions are chosen.
UNCHOSEN = {MEMORY, *VERSION}


class ActionSelection:
    """Chooses actions by a collector's policy or at random, and keeps the memory of policy or exploration."""

    def __init__(self, policy: Policy, adapter: EnvAdapter) -> None:
        self.memory: Tensor | None = None  # [N, S] float32, since the first collection
        self.columns: tuple[str, ...] = ()  # the ones that the buffer declares
        self.policy, self._adapter = policy, adapter
        self.initial = self._initial_memory(None)
        self._before: Tensor | None = None  # the memory that the last decision was made with
        # Set at the start of every collection.
        self.acting: Exploration | None = None
        self.replacing: Exploration | None = None
        self.random, self.explore, self._is_recorded = False, True, False
        self._execution = PolicyExecution(policy, self._choose, policy.device)

    def begin(self, exploration: Exploration | None, random: bool, explore: bool) -> None:
        """Prepare for a collection; a memory that does not continue an episode is the initial one.

        A `ParamsError` if the buffer declares a column of the policy's own choices, and others choose.
        """
        self.replacing, self.random, self.explore = exploration, random, explore
        acting = self.policy.exploration if exploration is None else exploration
        if acting is not self.acting or self.initial is not None:
            self.acting, self.initial = acting, self._initial_memory(acting)
            if self.memory is None or self._adapter.is_fresh:
                self.memory = self.initial
        if self.columns and (random or (explore and acting is not None)):
            lost = [name for name in self.columns if name not in UNCHOSEN]
            if lost:
                rule = "must hold no column of the policy's own choices, where others replace them"
                raise ParamsError.about("Collector", "buffer.extra", rule, lost)
        uploaded = self._adapter.is_uploaded and not random
        self._is_recorded = uploaded and self._execution.begin(exploration, explore, self.columns)

    def decide(self, obs: Tree, generator: torch.Generator, envs: Tensor | None = None) -> Decision:
        """Decide for observations [N, ...], or of some envs [K], and keep the memory."""
        if self._is_recorded and envs is None:
            chosen = self._execution.choose(obs, self.memory, generator)
            if chosen is not None:
                values, self.memory = chosen
                self._before = values.get(MEMORY)
                return Decision(values["action"], self.memory, values)
        memory = self._before = self.memory if envs is None or self.memory is None else self.memory[envs]
        if self.random:
            space, mask = self._adapter.action_space, self.policy.mask_of(obs)
            action = random_action(space, self._adapter.num_envs if envs is None else len(envs), generator)
            decision = Decision(action if mask is None else allowed(action, mask, space, generator))
            if self.policy.is_recurrent and memory is not None:  # its memory depends on the observations
                decision.state = self.policy.select_action(obs, memory).state
        else:
            decision = self.policy.select_action(
                obs, memory, explore=self.explore, generator=generator, exploration=self.replacing
            )
        if decision.state is not None:
            if envs is None or self.memory is None:
                self.memory = decision.state
            else:
                # A new tensor: the last one may be a column of a rollout, or in a state that is being saved.
                self.memory = self.memory.index_copy(0, envs, decision.state)
        return decision

    def _choose(
        self, obs: Tree, memory: Tensor | None, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return the action and the declared columns of a decision, and the next memory; a pure function."""
        exploration = self._execution.replacing
        given: dict[str, Any] = {"explore": self.explore, "generator": generator, "exploration": exploration}
        decision = self.policy.select_action(obs, memory, **given)
        known = {**decision.extra, "action": decision.action} | ({} if memory is None else {MEMORY: memory})
        chosen = {name: known[name] for name in ("action", *self.columns) if name in known}
        return {name: x() if callable(x) else x for name, x in chosen.items()}, decision.state

    def forget(self, envs: Rows) -> None:
        """Start another episode in these envs [K]."""
        if self.memory is not None and self.initial is not None:
            rows = torch.from_numpy(envs).to(self.memory.device)
            self.memory = self.memory.index_copy(0, rows, self.initial[rows])

    def extra(self, decision: Decision) -> dict[str, Tensor]:
        """Return the declared columns of the last decision [N, ...] or [K, ...]; a `ParamsError` if it lacks one."""
        columns = {}
        for name in self.columns:
            value = self._before if name == MEMORY and self._before is not None else decision.extra.get(name)
            if value is None and name in VERSION:
                value = torch.full((len(decision.action),), self.policy.version)
            if value is None:
                rule = f"must return extra[{name!r}], as extra_specs declares; got {list(decision.extra)}"
                raise ParamsError(f"{type(self.policy).__name__}.decide: {rule}")
            columns[name] = value() if callable(value) else value
        return columns

    def saved_memory(self) -> Tensor | None:
        """Return a copy of the memory [N, ...], because a graph changes the memory in place."""
        return None if self.memory is None else self.memory.clone()

    def check_memory(self, memory: Tensor | None, exploration: Exploration | None) -> None:
        """Raise a `CheckpointError` unless a saved memory [N, ...] is of this policy, or of what explores instead."""
        initial = self._initial_memory(self.policy.exploration if exploration is None else exploration)
        if memory is not None and initial is None:
            raise CheckpointError(f"collector.memory: {type(self.policy).__name__} has none, found {readable(memory)}")
        if memory is not None and initial is not None:
            check_like("collector.memory", initial.cpu(), memory, "The policy or its exploration is another.")

    def set_memory(self, memory: Tensor | None, exploration: Exploration | None) -> None:
        """Take over a memory [N, ...] that was checked."""
        self.initial = self._initial_memory(self.policy.exploration if exploration is None else exploration)
        self.memory = memory if memory is None or self.initial is None else memory.to(self.initial.device)

    def _initial_memory(self, exploration: Exploration | None) -> Tensor | None:
        num_envs = self._adapter.num_envs
        memory = self.policy.initial_state(num_envs)
        if not has_state(exploration):
            return memory
        if memory is not None:
            rule = f"must have no memory where {type(self.policy).__name__} has one"
            raise ParamsError.about("Collector", "exploration", rule, exploration)
        return exploration.initial_state(num_envs, self._adapter.action_space).to(self.policy.device)


def random_action(space: gym.Space[Any], num_envs: int, generator: torch.Generator) -> Tensor:
    """Draw one action per env [N, ...], from a standard normal in a Box without finite bounds; or a `SpaceError`."""
    device, shape = generator.device, (num_envs, *(space.shape or ()))
    if isinstance(space, spaces.Discrete):
        # Not from `start` on: the number after the last choice may be none of int64.
        return torch.randint(int(space.n), shape, generator=generator, device=device) + int(space.start)
    if isinstance(space, spaces.Box):
        if not space.is_bounded():
            return torch.randn(shape, generator=generator, device=device)
        low, high = (torch.from_numpy(bound.astype(np.float32)).to(device) for bound in (space.low, space.high))
        return low + torch.rand(shape, generator=generator, device=device) * (high - low)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        sizes, start = (space.nvec, space.start) if isinstance(space, spaces.MultiDiscrete) else (2, 0)
        uniform = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        choice = (uniform * torch.as_tensor(sizes, device=device)).long()
        return choice + torch.as_tensor(np.asarray(start, np.int64), device=device)
    raise SpaceError(f"random actions need a Box, Discrete, MultiDiscrete or MultiBinary action space; got {space}")
