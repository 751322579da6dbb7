"""Exploration that is added to a policy's own choice. Pure: all randomness comes from the generator passed in."""

import math
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeGuard

import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor

from rltrainer.errors import SpaceError
from rltrainer.nets.noise import DrawnNumbers, draw_like
from rltrainer.schedules import value_at
from rltrainer.spaces import Space, leaf_shape, num_choices
from rltrainer.state.params import Params
from rltrainer.validation.field_rules import NonNegativeFloat, PositiveFloat, Rule, Scheduled, UnitFloat


# An algorithm sets one on its policy from its params; `Collector(exploration=...)` replaces it.
class Exploration(Protocol):
    """Replaces a greedy action by one that explores. A run logs the numbers of `settings(progress)`, if it has any."""

    def __call__(self, action: Tensor, action_space: Space, progress: float, generator: Generator | None) -> Tensor:
        """Return the explored actions [N, ...], given the greedy ones and the share of the training done."""


class StatefulExploration(Exploration, Protocol):
    """Exploration with a memory, which a collector stores as a policy's. A call without a memory starts an episode."""

    def initial_state(self, num_envs: int, action_space: Space) -> Tensor:
        """Return the memory at the start of an episode [num_envs, S] float32."""

    def step(
        self, action: Tensor, state: Tensor, action_space: Space, progress: float, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Return the explored actions [N, ...], and the next memory [N, S]."""


def has_state(exploration: Exploration | None) -> TypeGuard[StatefulExploration]:
    """Return whether an exploration has a memory."""
    return hasattr(exploration, "initial_state")


AnyExploration = Annotated[
    Exploration, Rule("a callable, such as EpsilonGreedy(0.1)", lambda v: callable(v) and not isinstance(v, type))
]


@dataclass(frozen=True, repr=False)
class EpsilonGreedy(Params):
    """With probability `epsilon`, a uniformly random choice instead (Watkins 1989)."""

    epsilon: UnitFloat | Scheduled = 0.1
    """Probability in [0, 1], or a schedule of it."""

    def __call__(self, action: Tensor, action_space: Space, progress: float, generator: Generator | None) -> Tensor:
        """Replace some choices [N]."""
        low, high = self._range_of(action_space)
        chance = draw_like(action, generator, "uniform_")
        epsilon = value_at(self.epsilon, progress)
        # With few envs, most often no action changes; a comparison in torch takes 3 us more. Compiled and recorded code
        # cannot look: it runs before its numbers are drawn.
        is_known = action.is_cpu and not isinstance(generator, DrawnNumbers)
        if is_known and not np.count_nonzero(chance.numpy() < epsilon):
            return action
        choice = draw_like(action, generator, "random_", low, high, dtype=torch.int64)
        return torch.where(chance < epsilon, choice, action)

    def settings(self, progress: float) -> dict[str, float]:
        """Return the numbers to log."""
        return {"epsilon": value_at(self.epsilon, progress)}

    def _range_of(self, space: Space) -> tuple[int, int]:
        """Return the first choice and the one past the last; checked and made once for a space."""
        of_space, low, high = self.__dict__.get("_kept", (None, 0, 0))
        if of_space is not space:
            if not isinstance(space, spaces.Discrete):
                hint = "Explore continuous actions with GaussianNoise."
                raise SpaceError.about("EpsilonGreedy", "action_space", "must be Discrete", space, hint)
            # The space has NumPy's numbers, and compiled code would have to leave its graph to convert them.
            low, high = int(space.start), int(space.start + space.n)
            object.__setattr__(self, "_kept", (space, low, high))  # the dataclass is frozen, and this is no field
        return low, high


@dataclass(frozen=True, repr=False)
class GaussianNoise(Params):
    """Independent normal noise on each action, clipped to the bounds (Fujimoto et al. 2018, section 5.3)."""

    std: NonNegativeFloat | Scheduled = 0.1
    """Standard deviation as a share of half the action's range, or a schedule of it."""

    def __call__(self, action: Tensor, action_space: Space, progress: float, generator: Generator | None) -> Tensor:
        """Add noise to actions [N, ...]."""
        noise = draw_like(action, generator, "normal_", dtype=action.dtype)
        return self._add(action, noise, value_at(self.std, progress), action_space)

    def settings(self, progress: float) -> dict[str, float]:
        """Return the numbers to log."""
        return {"exploration_noise": value_at(self.std, progress)}

    def _add(self, action: Tensor, noise: Tensor, scale: float | Tensor, space: Space) -> Tensor:
        """Add noise, in shares of half the range, to actions [N, ...] within the bounds of the space."""
        low, high, half_range = self._bounds_of(space, action.device)
        if isinstance(scale, Tensor) or not action.is_cpu:
            # A graph has a tensor. With a number, CUDA's `addcmul` would round otherwise; a CPU's does not.
            noise, scale = noise * scale, 1.0
        # Few operations: after a large update, the code of each is out of the cache.
        return torch.addcmul(action, noise, half_range, value=scale).clamp_(low, high)

    def _bounds_of(self, space: Space, device: torch.device) -> list[Tensor]:
        """Return low, high and half their distance; checked and made once for a space."""
        bounds: list[Tensor]
        of_space, *bounds = self.__dict__.get("_kept", (None,))
        if of_space is not space or bounds[0].device != device:
            if not isinstance(space, spaces.Box) or not space.is_bounded():
                hint = "The noise is a share of the bounds; for discrete actions there is EpsilonGreedy."
                raise SpaceError.about(type(self).__name__, "action_space", "must be a bounded Box", space, hint)
            low, high = (torch.from_numpy(bound.astype(np.float32)).to(device) for bound in (space.low, space.high))
            bounds = [low, high, 0.5 * (high - low)]
            object.__setattr__(self, "_kept", (space, *bounds))  # the dataclass is frozen, and this is no field
        return bounds


@dataclass(frozen=True, repr=False)
class OrnsteinUhlenbeckNoise(GaussianNoise):
    """Noise that drifts through an episode, for inertial systems: x += -theta x dt + std sqrt(dt) N(0, 1).

    Each env has its own, which is 0 before an episode's first step. Source: Uhlenbeck & Ornstein 1930; Lillicrap et al.
    2016, Continuous control with deep reinforcement learning, section 7. Its spread is std / sqrt(2 theta) in the end.
    """

    std: NonNegativeFloat | Scheduled = 0.2
    """The standard deviation of its growth, as a share of half the action's range, or a schedule of it."""
    theta: NonNegativeFloat = 0.15
    """The strength of its pull back to 0."""
    dt: PositiveFloat = 0.01
    """Time between two steps; 0.01 as in Stable-Baselines3, the paper's equation has 1."""

    def initial_state(self, num_envs: int, action_space: Space) -> Tensor:
        """Return zeros [num_envs, A]."""
        return torch.zeros(num_envs, math.prod(leaf_shape(action_space)))

    def __call__(self, action: Tensor, action_space: Space, progress: float, generator: Generator | None) -> Tensor:
        """Add the noise of an episode's first step to actions [N, ...]."""
        return self.step(action, torch.zeros_like(action).flatten(1), action_space, progress, generator)[0]

    def step(
        self, action: Tensor, state: Tensor, action_space: Space, progress: float, generator: Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Let the noise [N, A] drift, and add it to actions [N, ...]."""
        growth = draw_like(state, generator, "normal_", dtype=state.dtype)
        state = state * (1 - self.theta * self.dt) + growth * (value_at(self.std, progress) * math.sqrt(self.dt))
        return self._add(action, state.view(action.shape), 1.0, action_space), state


def allowed(action: Tensor, mask: Tensor, space: Space, generator: Generator | None) -> Tensor:
    """Replace each excluded choice of actions [N], or [N, D], by a uniformly drawn allowed choice.

    A uniform choice stays uniform, among the allowed ones. `mask` [N, A] bool holds the flags of the D choices in turn.
    """
    sizes = num_choices(space)
    assert sizes is not None  # policies accept masks of choices only
    starts = np.broadcast_to(getattr(space, "start", 0), len(sizes)).tolist()  # numbers, as a graph copies no array
    choices = action.reshape(len(action), len(sizes)).unbind(1)
    score = torch.rand(mask.shape, generator=generator, device=mask.device).add_(1).mul_(mask)
    parts = zip(choices, starts, torch.split(mask, sizes, 1), torch.split(score, sizes, 1), strict=True)
    chosen = []
    for choice, start, flags, scores in parts:
        place = choice.long() - start
        is_allowed = flags.gather(1, place.clamp(min=0).unsqueeze(1)).squeeze(1)
        chosen.append(torch.where(is_allowed, place, scores.argmax(1)) + start)
    return torch.stack(chosen, 1).reshape(action.shape)
