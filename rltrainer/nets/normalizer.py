"""Running normalisation of observations and rewards; the statistics are buffers, saved with their policy."""

import functools
import itertools
import logging
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.errors import readable
from rltrainer.functional.returns import discounted_returns
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.spaces import ACTION_MASK, Space, leaf_shape, leaf_spaces
from rltrainer.tree import Tree, map_tree, named_leaves, rebuild
from rltrainer.types import DenseRollout, Rollout, to_device

CLIP = 10.0
EPS = 1e-8


# Statistics only change in `update`, which an algorithm calls at the end of an update step: they are constant during a
# collection and the gradient steps made from it; test steps never change them.
class RunningMoments(nn.Module):
    """Mean and variance of a stream of samples, merged batch by batch (Chan et al. 1979, parallel variance)."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("var", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor, ranks: Ranks = ALONE) -> None:
        """Merge the samples [M, *shape] of all ranks, on any device; nothing if there are none."""
        x = to_device(x, self.mean.device).double()
        own = (x.mean(0), x.var(0, unbiased=False) * len(x)) if len(x) else (x.sum(0), x.sum(0))  # `var` of none warns
        count, mean, deviations = ranks.merged(len(x), *own)
        if count == 0:
            return
        total = self.count + count
        delta = mean - self.mean
        new_var = (self.var * self.count + deviations + delta.square() * self.count * count / total) / total
        self.mean.add_((delta * count / total).to(self.mean.dtype))
        self.var.copy_(new_var)
        self.count.copy_(total)

    def reset(self) -> None:
        """Forget all samples."""
        self.mean.zero_()
        self.var.fill_(1.0)
        self.count.zero_()


def running_moments(module: nn.Module) -> list[RunningMoments]:
    """Return the statistics of all normalisers in a module."""
    return [part for part in module.modules() if isinstance(part, RunningMoments)]


class ObsNormalizer(nn.Module):
    """Standardise every float Box leaf of an observation, clipped to [-limit, limit]; other leaves pass unchanged."""

    def __init__(self, observation_space: Space, limit: float = CLIP) -> None:
        super().__init__()
        self.limit = limit
        tree = leaf_spaces(observation_space)
        self.moments = nn.ModuleDict()
        for i, (name, space) in enumerate(named_leaves(tree)):
            if name == f'["{ACTION_MASK}"]' or not isinstance(space, spaces.Box):
                continue
            if np.issubdtype(space.dtype, np.floating):
                self.moments[str(i)] = RunningMoments(leaf_shape(space))
            elif len(space.shape) != 3:  # images are scaled by their encoder
                text = "is left as it is, as only Boxes of floats are standardised. Cast it in a wrapper."
                warn_once(f"normalize_obs: obs{name}, {readable(space)}, {text}")
        self.positions = rebuild(tree, map(str, itertools.count()))

    def forward(self, obs: Tree) -> Tree:
        """Normalise a tree [B, ...]."""
        return self._each(obs, lambda m, x: ((x - m.mean) * (m.var + EPS).rsqrt()).clamp(-self.limit, self.limit))

    def update(self, obs: Tree, ranks: Ranks = ALONE) -> None:
        """Merge the trees [M, ...] of all ranks into the statistics."""
        self._each(obs, lambda m, x: m.update(x, ranks))

    def reset(self) -> None:
        """Forget all samples."""
        for each in running_moments(self):
            each.reset()

    def _each(self, obs: Tree, function: Any) -> Tree:
        return map_tree(lambda i, x: function(self.moments[i], x) if i in self.moments else x, self.positions, obs)


class RewardScaler(nn.Module):
    """Divide rewards by the standard deviation of the discounted return, clipped to [-10, 10]; the mean is kept.

    With a `limit`, nothing is clipped, and the divisor is at least the largest return so far over the limit: scaled
    returns lie within the limit, as the values of a categorical critic must (SimbaV2, Lee et al. 2025).

    Source: Engstrom et al. 2020, Implementation Matters in Deep Policy Gradients, "reward scaling".
    """

    largest: Tensor

    def __init__(self, limit: float | None = None) -> None:
        super().__init__()
        self.moments = RunningMoments()
        self.running_return: Tensor | None = None
        self.limit, self.not_negative = limit, () if limit is None else ("largest",)
        if limit is not None:
            self.register_buffer("largest", torch.zeros(()))

    def forward(self, reward: Tensor) -> Tensor:
        """Scale rewards, any shape."""
        if self.limit is not None:
            std = (self.moments.var + EPS).sqrt()
            return reward / torch.maximum(std, self.largest.to(std.dtype) / self.limit).to(reward.dtype)
        return (reward * (self.moments.var.to(reward.dtype) + EPS).rsqrt()).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, rollout: Rollout, gamma: float, ranks: Ranks = ALONE) -> None:
        """Merge the discounted returns of all ranks' rollouts."""
        # Rewards of an env past its quota of episodes belong to no counted episode, and must not be carried over.
        reward = rollout.reward.to(self.moments.mean.dtype).masked_fill(~rollout.valid, 0.0)
        initial = self.running_return
        if initial is None or initial.shape != reward[0].shape:
            initial = torch.zeros_like(reward[0])
        # A loaded one may be on another device.
        initial = to_device(initial, reward.device).masked_fill(rollout.starts, 0.0)
        returns, running = discounted_returns(reward, rollout.ends, initial, gamma)
        # The episodes of idle envs continue in a later rollout. Envs of tensors are never idle: the host need not look.
        if not isinstance(rollout, DenseRollout) and (idle := rollout.idle)[-1].any():
            last, envs = (~idle).sum(0) - 1, torch.arange(idle.shape[1], device=idle.device)
            there = torch.where(last < 0, initial, returns[last, envs] * ~rollout.done[last, envs])
            running = torch.where(idle[-1], there, running)
        self.running_return = running
        valid = rollout.valid_cells(returns)
        self.moments.update(valid, ranks)
        if self.limit is not None:
            own = to_device(valid, self.largest.device).to(self.largest.dtype).abs()
            self.largest.copy_(ranks.max(torch.cat([own.flatten(), self.largest.view(1)]).max()))

    def get_extra_state(self) -> Tensor:
        """Return the running returns [N]; they are no buffer, as the number of envs is not known in advance."""
        return torch.zeros(0) if self.running_return is None else self.running_return

    def set_extra_state(self, state: Tensor) -> None:
        """Restore the running returns [N]; a `ValueError` if they are no vector of finite numbers."""
        if state.ndim != 1 or state.dtype != self.moments.mean.dtype or not state.isfinite().all():
            raise ValueError(f"expected finite float32 [N], found {state.dtype} {tuple(state.shape)}")
        self.running_return = state.clone() if len(state) else None


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning, once in a program."""
    logging.getLogger("rltrainer").warning(text)
