"""What is known of a ring's trajectories once they have ended. It follows from the ring, so no file holds it."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltrainer.data.ring import Ring
from rltrainer.data.storage import Array


class EndedTrajectories:
    """Finds the trajectories that have ended. Each is found once, so a step costs the same whatever is stored."""

    def __init__(self) -> None:
        self._memory: object | None = None  # of the ring that the last call read

    def find(self, ring: Ring) -> Iterator[Array]:
        """Yield the slots of each trajectory that no call has found [L], oldest first, as far as they are stored."""
        written, oldest = ring.written, ring.oldest(ring.written)
        if self._memory is not ring.memory:
            # Each env numbers its transitions; its running trajectory starts at `begin` [N].
            self._memory, self._seen, self.begin = ring.memory, oldest, oldest.copy()
        # The newest transition of the last call, too: its trajectory may have ended since.
        first = np.maximum(self._seen - 1, oldest)
        number = first + np.arange(int((written - first).max(initial=0)))[:, None]  # [rows, N]
        slots = number % ring.num_rows * ring.num_envs + np.arange(ring.num_envs)
        ended = (ring.final.index.reshape(-1)[slots] > 0) & (number < written) & (number >= self.begin)
        for row, env in np.argwhere(ended).tolist():
            end = int(number[row, env])
            numbers = np.arange(max(int(self.begin[env]), int(oldest[env])), end + 1)
            yield numbers % ring.num_rows * ring.num_envs + env
            self.begin[env] = end + 1
        self._seen = written.copy()


class ReturnsToGo:
    """Holds the discounted rewards from each transition of a ring to the end of its trajectory, once that has ended."""

    def __init__(self, ring: Ring, gamma: float) -> None:
        self.ring, self.gamma = ring, gamma
        self._trajectories, self._written = EndedTrajectories(), np.zeros(0, np.int64)
        # The sums, and of how many rewards [slots]; of each env its newest slot, and how far it is from the first one
        # of the running trajectory [2, N].
        self._sum = torch.zeros(ring.num_slots, device=ring.device)
        self._length = torch.zeros(ring.num_slots, dtype=torch.int64, device=ring.device)
        self._running = torch.zeros(2, ring.num_envs, dtype=torch.int64, device=ring.device)

    def catch_up(self) -> None:
        """Read what was stored since the last call; a CUDA graph that holds `of` needs it before each replay."""
        ring = self.ring
        if self._written is ring.written:  # each write replaces it
            return
        for found in self._trajectories.find(ring):
            slots = ring.on_device(found)
            rewards = reversed(ring.columns["reward"].gather(slots).tolist())
            sums = [*accumulate(rewards, lambda later, reward: reward + self.gamma * later)]
            self._sum[slots] = torch.tensor(sums[::-1], device=ring.device)
            self._length[slots] = torch.arange(len(sums), 0, -1, device=ring.device)
        distance = (ring.written - self._trajectories.begin) * ring.num_envs
        self._running.copy_(torch.from_numpy(np.stack([ring.heads() - ring.num_envs, distance])))
        self._written = ring.written

    def of(self, slots: Tensor) -> dict[str, Any]:
        """Return the columns that `ReplayBuffer.sample` adds for slots [B]."""
        self.catch_up()
        ring, (newest, distance) = self.ring, self._running[:, slots % self.ring.num_envs]
        runs = (newest - slots) % ring.num_slots < distance
        length = self._length[slots].masked_fill_(runs, 1)
        end = (slots + (length - 1) * ring.num_envs) % ring.num_slots
        discount = (self.gamma ** length.double()).float()
        return {
            "return_to_go": self._sum[slots].masked_fill_(runs, -torch.inf),
            "end_obs": ring.successors(end),
            "end_discount": discount.masked_fill_(ring.columns["terminated"].gather(end), 0.0),
        }
