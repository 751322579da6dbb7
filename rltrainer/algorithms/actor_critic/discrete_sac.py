"""Discrete SAC (Christodoulou 2019, Soft Actor-Critic for Discrete Action Settings)."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from rltrainer.algorithms.actor_critic.sac import SAC, SACNoise, SACParams
from rltrainer.nets import DiscreteActorCritic
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import FiniteFloat

SHARE = 0.6
"""Share of the largest possible entropy that a learned temperature steers to."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DiscreteSACParams(SACParams):
    """Hyperparameters of discrete SAC."""

    target_entropy: FiniteFloat | None = None
    """Entropy in nats that a learned temperature steers to; None is 0.6 ln A for A actions. With the paper's 0.98 ln A,
    the better one of two actions has a probability of 0.58 (0.6 ln A: of 0.85), and the temperature grows until only
    the entropy counts."""


class DiscreteSAC(SAC):
    """SAC that sums over all actions instead of sampling them."""

    policy_class = DiscreteActorCritic
    params_class = DiscreteSACParams
    policy: DiscreteActorCritic  # type: ignore[assignment]  # SAC's has a Gaussian actor
    params: DiscreteSACParams

    def __init__(self, policy: DiscreteActorCritic, params: DiscreteSACParams | None = None) -> None:
        super().__init__(policy, params)  # type: ignore[arg-type]  # as above

    def default_target_entropy(self) -> float:
        """Return 0.6 ln A."""
        return SHARE * math.log(self.policy.num_actions)

    def sample_noise(self, batch: Transitions) -> SACNoise:
        """Sample nothing: sums replace the expectations."""
        none = batch.reward.new_empty(0)
        return SACNoise(action=none, next_action=none)

    def critic_loss(self, batch: Transitions, target: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Return the mean squared errors of the critics, summed, and their mean absolute error [B] without gradient."""
        q: Tensor = self.critic(batch.obs)
        # Only the Q-value of the data's action is trained.
        td_error = target - q.gather(2, (batch.action - self.policy.start).expand(q.shape[:2]).unsqueeze(2)).squeeze(2)
        return (td_error.square() * batch.weight).mean(-1).sum(), td_error.detach().abs().mean(0)

    @torch.no_grad()
    def critic_target(self, batch: Transitions, noise: Any) -> Tensor:
        """Return reward + discount * V(next_obs) [B] (eq. 10)."""
        next_q = self.target_value(self.target_critic(batch.next_obs), noise)
        distribution: Any = self.policy.distribution(batch.next_obs)
        if self.params.entropy_in_target:
            next_value = self.soft_value(distribution, next_q)
        else:
            next_value = torch.sum(distribution.log_probs.exp() * next_q, -1)
        return batch.reward + batch.discount * next_value

    def actor_loss(self, batch: Transitions, noise: Any) -> tuple[Tensor, Tensor]:
        """Return -mean V(obs) (eq. 12), and sum_a pi(a) log pi(a) [B] without gradient."""
        distribution = self.policy.distribution(batch.obs)
        # Exact expectations need no reparametrised sample; the gradient flows through the probabilities.
        value = self.soft_value(distribution, self.actor_value(self.critic(batch.obs)).detach())
        return -(value * batch.weight).mean(), -distribution.entropy().detach()

    def temperature_loss(self, log_prob: Tensor, batch: Transitions) -> Tensor:
        """Return SAC's loss [], given log pi [B]; the default target is 0.6 ln A for A actions that the mask allows."""
        mask = self.policy.mask_of(batch.obs)
        if mask is not None and self.params.target_entropy is None:
            log_prob = log_prob + SHARE * mask.sum(1).to(log_prob.dtype).log() - self.target_entropy
        return super().temperature_loss(log_prob, batch)

    def soft_value(self, distribution: Any, q: Tensor) -> Tensor:
        """Return sum_a pi(a) (Q(a) - alpha log pi(a)) [B] of values [B, A]."""
        log_prob: Tensor = distribution.log_probs
        return torch.sum(log_prob.exp() * (q - self.temperature() * log_prob), -1)
