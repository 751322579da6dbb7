"""Behaviour cloning (Pomerleau 1991): supervised learning of the data's actions."""

import dataclasses
from typing import Any

from rltrainer.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.functional.losses import weighted_mean
from rltrainer.nets import Actor
from rltrainer.rules import PositiveFloat, Scheduled
from rltrainer.types import Transitions, UpdateResult


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class BCParams(OffPolicyParams):
    """Hyperparameters of behaviour cloning.

    Raises:
        ParamsError: `gamma` or `n_step` is given; they would do nothing.
    """

    lr: PositiveFloat | Scheduled = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "n_step"):
            if getattr(self, name) != getattr(OffPolicyParams, name):
                self.refuse(name, "must be left out", "Behaviour cloning uses no rewards.")


class BC(OffPolicyAlgorithm):
    """Maximises the likelihood of the data's actions; discrete and continuous alike.

    Args:
        policy: any stochastic actor.
        params: hyperparameters; None takes the defaults.
    """

    policy_class = Actor
    params_class = BCParams
    policy: Actor
    params: BCParams

    def __init__(self, policy: Actor, params: BCParams | None = None) -> None:
        super().__init__(policy, params)
        self.optimizer = self.make_optimizer(self.params, actor=policy.actor)

    def gradient_step(self, batch: Transitions, noise: Any = None) -> UpdateResult:
        """Take one step on -log pi(action|obs)."""
        loss = -weighted_mean(self.policy.distribution(batch.obs).log_prob(batch.action), batch.weight)
        self.optimizer.step(loss)
        return UpdateResult({"loss": loss.detach()})
