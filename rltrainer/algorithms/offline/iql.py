"""IQL (Kostrikov et al. 2022, Offline Reinforcement Learning with Implicit Q-Learning)."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.recommended import offline_fields
from rltrainer.functional.losses import expectile
from rltrainer.nets import GaussianActorCritic
from rltrainer.nets.target import TargetNetwork
from rltrainer.schedules import CosineSchedule
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import PositiveFloat, Scheduled, UnitFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class IQLParams(OffPolicyParams):
    """Hyperparameters of IQL."""

    lr: PositiveFloat | Scheduled = 3e-4
    """Learning rate of the networks whose own is None."""
    actor_lr: PositiveFloat | Scheduled | None = None
    """Learning rate of the actor; None lets `lr` fall to 0 along a cosine, as the paper's code does, unless `lr` is a
    schedule."""
    critic_lr: PositiveFloat | Scheduled | None = None
    """Learning rate of the critics; None is `lr`."""
    value_lr: PositiveFloat | Scheduled | None = None
    """Learning rate of the value network; None is `lr`."""
    expectile: UnitFloat = 0.7
    """The expectile of Q that the value learns: 0.5 is the mean over the data's actions, towards 1 the best of them."""
    beta: PositiveFloat = 3.0
    """Inverse temperature of the advantage weights: towards 0 the actor clones the data."""
    max_advantage_weight: PositiveFloat = 100.0
    """Upper bound of those weights."""
    tau: UnitFloat = 0.005
    """Step of the target critics towards the online ones."""


class IQL(OffPolicyAlgorithm):
    """Q-learning that evaluates only actions of the data, and a weighted clone as actor."""

    policy_class = GaussianActorCritic
    params_class = IQLParams
    policy: GaussianActorCritic
    params: IQLParams
    recommended = classmethod(offline_fields)

    def __init__(self, policy: GaussianActorCritic, params: IQLParams | None = None) -> None:
        super().__init__(policy, params)
        self.critic = policy.critic
        self.target_critic = TargetNetwork(policy.critic, self.params.tau)
        lr, actor_lr = self.params.lr, self.params.actor_lr
        if actor_lr is None:
            actor_lr = lr if callable(lr) else CosineSchedule(lr)
        self.actor_optimizer = self.make_optimizer(self.params, lr=actor_lr, actor=policy.actor)
        self.critic_optimizer = self.make_optimizer(self.params, lr=self.params.critic_lr, critic=policy.critic)
        self.value_optimizer = self.make_optimizer(self.params, lr=self.params.value_lr, value=policy.value_network)

    def gradient_step(self, batch: Transitions, noise: Any = None) -> UpdateResult:
        """Train value, actor and critics once each, in the order of the authors' code."""
        # The actor's advantages come from the value network before its step (in the authors' code: after it), the
        # critics' targets from the value network after its step.
        with torch.no_grad():
            q = self.target_critic(batch.obs, batch.action).amin(0)
        advantage = q - self.policy.value(batch.obs)
        # L = |tau - 1(A < 0)| A^2 (eq. 5): with tau > 0.5, values below Q cost more than values above it.
        value_loss = (expectile(advantage, self.params.expectile) * batch.weight).mean()
        self.value_optimizer.step(value_loss)
        actor_loss = self.actor_loss(batch, advantage.detach())
        self.actor_optimizer.step(actor_loss)
        td_error = self.critic_target(batch) - self.critic(batch.obs, batch.action)
        critic_loss = (td_error.square() * batch.weight).mean(-1).sum()
        self.critic_optimizer.step(critic_loss)
        self.target_critic.update(self.critic)
        losses = {"value_loss": value_loss, "actor_loss": actor_loss, "critic_loss": critic_loss}
        metrics: dict[str, Tensor | float] = {name: loss.detach() for name, loss in losses.items()}
        return UpdateResult(metrics, td_error=td_error.detach().abs().mean(0))

    @torch.no_grad()
    def critic_target(self, batch: Transitions) -> Tensor:
        """Return reward + discount * V(next_obs) [B] (eq. 6)."""
        return batch.reward + batch.discount * self.policy.value(batch.next_obs)

    def actor_loss(self, batch: Transitions, advantage: Tensor) -> Tensor:
        """Return -mean(exp(beta A) log pi(a|s)) [] for A [B], advantage-weighted regression (eq. 7)."""
        weight = (self.params.beta * advantage).exp().clamp(max=self.params.max_advantage_weight)
        return -(weight * self.policy.distribution(batch.obs).log_prob(batch.action) * batch.weight).mean()
