"""Behaviour cloning (Pomerleau 1991): supervised learning of the data's actions."""

import dataclasses
from typing import Any, Protocol, TypeGuard, cast

from torch import nn

from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.recommended import offline_fields
from rltrainer.errors import ParamsError
from rltrainer.nets import Policy
from rltrainer.nets.distributions import Distribution
from rltrainer.tree import Tree
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import PositiveFloat, Scheduled


class Stochastic(Protocol):
    """A policy whose actor makes a distribution over actions."""

    @property
    def actor(self) -> nn.Module:
        """All networks of the distribution."""

    def distribution(self, obs: Tree) -> Distribution:
        """Return the distribution over actions in `Policy.unscale`'s scale, for normalised observations [B, ...]."""


def is_stochastic(policy: object) -> TypeGuard[Stochastic]:
    """Return whether a policy has the members of `Stochastic`."""
    return isinstance(getattr(policy, "actor", None), nn.Module) and callable(getattr(policy, "distribution", None))


def require_stochastic(algorithm: object, policy: object) -> None:
    """Raise a `ParamsError` about an algorithm's policy unless it has the members of `Stochastic`."""
    if not is_stochastic(policy):
        rule = f"must be a policy with a `distribution` and an `actor`; got {type(policy).__name__}"
        raise ParamsError(f"{type(algorithm).__name__}.policy: {rule}. Build it with Actor.for_envs(envs).")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BCParams(OffPolicyParams):
    """Hyperparameters of behaviour cloning; `gamma` and `n_step` must be left out."""

    lr: PositiveFloat | Scheduled = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._must_be_left_out("gamma", "n_step", why="Behaviour cloning uses no rewards.")


class BC(OffPolicyAlgorithm):
    """Maximum likelihood of the data's actions, discrete or continuous; only the policy's actor is trained.

    Args:
        policy: any stochastic policy: `Actor`, `ActorCritic`, `SquashedActorCritic`, `GaussianActorCritic`, or your own
            with a `distribution` and an `actor`; another one raises a `ParamsError`.
    """

    params_class = BCParams
    learns_from_rewards = False
    policy: Any  # a Policy that is Stochastic: no type says both
    params: BCParams
    recommended = classmethod(offline_fields)

    def __init__(self, policy: Stochastic, params: BCParams | None = None) -> None:
        super().__init__(cast(Policy, policy), params)
        require_stochastic(self, policy)
        self.optimizer = self.make_optimizer(self.params, actor=policy.actor)

    def gradient_step(self, batch: Transitions, noise: Any = None) -> UpdateResult:
        """Take one step on -log pi(action|obs)."""
        loss = -(self.policy.distribution(batch.obs).log_prob(batch.action) * batch.weight).mean()
        self.optimizer.step(loss)
        return UpdateResult({"loss": loss.detach()})
