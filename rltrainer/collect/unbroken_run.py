"""The unbroken run of a collector's envs: by it buffers know whether what comes next goes on where they end."""

import numpy as np

from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.data.storage import Array
from rltrainer.tree import Tree

Buffer = ReplayBuffer | RolloutBuffer


class UnbrokenRun:
    """Stands for the steps of envs from one reset of all of them to the next; a new one continues nothing.

    Args:
        is_loaded: whether it is the continuation of one whose last steps are in buffers that were loaded.
    """

    def __init__(self, is_loaded: bool = False) -> None:
        self.is_loaded = is_loaded

    def is_stored(self, *buffers: Buffer | None) -> bool:
        """Return whether all of these buffers, at least one, end where the envs are."""
        found = [buffer.is_of(self) for buffer in buffers if buffer is not None]
        return self.is_loaded or (bool(found) and all(found))

    def join(self, rollout_buffer: RolloutBuffer | None, buffer: Buffer | None, obs: Tree, lost: Array) -> None:
        """Let buffers go on with what was loaded, now that the envs are there.

        Args:
            rollout_buffer, buffer: of a collector.
            obs: where the envs are [N, ...].
            lost: those that start a new episode [K].
        """
        if self.is_loaded and rollout_buffer is not None:
            rollout_buffer.go_on(self, lost)
            if isinstance(buffer, ReplayBuffer):
                buffer.go_on(self, obs)
                buffer.break_trace(np.isin(np.arange(buffer.num_envs), lost))
        self.is_loaded = False
