"""Symmetry of an env (Mittal et al. 2024, Symmetry Considerations for Learning Task Symmetric Robot Policies)."""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.nets import Policy
from rltrainer.nets.distributions import Distribution
from rltrainer.spaces import ValueRange, leaf_spaces, numpy_dtype
from rltrainer.state.params import Params
from rltrainer.tree import Tree, leaves, map_tree, named_leaves
from rltrainer.validation.field_rules import Flag, NonNegativeFloat, Rule

Mirror = Annotated[Callable[[Any], Any], Rule("a function from a batch to its mirror image", callable)]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Symmetry(Params):
    """A mirror image of the env, such as a robot with left and right exchanged: what is good there is good here.

    The two functions take and return tensors. Each is its own inverse, changes nothing in place and draws no random
    numbers. PPO tries both on a batch of the spaces, and raises a `ParamsError` otherwise.
    """

    obs: Mirror = dataclasses.field(compare=False)
    """Mirrors observations, a tree [B, ...], as the env returns them; the policy normalises the result. A mirror image
    of normalised ones would depend on running means, which need not be symmetric. rsl_rl does the same."""
    action: Mirror = dataclasses.field(compare=False)
    """Mirrors actions [B, ...]."""
    augments: Flag = True
    """Learn from the mirror image of each step, too. It has the log-probability, value, advantage and return of its
    original. KL, entropy and the moments of advantages are of the originals only."""
    loss_coef: NonNegativeFloat = 0.0
    """Weight of the mirror loss: the mean squared error between the mean action for the mirrored observation and the
    mirrored mean action, which is a constant. It must be 0 where actions are choices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.augments and self.loss_coef == 0:
            self.raise_invalid("augments", "must be True where loss_coef is 0: else no update uses the symmetry")

    def mirrored_obs(self, obs: Tree, normalize: Callable[[Tree], Tree]) -> Tree:
        """Return the mirrored and normalised observations, given raw ones, trees [T, N, ...]."""
        flat, shape = map_tree(lambda x: x.flatten(0, 1), obs), leaves(obs)[0].shape[:2]
        mirrored = normalize(map_tree(lambda _, x: x, flat, self.obs(flat)))  # in the order of the space
        return map_tree(lambda x: x.unflatten(0, shape), mirrored)

    def mirrored(self, batch: OnPolicyBatch) -> OnPolicyBatch:
        """Return the mirror image of a minibatch with `mirrored_obs` in `extra`."""
        return dataclasses.replace(batch, obs=batch.extra["mirrored_obs"], action=self.action(batch.action))

    def loss(self, distribution: Distribution, mirrored: Distribution) -> Tensor:
        """Return the mirror loss of each step [B], given the distributions for its observation and the mirrored one."""
        error: Tensor = mirrored.mode() - self.action(distribution.mode().detach())
        return error.square().mean(-1)

    def check(self, policy: Policy) -> None:
        """Raise a `ParamsError` unless the functions mirror trial batches of the policy's spaces."""
        if self.loss_coef > 0 and not isinstance(policy.action_space, spaces.Box):
            self.raise_invalid("loss_coef", "must be 0 where actions are choices, which have no mean")
        for field, space in (("obs", policy.observation_space), ("action", policy.action_space)):
            batched, tree = batch_space(space, 8), leaf_spaces(space)
            batched.seed(0)
            trial = map_tree(lambda leaf, x: torch.from_numpy(np.asarray(x, numpy_dtype(leaf))), tree, batched.sample())
            trial = map_tree(lambda x: x.to(policy.device), trial)
            twice = dict(named_leaves(self._tried(field, self._tried(field, trial, tree), tree)))
            for name, x in named_leaves(trial):
                if not torch.allclose(twice[name].double(), x.double(), 1e-4, 1e-4):
                    found = f"{field}{name} {x[0].tolist()} comes back as {twice[name][0].tolist()}"
                    self.raise_invalid(field, f"must be its own inverse; {found}")

    def _tried(self, field: str, given: Tree, tree: Tree) -> Tree:
        """Return the mirror image of a batch; a `ParamsError` unless it is a new batch of the same leaf spaces."""
        before = map_tree(Tensor.clone, given)
        found = getattr(self, field)(given)
        form, other = (
            {name: (getattr(x, "dtype", type(x)), *getattr(x, "shape", ())) for name, x in named_leaves(each)}
            for each in (before, found)
        )
        if form != other:
            self.raise_invalid(field, f"must return {form} for such a batch, not {other}")
        if not all(map(torch.equal, leaves(before), leaves(given))):
            self.raise_invalid(field, "must not change its argument", "Clone it first: x = x.clone().")
        for name, leaf in named_leaves(tree):
            values = dict(named_leaves(found))[name].cpu().numpy()
            if not isinstance(leaf, spaces.Box) and ValueRange(leaf).outside(values).any():
                self.raise_invalid(field, f"must return choices of {leaf}; it returned {values.tolist()}")
        return found
