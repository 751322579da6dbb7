"""The result of a step of all envs, whatever their autoreset mode."""

from dataclasses import dataclass
from typing import Any

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
