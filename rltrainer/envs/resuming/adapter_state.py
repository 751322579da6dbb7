"""The part of a checkpoint that is an adapter's: where its envs are, and what brings them there."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.envs.adapter.episode_seeds import ClockState, Rows
from rltrainer.envs.resuming.action_trail import MAX_STEPS
from rltrainer.errors import CheckpointError
from rltrainer.spaces import ValueRange, leaf_shape, stored_dtype
from rltrainer.tree import Tree, leaves
from rltrainer.validation.field_rules import NonNegativeInt

NO_ROWS: Rows = np.zeros(0, np.int64)


@dataclass
class AdapterState:
    """State of an `EnvAdapter`; without the last four where no env is in the middle of anything, and in old files.

    Args:
        is_started: whether the envs were reset.
        clock: where each env is in its sequence of episodes.
        resetting: the envs that will spend the next step on their reset.
        obs: the leaves of the current observation [N, ...].
        actions: of the running episodes [sum of their steps, ...], one env after the other; None if the envs' own state
            is there, or nothing helps.
        envs: the envs' own state.
    """

    is_started: bool
    clock: ClockState
    resetting: list[NonNegativeInt] = field(default_factory=list)
    obs: list[Any] | None = None
    actions: Any = None
    envs: dict[str, Any] | None = None

    @property
    def num_steps(self) -> Rows:
        """The steps of the running episodes [N]."""
        return np.array(self.clock.episode_step, np.int64)

    @property
    def num_kept(self) -> Rows:
        """The actions of each env [N]: those of too long episodes are not kept."""
        return np.where(self.num_steps <= MAX_STEPS, self.num_steps, 0)

    def check(self, num_envs: int, obs_space: Tree, action_space: gym.Space[Any]) -> None:
        """Raise a `CheckpointError` if it is of other envs."""
        for found in (len(self.clock.episode), len(self.clock.episode_step)):
            if found != num_envs:
                raise CheckpointError(f"the state is of {found} envs, but there are {num_envs}")
        if any(n >= num_envs for n in self.resetting):
            raise CheckpointError(f"adapter.resetting: expected some of {num_envs} envs, found {self.resetting}")
        if (self.envs is not None or self.actions is not None) and self.obs is None:
            raise CheckpointError("adapter.obs: missing in the saved state")
        if self.obs is not None:
            spaces = leaves(obs_space)
            if len(self.obs) != len(spaces):
                raise CheckpointError(f"adapter.obs: expected {len(spaces)} tensors, found {len(self.obs)}")
            for i, (leaf, space) in enumerate(zip(self.obs, spaces, strict=True)):
                _check_tensor(f"adapter.obs.{i}", leaf, (num_envs, *leaf_shape(space)), stored_dtype(space))
        if self.actions is not None:
            shape = (int(self.num_kept.sum()), *leaf_shape(action_space))
            dtype = torch.from_numpy(np.empty(0, action_space.dtype)).dtype
            _check_tensor("adapter.actions", self.actions, shape, dtype)
            if not ValueRange(action_space).holds(self.actions.numpy()):
                raise CheckpointError(f"adapter.actions: expected actions in {action_space}, found others")

    def lost(self, can_repeat: bool, can_load: bool, is_masked: bool) -> Rows:
        """Return the envs that cannot go on where they were, and warn of them.

        Args:
            can_repeat: whether episodes can be repeated by their seeds and actions.
            can_load: whether the envs can load their own state.
            is_masked: whether one env can be reset by itself.
        """
        inside = self.num_steps > 0 if is_masked else np.full(len(self.num_steps), self.clock.num_steps > 0)
        if not self.is_started or (self.envs is not None and can_load):
            return NO_ROWS
        repeats = self.actions is not None and can_repeat
        lost = np.flatnonzero(inside & (self.num_kept == 0) if repeats else inside)
        if len(lost):
            why = "were in the middle of an episode, and what led there is not in the state"
            why = f"were more than {MAX_STEPS} steps into their episode" if repeats else why
            why = why if is_masked else "cannot be reset one by one, and do not save where they are (SaveableEnv)"
            warn_of_lost(lost, why)
        return lost

    def table(self) -> Any:
        """Return the actions as an array [L, N, ...]: episodes end together, and before them are others' actions."""
        num_kept = self.num_kept
        each = np.split(self.actions.numpy(), np.cumsum(num_kept)[:-1])
        table = np.repeat(each[int(num_kept.argmax())][:, None], len(each), 1)
        for env, actions in enumerate(each):
            table[len(table) - len(actions) :, env] = actions
        return table


def warn_of_lost(rows: Rows, why: str) -> None:
    """Name envs that start a new episode."""
    text = f"envs {rows.tolist()} {why}: they start a new episode instead of going on"
    warnings.warn(text, stacklevel=5)


def _check_tensor(name: str, found: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(found, Tensor) or tuple(found.shape) != shape or found.dtype != dtype:
        what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise CheckpointError(f"{name}: expected {dtype} {shape}, found {what}")
    if dtype.is_floating_point and not found.isfinite().all():
        raise CheckpointError(f"{name}: holds NaN or infinity")
