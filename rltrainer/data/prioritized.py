"""The prioritised replay buffer (Schaul et al. 2016, Prioritized experience replay; its proportional variant)."""

from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.columns import Extra
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.sampler import Sampler
from rltrainer.data.state_checks import check_tensor, require
from rltrainer.errors import ReplayBufferError, readable
from rltrainer.schedules import Schedule, value_at
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import Scheduled, UnitFloat, checked

EPSILON = 1e-6
"""Added to an error, so that a transition without one is drawn again some day."""


class PrioritySampler:
    """Draws cells of a ring as often as their priorities to the power of alpha say."""

    def __init__(self, num_cells: int, alpha: float, beta: float | Schedule, device: torch.device) -> None:
        self.alpha, self.beta = alpha, beta
        self.tree = SumTree(num_cells, device)
        self.largest = torch.ones((), dtype=torch.float64, device=device)  # leaf that there ever was

    def stored(self, cells: Tensor) -> None:
        """Let new cells be drawn soon: nobody knows how much there is to learn from them."""
        self.tree.set(cells, self.largest.expand(cells.shape))

    def forgotten(self, cells: Tensor) -> None:
        """Let cells be drawn no more."""
        self.tree.set(cells, torch.zeros_like(cells, dtype=torch.float64))

    def copied(self, cells: Tensor, other: Sampler, source: Tensor) -> None:
        """Take over priorities, where they have the same exponent."""
        if isinstance(other, PrioritySampler) and other.alpha == self.alpha:
            old, new = self.tree.leaves[cells], other.tree.leaves[source].to(cells.device)
            self.tree.set(cells, torch.where((old > 0) & (new > 0), new, old))  # 0 is of those that are not drawn
            self.largest = torch.maximum(self.largest, other.largest.to(cells.device))

    def draw(
        self, num_drawable: int, shape: tuple[int, ...], progress: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw one cell from each of B equal shares of the priorities' sum (appendix B.2.1).

        Returns:
            cells [*shape], and their weights (N P)^-beta, divided by the largest of the batch (section 3.4).
        """
        device, total = self.tree.leaves.device, self.tree.total
        share = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
        share += torch.arange(shape[-1], device=device)
        cells = self.tree.find((share * (total / shape[-1])).flatten())
        probability = (self.tree.leaves.index_select(0, cells) / total).view(shape)
        weight = (num_drawable * probability).pow_(-value_at(self.beta, progress))
        return cells.view(shape), (weight / weight.amax(-1, keepdim=True)).float()

    def update(self, cells: Tensor, td_error: Tensor) -> None:
        """Set priorities to |td_error|; of a cell that a batch holds twice the larger one counts."""
        if not len(cells):
            return
        old = self.tree.leaves.index_select(0, cells)
        new = (td_error.double().abs() + EPSILON).pow_(self.alpha)
        # A cell that was overwritten since it was drawn stays out, and an error that is no number says nothing.
        new = torch.where((old > 0) & new.isfinite(), new, old)
        self.tree.leaves.scatter_reduce_(0, cells, new, "amax", include_self=False)
        self.tree.set(cells, self.tree.leaves.index_select(0, cells))
        self.largest = torch.maximum(self.largest, new.max())

    def state_dict(self, cells: Tensor) -> State:
        """Return the priorities of all cells that can be drawn [M], and the largest that there ever was."""
        return {"alpha": self.alpha, "largest": float(self.largest), "leaves": self.tree.leaves[cells]}

    def prepare_load(self, state: State, cells: Tensor) -> Load:
        """Check a state, and return what loads it."""
        largest: Any = state.get("largest")
        alpha = state.get("alpha")
        is_same = isinstance(alpha, float | int) and alpha == self.alpha
        require(is_same, f"alpha: expected {self.alpha}, found {readable(alpha)}")
        leaves = check_tensor(state, "leaves", torch.float64, tuple(cells.shape))
        require(bool((leaves.isfinite() & (leaves > 0)).all()), "leaves: must be positive and finite")
        least = float(leaves.amax()) if len(leaves) else 0.0
        rule = "must be at least 1, as large as the largest leaf, and have a finite sum"
        is_sound = isinstance(largest, float) and max(least, 1.0) <= largest
        require(is_sound and largest * self.tree.size < float("inf"), f"largest: {rule}; found {readable(largest)}")
        value = torch.full_like(self.largest, largest)

        def load() -> None:
            self.tree.set(cells, leaves.to(cells.device))
            self.largest = value

        return load


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draws transitions as often as the errors say that were made at them: P_i ~ (|td_error_i| + 1e-6)^alpha.

    Transitions are new with the largest priority so far. `Transitions.weight` makes up for those that are drawn more
    often: w_i = (N P_i)^-beta, divided by the largest of the batch. Of K batches that are drawn at once, all go by the
    priorities before the first; of a transition that several of them hold, the newest error counts.

    Args:
        capacity, observation_space, action_space, num_envs, device, seed, extra, frame_stack: see `ReplayBuffer`, for
            what is raised too.
        alpha: how much priorities count, in [0, 1]; 0 draws uniformly.
        beta: how much of that the weights undo, in [0, 1], or a schedule of it over progress.
    """

    sampler_nbytes = 9  # float64, and the sums above
    saving_nbytes = 25  # the cells that hold transitions, as they are found, and their priorities

    def __init__(
        self,
        capacity: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        extra: Extra | None = None,
        *,
        alpha: float = 0.6,
        beta: float | Schedule = 0.4,
        frame_stack: int | None = None,
    ) -> None:
        alpha = float(checked("PrioritizedReplayBuffer", "alpha", alpha, UnitFloat))
        beta = checked("PrioritizedReplayBuffer", "beta", beta, UnitFloat | Scheduled)
        super().__init__(
            capacity, observation_space, action_space, num_envs, device, seed, extra, frame_stack=frame_stack
        )
        self.drawing.sampler = PrioritySampler(self.drawing.num_cells, alpha, beta, self.device)

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: torch.device | str = "cpu",
        capacity: int | None = None,
        num_envs: int | None = None,
        *,
        alpha: float = 0.6,
        beta: float | Schedule = 0.4,
    ) -> Self:
        """Read what any replay buffer's `save` wrote; transitions without a priority get that of new ones.

        Args:
            path, device, capacity, num_envs: see `ReplayBuffer.load`, for what is raised too.
            alpha: how much priorities count; that of the file, if it has priorities.
            beta: how much of that the weights undo.

        Raises:
            ReplayBufferError: the file has priorities of another `alpha`.
        """
        return cls._read(path, device, capacity, num_envs, alpha=alpha, beta=beta)

    def update_priorities(self, index: Tensor, td_error: Tensor | None) -> None:
        """Set the priorities of transitions.

        Args:
            index: `Transitions.index`, [B] or [K, B].
            td_error: how far each prediction was off, of the same shape; signs do not count.

        Raises:
            ReplayBufferError: there are no errors, or they have another shape.
        """
        if td_error is None or td_error.shape != index.shape:
            found = "None" if td_error is None else f"shape {tuple(td_error.shape)}"
            hint = "An algorithm reports them as UpdateResult.td_error; without, take a ReplayBuffer."
            text = f"td_error: must be one error per transition, of shape {tuple(index.shape)}; got {found}"
            raise ReplayBufferError(f"PrioritizedReplayBuffer.update_priorities.{text}. {hint}")
        super().update_priorities(index, td_error)


WIDTH = 32
"""Children of a node. Few wide levels take fewer calls than many of two, on a device too: of 1,000,000 leaves 256 are
found in some 90 us, and set in 20, which is a quarter of what a binary tree takes."""
MAX_TOP = 1024
"""Sums at the top, which are searched at once."""


class SumTree:
    """Leaves in float64, and above each `WIDTH` of them their sum, and so on up to `MAX_TOP` sums.

    A node's sum is always taken anew, never corrected by a difference: it does not drift, and setting a leaf twice is
    harmless (Schaul et al. 2016, Prioritized experience replay, appendix B.2.1, has two children to a node).

    Args:
        size: number of leaves, all 0 at first.
        device: where they live.
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        self._levels: list[Tensor] = []
        while not self._levels or size > MAX_TOP:
            size = -(-size // WIDTH)
            # NumPy's zeroed pages cost nothing until they are used.
            self._levels.append(torch.from_numpy(np.zeros((size, WIDTH))).to(device))
        self._top = torch.zeros(size, dtype=torch.float64, device=device)

    @property
    def leaves(self) -> Tensor:
        """All leaves [size]; write them by `set`."""
        return self._levels[0].view(-1)[: self.size]

    @property
    def total(self) -> Tensor:
        """Return the sum of all leaves, a scalar."""
        return self._top.sum()

    def set(self, index: Tensor, value: Tensor) -> None:
        """Set leaves.

        Args:
            index: [M] int64; a leaf that is named twice gets one of its values.
            value: [M] float64, not negative and finite.
        """
        for level in self._levels:
            level.view(-1).index_copy_(0, index, value)
            index = index.div(WIDTH, rounding_mode="floor")
            value = level.index_select(0, index).sum(1)
        self._top.index_copy_(0, index, value)

    def find(self, mass: Tensor) -> Tensor:
        """Return the leaves where the running sum first exceeds each mass [M], int64; never one that is 0.

        Args:
            mass: [M] float64 in [0, total]; not all leaves are 0.
        """
        sums = self._top.cumsum(0)
        node = torch.searchsorted(sums, torch.minimum(mass, _just_below(sums[-1])), right=True)
        mass = mass - (sums.index_select(0, node) - self._top.index_select(0, node))
        for level in reversed(self._levels):
            children = level.index_select(0, node)
            sums = children.cumsum(1)
            # Rounding may leave a little less than nothing, or as much as the whole node holds; either would end in an
            # empty child at its edge.
            mass = torch.minimum(mass.clamp_(min=0.0), _just_below(sums[:, -1])).unsqueeze(1)
            child = torch.searchsorted(sums, mass, right=True)
            mass = (mass - (sums.gather(1, child) - children.gather(1, child))).squeeze(1)
            node = node * WIDTH + child.squeeze(1)
        return node


def _just_below(value: Tensor) -> Tensor:
    return torch.nextafter(value, torch.zeros_like(value))
