"""Ends of a ring's trajectories, and the returns that they settle. Both follow from the ring: no file holds them."""

from collections.abc import Iterator
from itertools import accumulate

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
    """Holds the discounted return from each transition of a ring on, once its trajectory has ended.

    A time limit cuts a return off: then the last reward stands for all that would have followed, which is reward /
    (1 - gamma) at the end. So the authors of Cal-QL do in tasks without an end, and where a sparse one was not solved.
    """

    def __init__(self, ring: Ring, gamma: float) -> None:
        self.ring, self.gamma = ring, gamma
        self._trajectories, self._written = EndedTrajectories(), np.zeros(0, np.int64)
        # The returns [slots]; of each env its newest slot, and how far it is from where its running trajectory starts
        # [2, N].
        self._returns = torch.zeros(ring.num_slots, device=ring.device)
        self._running = torch.zeros(2, ring.num_envs, dtype=torch.int64, device=ring.device)

    def catch_up(self) -> None:
        """Read what was stored since the last call; a CUDA graph that holds `of` needs it before each replay."""
        ring, gamma = self.ring, self.gamma
        if self._written is ring.written:  # each write replaces it
            return
        for found in self._trajectories.find(ring):
            slots = ring.on_device(found)
            *_, last = rewards = ring.columns["reward"].gather(slots).tolist()
            # From the end alone: what is left of a trajectory gives the same, whenever its start was overwritten.
            for_ever = last / (1 - gamma) if gamma < 1 else -np.inf
            rest = 0.0 if ring.columns["terminated"].gather(slots[-1:]) else for_ever
            returns = [*accumulate(reversed(rewards), lambda later, reward: reward + gamma * later, initial=rest)]
            self._returns[slots] = torch.tensor(returns[:0:-1], device=ring.device)
        distance = (ring.written - self._trajectories.begin) * ring.num_envs
        self._running.copy_(torch.from_numpy(np.stack([ring.heads() - ring.num_envs, distance])))
        self._written = ring.written

    def of(self, slots: Tensor) -> Tensor:
        """Return the returns of slots [B], -inf where a trajectory runs."""
        self.catch_up()
        newest, distance = self._running[:, slots % self.ring.num_envs]
        runs = (newest - slots) % self.ring.num_slots < distance
        return self._returns[slots].masked_fill_(runs, -torch.inf)
