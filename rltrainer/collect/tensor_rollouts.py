"""Rollouts of envs of tensors: many rows of policy and envs as one function of tensors, without an object per step."""

import contextlib
import logging
from collections.abc import Hashable, Iterator
from typing import Any, NoReturn, cast

import torch
from torch import Generator, Tensor

from rltrainer.collect.acting_graph import MEMORY, RECORDED_EXPLORATIONS, ScheduledExplorations, fingerprint_of
from rltrainer.collect.action_selection import ActionSelection, random_action
from rltrainer.collect.faults import raise_choice_fault
from rltrainer.envs.adapter.actions import ActionConverter
from rltrainer.envs.adapter.episode_clock import Rows
from rltrainer.envs.tensors.tensor_vector_env import TensorEnvState, TensorVectorEnv
from rltrainer.errors import NonFiniteError
from rltrainer.execution.cpu_loop import CompiledLoop
from rltrainer.execution.cuda_graph import CudaGraphs, CudaRecorder, without_waiting
from rltrainer.execution.fingerprint import Fingerprint, plain
from rltrainer.nets import Exploration, Policy
from rltrainer.nets.noise import Draw, DrawnNumbers, DrawRecord
from rltrainer.nets.policy import VERSION, Decision
from rltrainer.tree import Tree, map_tensors, map_tree

Fields = dict[str, Tree]
"""Fields of a rollout by their names."""
Drawn = tuple[list[Tensor], Tensor | None, Tensor]
"""Random numbers of T rows: of the policy's decisions [T, ...], or the actions [T, N]; and of the envs [T, N, ...]."""

ROWS_PER_GRAPH = 128
"""Rows in one CUDA graph: more take longer to record, and memory, and a replay costs little beside so many."""


class TensorRollouts:
    """Collects rollouts [T, N] from a `TensorVectorEnv`; the env's `current` state moves on.

    ```
    numbers of policy [T, ...] and envs [T, N, ...]     # drawn for all rows at once
    for each row:
        decision = policy.select_action(obs, memory)
        state, step = envs.advance(state, decision.action)
    ```

    On the CPU this is a compiled loop if the policy's updates are compiled; on CUDA some rows are one CUDA graph.
    """

    # Random numbers are drawn before: neither compiled nor recorded code then has a generator, and the numbers do not
    # depend on how many rows it holds. The graph copies the state of envs and memory in and out, so `envs.current` may
    # be replaced at any time.

    def __init__(self, policy: Policy, envs: TensorVectorEnv) -> None:
        self._policy, self._envs = policy, envs
        self._to_env = ActionConverter(envs.single_action_space, envs.num_envs, envs.device)
        self._draws: dict[Hashable, list[Draw] | None] = {}
        self._loop: CompiledLoop | None = None
        self._rows_like: dict[Hashable, Fields] = {}
        self._graphs: CudaGraphs | None = None
        self._policy_state: Fingerprint | None = None
        self._states: dict[Hashable, int] = {}
        self._explorations = ScheduledExplorations(policy)
        # Set while it collects.
        self._key: tuple[Hashable, ...] = ()
        self._replacing: Exploration | None = None

    def can_collect(self, selection: ActionSelection, generator: Generator) -> bool:
        """Return whether actions are chosen here: without a mask, and by random numbers that can be drawn before."""
        policy, acting = self._policy, selection.acting if selection.explore else None
        if policy.has_mask:
            return False
        if selection.random:
            return not policy.is_recurrent
        if acting is not None and type(acting) not in RECORDED_EXPLORATIONS:
            return False
        with self._exploring(selection):
            return self._draws_of(selection, generator) is not None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the compiled function and the graphs, which run the original's networks."""
        return type(self), (self._policy, self._envs)

    @property
    def obs(self) -> Tree:
        """The observations to act on next [N, ...]."""
        return self._envs.observe(self._envs.current.state)

    @torch.no_grad()
    def collect(self, num_rows: int, selection: ActionSelection, generator: Generator, num_before: int) -> Fields:
        """Return the columns of T rows [T, N, ...], by the names of a rollout's fields; the memory moves on.

        `env_action` are the actions that the envs received. An error names the step; `num_before` were taken before.
        """
        envs = self._envs
        with self._exploring(selection):
            numbers, actions = self._numbers(num_rows, selection, generator)
            drawn: Drawn = numbers, actions, envs.sample_uniforms(num_rows)
            state, memory = envs.current, selection.memory
            # A copy: the memory may be the same tensor at first, for which the compiler would make code of its own.
            initial = None if memory is None or selection.initial is None else selection.initial.clone()
            size = num_rows if envs.device.type == "cpu" else ROWS_PER_GRAPH
            # The version changes with each update: a compiled function would have to be compiled again.
            columns, parts = tuple(name for name in selection.columns if name not in VERSION), []
            for first in range(0, num_rows, size):
                some = map_tensors(lambda x: x[first : first + size], drawn)  # noqa: B023  # called at once
                given = state, memory, initial, some, selection.explore, columns
                try:
                    state, memory, rows = self._run(*given)
                except NonFiniteError as error:
                    self._raise_named(error, num_before + first, *given)
                parts.append(rows)
        envs.current, selection.memory = state, memory
        rows = parts[0] if len(parts) == 1 else map_tree(lambda *x: torch.cat(x), *parts)
        extra = cast(dict[str, Tensor], rows["extra"])
        for name in VERSION.keys() & set(selection.columns):
            extra[name] = torch.full((num_rows, envs.num_envs), self._policy.version, device=envs.device)
        return rows

    def _raise_named(
        self, error: NonFiniteError, num_steps: int, state: TensorEnvState, memory: Tensor | None,
        initial: Tensor | None, drawn: Drawn, *choices: Any,
    ) -> NoReturn:  # fmt: skip
        """Run rows again, which failed after so many steps, one by one, and raise the error with the step."""
        for t in range(len(drawn[2])):
            obs, own = self._envs.observe(state.state), map_tensors(lambda x: x[t : t + 1], drawn)  # noqa: B023  # as above
            try:
                state, memory, _ = self._rows(state, memory, initial, own, *choices)
            except NonFiniteError as found:
                raise_choice_fault(found, self._policy, obs, num_steps + t)
        raise error

    def fields_of_rollout(self, rows: Fields, keeps_env_action: bool, ended: tuple[Rows, Rows]) -> Fields:
        """Return the fields of a rollout [T, N] but `starts`; episodes ended at rows and envs `ended`, [E] each."""
        reward, env_action = rows["reward"], rows.pop("env_action")
        index = torch.from_numpy(ended[0] * self._envs.num_envs + ended[1]).to(reward.device)
        final_obs = map_tree(lambda x: x.flatten(0, 1).index_select(0, index), rows["successor"])
        own = {"valid": torch.ones_like(rows["terminated"]), "last_obs": self.obs, "final_obs": final_obs}
        own["action"] = env_action if keeps_env_action else rows["action"]
        return rows | own | {"final_index": index}

    @contextlib.contextmanager
    def _exploring(self, selection: ActionSelection) -> Iterator[None]:
        acting = selection.acting if selection.explore and not selection.random else None
        with self._explorations.used(acting) as copied:
            self._replacing = None if selection.replacing is None else copied
            self._key = id(acting), self._replacing is not None
            yield

    def _numbers(
        self, num_rows: int, selection: ActionSelection, generator: Generator
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the random numbers of T decisions [T, ...]; or, if they are random themselves, the actions [T, N]."""
        envs = self._envs
        if selection.random:
            action = random_action(envs.single_action_space, num_rows * envs.num_envs, generator)
            return [], action.view(num_rows, envs.num_envs, *action.shape[1:])
        draws = self._draws_of(selection, generator) or []
        return [draw.numbers(envs.device, generator, num_rows) for draw in draws], None

    @torch.no_grad()
    def _draws_of(self, selection: ActionSelection, generator: Generator) -> list[Draw] | None:
        """Return the random numbers that a decision for all envs asks for; None if it draws them in another way."""
        memory, explore = selection.memory, selection.explore
        key = explore, memory is None, self._key
        if key not in self._draws:
            before, record = generator.get_state(), cast(Generator, DrawRecord(generator))
            try:
                given: dict[str, Any] = {"explore": explore, "generator": record, "exploration": self._replacing}
                self._policy.select_action(self.obs, memory, **given)
                self._draws[key] = cast(DrawRecord, record).draws
            except NonFiniteError:
                return None  # a step by itself raises it again, with its number
            except TypeError as error:  # of torch: it is no generator
                self._draws[key] = None
                text = "%s acts step by step in envs of tensors, as it draws its random numbers by itself: %s"
                logging.getLogger("rltrainer").info(text, type(self._policy).__name__, error)
            finally:
                generator.set_state(before)
        return self._draws[key]

    def _run(self, *args: Any) -> tuple[TensorEnvState, Tensor | None, Fields]:
        """Run some rows: as a compiled loop if updates are compiled, on CUDA as a graph."""
        policy, on_cpu = self._policy, self._envs.device.type == "cpu"
        if not (policy.is_compiled if on_cpu else policy.cuda_graph):
            return self._rows(*args)
        if on_cpu:
            return self._run_loop(*args) or self._rows(*args)
        if self._graphs is None or self._policy_state is None:
            recorder, name = CudaRecorder(self._envs.device), "a rollout of envs of tensors"
            self._graphs = CudaGraphs(self._recorded, lambda: [*policy.buffers()], recorder, name=name)
            self._policy_state = fingerprint_of(policy)
        if self._graphs.is_on:
            try:
                state = self._policy_state(), self._key, plain(vars(self._envs.env))
                return self._graphs(self._states.setdefault(state, len(self._states)), *args)  # type: ignore[no-any-return]  # as above
            except Exception as error:  # if it is the policy's own, the call without a graph raises it
                self._graphs.give_up(error)
        return self._rows(*args)

    def _run_loop(
        self, state: TensorEnvState, memory: Tensor | None, initial: Tensor | None, drawn: Drawn, *choices: Any
    ) -> tuple[TensorEnvState, Tensor | None, Fields] | None:
        """Run rows as a compiled loop, which writes them into memory; return None if it cannot be compiled."""
        self._loop = self._loop or CompiledLoop("a rollout of envs of tensors", self._run_row)
        num_rows, key = len(drawn[2]), (choices, self._key, memory is None, drawn[1] is None)
        if key not in self._rows_like:
            *_, first = self._rows(state, memory, initial, map_tensors(lambda x: x[:1], drawn), *choices)
            self._rows_like[key] = map_tree(lambda x: torch.empty_like(x[0]), first)
        # Each number of rows is a shape to compile: the next power of two.
        room = 1 << (num_rows - 1).bit_length()
        drawn = map_tensors(lambda x: torch.cat([x, x.new_zeros(room - num_rows, *x.shape[1:])]), drawn)
        rows = map_tree(lambda x: x.new_empty((room, *x.shape)), self._rows_like[key])
        state, memory = map_tensors(Tensor.clone, state), None if memory is None else memory.clone()
        found = self._loop(str(self._key), num_rows, state, memory, initial, drawn, choices, rows)
        return None if found is None else (state, memory, map_tree(lambda x: x[:num_rows], rows))

    def _run_row(
        self, index: Tensor, state: TensorEnvState, memory: Tensor | None, initial: Tensor | None, drawn: Drawn,
        choices: tuple[Any, ...], rows: Fields,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Run the row at `index` [1], and change in place: this row, the envs' state and the memory."""
        own = map_tensors(lambda x: x.index_select(0, index), drawn)
        after, memory_after, row = self._rows(state, memory, initial, own, *choices)
        map_tree(lambda column, x: column.index_copy_(0, index, x), rows, row)
        map_tree(Tensor.copy_, state.state, after.state)
        state.num_steps.copy_(after.num_steps)
        if memory is not None and memory_after is not None:
            memory.copy_(memory_after)
        return {}

    def _recorded(self, state: int, *args: Any) -> tuple[TensorEnvState, Tensor | None, Fields]:
        """Run some rows in a way that can be recorded, for each state of policy and rules."""
        assert self._policy_state is not None, "made with the graphs"
        with self._policy_state.unchanged(), without_waiting():
            return self._rows(*args)

    def _rows(
        self, state: TensorEnvState, memory: Tensor | None, initial: Tensor | None, drawn: Drawn, explore: bool,
        columns: tuple[str, ...],
    ) -> tuple[TensorEnvState, Tensor | None, Fields]:  # fmt: skip
        """Run as many rows as there are random numbers; a pure function."""
        policy, envs, rows, (numbers, actions, uniform) = self._policy, self._envs, [], drawn
        obs = envs.observe(state.state)
        for t in range(len(uniform)):
            if actions is None:
                given: dict[str, Any] = {"explore": explore, "exploration": self._replacing}
                given["generator"] = cast(Generator, DrawnNumbers([each[t] for each in numbers]))
                decision = policy.select_action(obs, memory, **given)
            else:
                decision = Decision(actions[t])
            known = decision.extra if memory is None else {**decision.extra, MEMORY: memory}
            chosen = {name: known[name] for name in columns}
            extra = {name: column() if callable(column) else column for name, column in chosen.items()}
            env_action = self._to_env(decision.action)
            state, step = envs.advance(state, env_action, uniform[t])
            row = {"obs": obs, "action": decision.action, "env_action": env_action, "extra": extra}
            row |= {"reward": step.reward, "terminated": step.terminated, "truncated": step.truncated}
            rows.append(row | {"successor": step.final_obs})
            obs, memory = step.obs, memory if decision.state is None else decision.state
            if memory is not None and initial is not None:
                memory = torch.where((step.terminated | step.truncated)[:, None], initial, memory)
        return state, memory, map_tree(lambda *x: torch.stack(x), *rows)
