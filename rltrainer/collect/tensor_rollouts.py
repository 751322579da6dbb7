"""Rollouts of envs of tensors: many rows of policy and envs as one function of tensors, without an object per step."""

import logging
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Generator, Tensor

from rltrainer.collect.acting_graph import MEMORY
from rltrainer.envs.adapter.actions import ActionConverter
from rltrainer.envs.adapter.episode_clock import Rows
from rltrainer.envs.tensors.tensor_vector_env import TensorEnvState, TensorVectorEnv
from rltrainer.nets import Exploration, Policy
from rltrainer.nets.noise import Draw, DrawnNumbers, DrawRecord
from rltrainer.nets.policy import VERSION
from rltrainer.tree import Tree, map_tree
from rltrainer.updates.compiled_step import CompiledFunction

Fields = dict[str, Tree]
"""Fields of a rollout by their names."""

ROWS_PER_CALL = 16
"""Rows in one compiled function: more take longer to compile, and a call costs little beside so many."""


class TensorRollouts:
    """Collects rollouts [T, N] from a `TensorVectorEnv`, whose `current` state moves on.

    ```
    numbers of policy [T, ...] and envs [T, N, ...]     # drawn for all rows at once
    for some rows at a time, as one function of tensors:
        decision = policy.select_action(obs, memory)
        state, step = envs.advance(state, decision.action)
    ```

    On the CPU the function is compiled if the policy's updates are.
    """

    def __init__(self, policy: Policy, envs: TensorVectorEnv) -> None:
        self._policy, self._envs = policy, envs
        self._to_env = ActionConverter(envs.single_action_space, envs.num_envs, envs.device)
        self._draws: dict[tuple[bool, bool], list[Draw] | None] = {}
        self._compiled: CompiledFunction | None = None

    def can_collect(self, exploration: Exploration | None, memory: Tensor | None, generator: Generator) -> bool:
        """Return whether a policy acts here, with this exploration: without a mask, and by its own sampling alone."""
        policy = self._policy
        is_plain = exploration is None and policy.exploration is None and not policy.has_mask
        return is_plain and self._draws_of(memory, True, generator) is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the compiled function, which runs the original's networks."""
        return type(self), (self._policy, self._envs)

    @property
    def obs(self) -> Tree:
        """The observations to act on next [N, ...]."""
        return self._envs.observe(self._envs.current.state)

    @torch.no_grad()
    def collect(
        self, num_rows: int, memory: Tensor | None, explore: bool, generator: Generator, columns: tuple[str, ...]
    ) -> tuple[Fields, Tensor | None]:
        """Return the columns of T rows [T, N, ...], by the names of a rollout's fields, and the next memory [N, S].

        `env_action` are the actions that the envs received.
        """
        envs = self._envs
        initial = None if memory is None else self._policy.initial_state(envs.num_envs)
        draws = self._draws_of(memory, explore, generator) or []
        numbers = [draw.numbers(envs.device, generator, num_rows) for draw in draws]
        uniform, state = envs.sample_uniforms(num_rows), envs.current
        # The version changes with each update: a compiled function would have to be compiled again.
        chosen, parts = tuple(name for name in columns if name not in VERSION), []
        for first in range(0, num_rows, ROWS_PER_CALL):
            some = slice(first, first + ROWS_PER_CALL)
            drawn = [each[some] for each in numbers]
            state, memory, rows = self._run(state, memory, initial, drawn, uniform[some], explore, chosen)
            parts.append(rows)
        envs.current = state
        rows = parts[0] if len(parts) == 1 else map_tree(lambda *x: torch.cat(x), *parts)
        extra = cast(dict[str, Tensor], rows["extra"])
        for name in columns:
            if name in VERSION:
                extra[name] = torch.full((num_rows, envs.num_envs), self._policy.version, device=envs.device)
        return rows, memory

    def fields_of_rollout(self, rows: Fields, keeps_env_action: bool, ended: tuple[Rows, Rows]) -> Fields:
        """Return the fields of a rollout but `starts`, of T rows in which episodes ended in these rows and envs [E]."""
        reward, env_action = rows["reward"], rows.pop("env_action")
        index = torch.from_numpy(ended[0] * self._envs.num_envs + ended[1]).to(reward.device)
        final_obs = map_tree(lambda x: x.flatten(0, 1).index_select(0, index), rows["successor"])
        own = {"valid": torch.ones_like(rows["terminated"]), "last_obs": self.obs, "final_obs": final_obs}
        own["action"] = env_action if keeps_env_action else rows["action"]
        return rows | own | {"final_index": index}

    @torch.no_grad()
    def _draws_of(self, memory: Tensor | None, explore: bool, generator: Generator) -> list[Draw] | None:
        """Return the random numbers that a decision for all envs asks for; None if it draws them in another way."""
        key = explore, memory is None
        if key not in self._draws:
            before, record = generator.get_state(), DrawRecord(generator)
            try:
                self._policy.select_action(self.obs, memory, explore=explore, generator=cast(Generator, record))
                self._draws[key] = record.draws
            except TypeError as error:  # of torch: it is no generator
                self._draws[key] = None
                text = "%s acts step by step in envs of tensors, as it draws its random numbers by itself: %s"
                logging.getLogger("rltrainer").info(text, type(self._policy).__name__, error)
            generator.set_state(before)
        return self._draws[key]

    def _run(self, *args: Any) -> tuple[TensorEnvState, Tensor | None, Fields]:
        """Run some rows, compiled if updates are."""
        if not self._policy.is_compiled or self._envs.device.type != "cpu":
            return self._rows(*args)
        if self._compiled is None:
            self._compiled = CompiledFunction("rollouts of envs of tensors", self._rows)
        return self._compiled(*args)  # type: ignore[no-any-return]  # a function may return anything

    def _rows(
        self, state: TensorEnvState, memory: Tensor | None, initial: Tensor | None, numbers: list[Tensor],
        uniform: Tensor, explore: bool, columns: tuple[str, ...],
    ) -> tuple[TensorEnvState, Tensor | None, Fields]:  # fmt: skip
        """Run as many rows as there are random numbers; a pure function."""
        policy, envs, rows = self._policy, self._envs, []
        obs = envs.observe(state.state)
        for t in range(len(uniform)):
            drawn = cast(Generator, DrawnNumbers([each[t] for each in numbers]))
            decision = policy.select_action(obs, memory, explore=explore, generator=drawn)
            given = decision.extra if memory is None else {**decision.extra, MEMORY: memory}
            extra = {name: _called(given[name]) for name in columns}
            env_action = self._to_env(decision.action)
            state, step = envs.advance(state, env_action, uniform[t])
            row = {"obs": obs, "action": decision.action, "env_action": env_action, "extra": extra}
            row |= {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated}
            rows.append(row | {"successor": step.final_obs})
            obs, memory = step.obs, memory if decision.state is None else decision.state
            if memory is not None and initial is not None:
                memory = torch.where((step.terminated | step.truncated)[:, None], initial, memory)
        return state, memory, map_tree(lambda *x: torch.stack(x), *rows)


def _called(column: Tensor | Callable[[], Tensor]) -> Tensor:
    return column() if callable(column) else column
