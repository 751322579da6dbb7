"""Stochastic policies, seen from an algorithm that cares for nothing else."""

from typing import Protocol, TypeGuard

from torch import nn

from rltrainer.nets.distributions import Distribution
from rltrainer.tree import Tree


class Stochastic(Protocol):
    """A policy whose actor makes a distribution over actions."""

    @property
    def actor(self) -> nn.Module:
        """All networks that the distribution is made by."""

    def distribution(self, obs: Tree) -> Distribution:
        """Return the distribution over actions, in the scale of `Policy.unscale`, for normalised observations."""


def is_stochastic(policy: object) -> TypeGuard[Stochastic]:
    """Return whether a policy has what `Stochastic` says."""
    return isinstance(getattr(policy, "actor", None), nn.Module) and callable(getattr(policy, "distribution", None))
