"""The result of a step of all envs, whatever their autoreset mode."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rltrainer.envs.adapter.episode_seeds import Rows
from rltrainer.tree import Tree


@dataclass(slots=True)
class EnvStep:
    """Result of one step of all envs; the adapter reuses it, so it is good until the next step.

    Args:
        next_obs: tree [N, ...], the true successors: at the end of an episode its final observation.
        reward: [N] float32, or [N, A] for A agents.
        terminated, truncated: [N] bool.
        valid: [N] bool, False where the env spent the step on its reset, or was restarted after a failure; None if all
            are valid.
        finished: [K] int64, the envs whose episode ended with this step; None if none did.
    """

    next_obs: Tree
    reward: Any
    terminated: Any
    truncated: Any
    valid: Any = None
    finished: Rows | None = None

    @classmethod
    def like(cls, reward: Any, terminated: Any, truncated: Any) -> "EnvStep":
        """Return memory for results like this one."""
        is_tensor = isinstance(reward, torch.Tensor)
        zeros: Any = torch.zeros_like if is_tensor else np.zeros_like
        float32: Any = torch.float32 if is_tensor else np.float32
        return cls(None, zeros(reward, dtype=float32), zeros(terminated), zeros(truncated))

    def void(self, rows: Rows) -> None:
        """Mark the cells that these envs [K] spent on a reset."""
        self.valid = np.ones(len(self.reward), np.bool_)
        self.valid[rows] = False
        is_tensor = isinstance(self.reward, torch.Tensor)
        kept: Any = torch.from_numpy(self.valid).to(self.reward.device) if is_tensor else self.valid
        self.reward[~kept] = 0.0
        self.terminated &= kept
        self.truncated &= kept
