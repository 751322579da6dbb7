"""The prioritised replay buffer (Schaul et al. 2016, Prioritized experience replay; its proportional variant)."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, Unpack

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.buffer_state import require
from rltrainer.data.replay_buffer import BufferOptions, ReplayBuffer
from rltrainer.data.sampler import Sampler
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.schedules import Schedule, value_at
from rltrainer.state.codec import from_state, to_state
from rltrainer.types import State
from rltrainer.validation.field_rules import Rule, Scheduled, UnitFloat, checked

EPSILON = 1e-6
"""Added to each error, so that a transition without one can still be drawn."""


def _are_leaves(values: Array) -> bool:
    return values.dtype == np.float64 and values.ndim == 1 and bool((np.isfinite(values) & (values > 0)).all())


Leaves = Annotated[Array, Rule("positive finite float64 numbers", _are_leaves)]


@dataclass
class PriorityState:
    """State of a `PrioritySampler`: the leaves of all slots that can be drawn, and the largest that there ever was."""

    alpha: UnitFloat
    largest: float
    leaves: Leaves


class PrioritySampler:
    """Draws slots in proportion to their priorities to the power of alpha."""

    def __init__(self, num_slots: int, alpha: float, beta: float | Schedule, device: torch.device) -> None:
        self.alpha, self.beta = alpha, beta
        self.tree = SumTree(num_slots, device)
        self.largest = torch.ones((), dtype=torch.float64, device=device)  # leaf that there ever was
        # The exponent of the weights. A device reads it there: a CUDA graph would repeat a number of the host.
        self._exponent: float | Tensor = 0.0 if device.type == "cpu" else torch.zeros_like(self.largest)
        self._beta: float | None = None
        self.ranks: Ranks = ALONE  # the largest weight of their whole batch is 1

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the way back to a trainer."""
        return vars(self) | {"ranks": ALONE}

    def of_size(self, num_slots: int) -> "PrioritySampler":
        """Return a new one for so many slots."""
        return PrioritySampler(num_slots, self.alpha, self.beta, self.largest.device)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that `update` changes: the largest priority [], and all tensors of the tree."""
        return [self.largest, *self.tree.tensors]

    def refresh(self, progress: float) -> None:
        """Take the beta of this progress for the next draws."""
        beta = value_at(self.beta, progress)
        if beta != self._beta:
            self._beta = beta
            self._exponent = self._exponent.fill_(-beta) if isinstance(self._exponent, Tensor) else -beta

    def stored(self, slots: Tensor) -> None:
        """Give new slots [M] the largest priority: their errors are not known yet (algorithm 1, line 6)."""
        self.tree.set(slots, self.largest.expand(slots.shape))

    def forgotten(self, slots: Tensor) -> None:
        """Set the priorities of slots [M] to 0."""
        self.tree.set(slots, torch.zeros_like(slots, dtype=torch.float64))

    def copied(self, slots: Tensor, other: Sampler, source: Tensor) -> None:
        """Copy to slots [M] the priorities of another sampler's slots `source` [M], if its exponent is the same."""
        if isinstance(other, PrioritySampler) and other.alpha == self.alpha:
            old, new = self.tree.leaves[slots], other.tree.leaves[source].to(slots.device)
            self.tree.set(slots, torch.where((old > 0) & (new > 0), new, old))  # 0: never drawn
            self.largest.copy_(torch.maximum(self.largest, other.largest.to(slots.device)))

    def draw(
        self, num_drawable: int, shape: tuple[int, ...], progress: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Draw [*shape] a slot from each of B equal shares of the priorities' sum; weights up to 1 in all `ranks`."""
        # Stratified as in appendix B.2.1: a batch holds rare and frequent transitions in proportion.
        self.refresh(progress)
        device, total = self.tree.leaves.device, self.tree.total
        share = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
        share += torch.arange(shape[-1], device=device)
        slots = self.tree.find((share * (total / shape[-1])).flatten())
        probability = (self.tree.leaves.index_select(0, slots) / total).view(shape)
        # w_i = (N P_i)^-beta / max_j w_j (section 3.4): dividing by the largest only ever makes an update smaller, and
        # makes N cancel out.
        weight = probability.pow_(self._exponent)
        largest = self.ranks.max(weight.amax(-1, keepdim=True))
        return slots.view(shape), (weight / largest).float()

    def update(self, slots: Tensor, td_error: Tensor) -> None:
        """Set the priorities of slots [M] to |td_error|; a slot that is in the batch twice gets the larger one."""
        if not len(slots):
            return
        old = self.tree.leaves.index_select(0, slots)
        new = (td_error.double().abs() + EPSILON).pow_(self.alpha)
        # A slot that was forgotten after it was drawn stays at 0, and an error that is no number changes nothing.
        new = torch.where((old > 0) & new.isfinite(), new, old)
        self.tree.leaves.scatter_reduce_(0, slots, new, "amax", include_self=False)
        self.tree.set(slots, self.tree.leaves.index_select(0, slots))
        self.largest.copy_(torch.maximum(self.largest, new.max()))

    def state_dict(self, slots: Tensor) -> State:
        """Return a `PriorityState` of slots [M]."""
        return dict(to_state(PriorityState(self.alpha, float(self.largest), self.tree.leaves[slots].cpu().numpy())))

    def check_state(self, state: State, slots: Tensor) -> None:
        """Check a state of slots [M]; see `Sampler`, for errors too."""
        found = from_state(PriorityState, state, "priorities")
        require(found.alpha == self.alpha, f"priorities.alpha: expected {self.alpha}, found {found.alpha}")
        is_whole = len(found.leaves) == len(slots)
        require(is_whole, f"priorities.leaves: expected {len(slots)} leaves, found {len(found.leaves)}")
        rule = "must be at least 1, as large as the largest leaf, and have a finite sum"
        has_finite_sum = found.largest * self.tree.size < float("inf")
        is_right = has_finite_sum and bool(found.leaves.max(initial=1.0) <= found.largest)
        require(is_right, f"priorities.largest: {rule}; found {found.largest}")

    def set_state(self, state: State, slots: Tensor) -> None:
        """Take over a checked state of slots [M]."""
        self.tree.set(slots, state["leaves"].to(slots.device))
        self.largest.fill_(state["largest"])


class PrioritizedReplayBuffer(ReplayBuffer):
    """Draws transitions in proportion to the errors of their predictions: P_i ~ (|td_error_i| + 1e-6)^alpha.

    New transitions have the largest priority so far. `Transitions.weight` corrects for the frequencies:
    w_i = (N P_i)^-beta, divided by the largest of the batch. K batches that are drawn at once use the priorities
    before the first; if a transition is in several of them, its newest error counts.

    Args:
        capacity, observation_space, action_space, num_envs, options: see `ReplayBuffer`, for errors too.
        alpha: how much priorities count, in [0, 1]; 0 draws uniformly.
        beta: how much of that the weights undo, in [0, 1], or a schedule of it over progress.

    `load` takes both too, and treats transitions without a priority as new ones.
    """

    sampler_nbytes = 9  # float64, and the sums above
    saving_nbytes = 25  # the slots of all transitions, as they are found, and their priorities

    def __init__(
        self,
        capacity: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int = 1,
        *,
        alpha: float = 0.6,
        beta: float | Schedule = 0.4,
        **options: Unpack[BufferOptions],
    ) -> None:
        alpha = float(checked("PrioritizedReplayBuffer", "alpha", alpha, UnitFloat))
        beta = checked("PrioritizedReplayBuffer", "beta", beta, UnitFloat | Scheduled)
        super().__init__(capacity, observation_space, action_space, num_envs, **options)
        self.sampler = PrioritySampler(self.num_slots, alpha, beta, self.device)

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
        """Read any replay buffer's file; transitions without a priority count as new ones.

        `alpha` must be the file's, if it has priorities; for the rest see `ReplayBuffer.load`.
        """
        return cls._load(path, device, capacity, num_envs, alpha=alpha, beta=beta)

    def follow(self, progress: Callable[[], float], ranks: Ranks) -> None:
        """Let the sampler know the ranks, too; see `ReplayBuffer`."""
        super().follow(progress, ranks)
        if isinstance(self.sampler, PrioritySampler):
            self.sampler.ranks = ranks

    @property
    def can_be_recorded(self) -> bool:
        """Return whether a CUDA graph may hold `sample` and `update_priorities`; call `refresh` before each replay."""
        return type(self) is PrioritizedReplayBuffer and type(self.sampler) is PrioritySampler

    def refresh(self) -> tuple[Hashable, ...]:
        """Bring beta on the device up to date, too."""
        if isinstance(self.sampler, PrioritySampler):
            self.sampler.refresh(self._progress())
        return super().refresh()

    def update_priorities(self, index: Tensor, td_error: Tensor | None) -> None:
        """Set the priorities of `Transitions.index` to the sizes of errors, both [B] or [K, B].

        Raises:
            ReplayBufferError: there are no errors, or they have another shape.
        """
        if td_error is None or td_error.shape != index.shape:
            found = "None" if td_error is None else f"shape {tuple(td_error.shape)}"
            hint = "An algorithm reports them as UpdateResult.td_error; without, take a ReplayBuffer."
            text = f"td_error: must be one error per transition, of shape {tuple(index.shape)}; got {found}"
            raise ReplayBufferError(f"PrioritizedReplayBuffer.update_priorities.{text}. {hint}")
        super().update_priorities(index, td_error)


# Children of a node. Few wide levels take fewer calls than many of two, on a device too: of 1,000,000 leaves 256 are
# found in some 90 us, and set in 20, a quarter of the time of a binary tree.
WIDTH = 32
# Sums at the top, which are searched at once.
MAX_TOP = 1024


class SumTree:
    """Leaves in float64, and above each `WIDTH` of them their sum, and so on up to `MAX_TOP` sums.

    Schaul et al. 2016, appendix B.2.1, have two children to a node. All leaves are 0 at first.
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
    def tensors(self) -> list[Tensor]:
        """All leaves and sums: levels [nodes, `WIDTH`] from the leaves up, and the top sums [nodes]."""
        return [*self._levels, self._top]

    @property
    def total(self) -> Tensor:
        """Return the sum of all leaves, a scalar []."""
        return self._top.sum()

    def set(self, index: Tensor, value: Tensor) -> None:
        """Set leaves to values [M] float64, not negative and finite; one in `index` [M] twice gets either value."""
        for level in self._levels:
            level.view(-1).index_copy_(0, index, value)
            index = index.div(WIDTH, rounding_mode="floor")
            # The sum of all children, not the old one plus a difference: it does not drift, a leaf may come twice.
            value = level.index_select(0, index).sum(1)
        self._top.index_copy_(0, index, value)

    def find(self, mass: Tensor) -> Tensor:
        """Return the leaves where the running sum first exceeds each mass [M] in [0, total]; never one that is 0."""
        sums = self._top.cumsum(0)
        node = torch.searchsorted(sums, torch.minimum(mass, _just_below(sums[-1])), right=True)
        mass = mass - (sums.index_select(0, node) - self._top.index_select(0, node))
        for level in reversed(self._levels):
            children = level.index_select(0, node)
            sums = children.cumsum(1)
            # Rounding may leave a mass below 0, or as large as the node; either ends at an edge, in an empty child.
            mass = torch.minimum(mass.clamp_(min=0.0), _just_below(sums[:, -1])).unsqueeze(1)
            child = torch.searchsorted(sums, mass, right=True)
            mass = (mass - (sums.gather(1, child) - children.gather(1, child))).squeeze(1)
            node = node * WIDTH + child.squeeze(1)
        return node


def _just_below(value: Tensor) -> Tensor:
    return torch.nextafter(value, torch.zeros_like(value))
