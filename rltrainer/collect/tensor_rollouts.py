"""Rollouts of envs of tensors: many rows of policy and envs as one function of tensors, without an object per step."""

from typing import Any, NoReturn, cast

import torch
from torch import Generator, Tensor

from rltrainer.collect.action_selection import MEMORY, ActionSelection, random_action
from rltrainer.collect.faults import raise_choice_fault
from rltrainer.envs.adapter.actions import ActionConverter
from rltrainer.envs.adapter.episode_clock import Rows
from rltrainer.envs.tensors.tensor_vector_env import TensorEnvState, TensorVectorEnv
from rltrainer.errors import NonFiniteError
from rltrainer.execution.policy_execution import PolicyExecution
from rltrainer.nets import Policy
from rltrainer.nets.noise import DrawnNumbers
from rltrainer.nets.policy import VERSION, Decision
from rltrainer.tree import Tree, map_tensors, map_tree

Fields = dict[str, Tree]
"""Fields of a rollout by their names."""
Drawn = tuple[list[Tensor], Tensor | None, Tensor]
"""Random numbers of T rows: of the policy's decisions [T, ...], or the actions [T, N]; and of the envs [T, N, ...]."""


class TensorRollouts:
    """Collects rollouts [T, N] from a `TensorVectorEnv`; the env's `current` state moves on.

    ```
    numbers of policy [T, ...] and envs [T, N, ...]     # drawn for all rows at once
    for each row:
        decision = policy.select_action(obs, memory)
        state, step = envs.advance(state, decision.action)
    ```

    `PolicyExecution` runs these rows: as written, as a compiled loop, or as CUDA graphs.
    """

    # Random numbers are drawn before: neither compiled nor recorded code then has a generator, and the numbers do not
    # depend on how many rows it holds. State of envs and memory go in and come out, so `envs.current` may be replaced
    # at any time.

    def __init__(self, policy: Policy, envs: TensorVectorEnv) -> None:
        self._policy, self._envs = policy, envs
        self._to_env = ActionConverter(envs.single_action_space, envs.num_envs, envs.device)
        self._execution = PolicyExecution(policy, self._rows, envs.device, envs.env)

    @property
    def obs(self) -> Tree:
        """The observations to act on next [N, ...]."""
        return self._envs.observe(self._envs.current.state)

    @torch.no_grad()
    def collect(
        self, num_rows: int, selection: ActionSelection, generator: Generator, num_before: int
    ) -> Fields | None:  # fmt: skip
        """Return the columns of T rows [T, N, ...], by the names of a rollout's fields; the memory moves on.

        None, and nothing was done, with a mask or with random numbers that cannot be drawn before. `env_action` are the
        actions that the envs received. An error names the step; `num_before` were taken before.
        """
        envs, memory, explore = self._envs, selection.memory, selection.explore and not selection.random
        if self._policy.has_mask or (selection.random and self._policy.is_recurrent):
            return None
        # The version changes with each update: a compiled function would have to be compiled again.
        columns = tuple(name for name in selection.columns if name not in VERSION)
        self._execution.begin(selection.replacing, explore, selection.random, memory is None, columns)
        drawn = self._drawn(num_rows, selection, generator)
        if drawn is None:
            return None
        given = _carried(envs.current, memory), drawn, None if memory is None else selection.initial, explore, columns
        with self._execution.exploring():
            try:
                after, rows = self._execution.rows(num_rows, *given)
            except NonFiniteError as error:
                self._raise_named(error, num_before, *given)
        envs.current, selection.memory = TensorEnvState(after["state"], after["num_steps"]), after.get("memory")
        for name in VERSION.keys() & set(selection.columns):
            rows["extra"][name] = torch.full((num_rows, envs.num_envs), self._policy.version, device=envs.device)
        return rows  # type: ignore[no-any-return]  # fields

    def _raise_named(
        self, error: NonFiniteError, num_before: int, carried: Fields, drawn: Drawn, *fixed: Any
    ) -> NoReturn:  # fmt: skip
        """Run rows again that failed, one by one, and raise the error with the step."""
        for t in range(len(drawn[2])):
            obs, own = self._envs.observe(carried["state"]), map_tensors(lambda x: x[t : t + 1], drawn)  # noqa: B023  # called at once
            try:
                carried, _ = self._rows(carried, own, *fixed)
            except NonFiniteError as found:
                raise_choice_fault(found, self._policy, obs, num_before + t)
        raise error

    def fields_of_rollout(self, rows: Fields, keeps_env_action: bool, ended: tuple[Rows, Rows]) -> Fields:
        """Return the fields of a rollout [T, N] but `starts`; episodes ended at rows and envs `ended`, [E] each."""
        reward, env_action = rows["reward"], rows.pop("env_action")
        index = torch.from_numpy(ended[0] * self._envs.num_envs + ended[1]).to(reward.device)
        final_obs = map_tree(lambda x: x.flatten(0, 1).index_select(0, index), rows["successor"])
        own = {"valid": torch.ones_like(rows["terminated"]), "last_obs": self.obs, "final_obs": final_obs}
        own["action"] = env_action if keeps_env_action else rows["action"]
        return rows | own | {"final_index": index}

    def _drawn(self, num_rows: int, selection: ActionSelection, generator: Generator) -> Drawn | None:
        """Return the random numbers of T rows; None if the policy draws its own in another way."""
        envs, actions = self._envs, None
        draws = [] if selection.random else self._execution.draws(self.obs, selection.memory, generator)
        if draws is None:
            return None
        if selection.random:
            actions = random_action(envs.single_action_space, num_rows * envs.num_envs, generator)
            actions = actions.view(num_rows, envs.num_envs, *actions.shape[1:])
        numbers = [draw.numbers(envs.device, generator, num_rows) for draw in draws]
        return numbers, actions, envs.sample_uniforms(num_rows)

    def _rows(
        self, carried: Fields, drawn: Drawn, initial: Tensor | None, explore: bool, columns: tuple[str, ...]
    ) -> tuple[Fields, Fields]:  # fmt: skip
        """Run as many rows as there are random numbers; a pure function."""
        policy, envs, rows, (numbers, actions, uniform) = self._policy, self._envs, [], drawn
        state, memory = TensorEnvState(carried["state"], carried["num_steps"]), carried.get("memory")
        obs = envs.observe(state.state)
        for t in range(len(uniform)):
            if actions is None:
                given: dict[str, Any] = {"explore": explore, "exploration": self._execution.replacing}
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
        return _carried(state, memory), map_tree(lambda *x: torch.stack(x), *rows)


def _carried(state: TensorEnvState, memory: Tensor | None) -> Fields:
    """Return what a row hands on to the next one."""
    carried = {"state": state.state, "num_steps": state.num_steps}
    return carried if memory is None else {**carried, "memory": memory}
