"""CQL (Kumar et al. 2020, Conservative Q-Learning for Offline Reinforcement Learning)."""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from rltrainer.algorithms.actor_critic.sac import SAC, SACNoise, SACParams
from rltrainer.algorithms.q_learning.dqn import DQN, DQNParams, chosen
from rltrainer.algorithms.recommended import offline_fields
from rltrainer.nets import QNetwork, SquashedActorCritic
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import Flag, PositiveFloat, PositiveInt, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class CQLParams(SACParams):
    """Hyperparameters of CQL, variant H with a fixed weight. The authors' networks have three hidden layers of 256."""

    lr: PositiveFloat | Scheduled = 1e-4
    critic_lr: PositiveFloat | Scheduled = 3e-4
    entropy_in_target: Flag = False  # as in the authors' code
    conservative_coef: PositiveFloat = 5.0
    """Weight of the conservative term: 5 for the robots of D4RL, 10 in later implementations."""
    num_sampled_actions: PositiveInt = 10
    """Actions N of each kind that estimate the soft maximum over all actions: of the policy at obs, of the policy at
    next_obs, and uniform ones."""
    max_target_backup: Flag = False
    """Take the best of N actions of the policy for the target, instead of one."""


@dataclasses.dataclass(slots=True, kw_only=True)
class CQLNoise(SACNoise):
    """Random numbers of one gradient step, [N, B, A] for N actions of each kind."""

    sampled: Tensor  # standard normal, for the policy's actions at `obs`
    next_sampled: Tensor  # and for its actions at `next_obs`
    uniform: Tensor  # actions in (-1, 1)


class CQL(SAC):
    """SAC whose critics are pushed down for actions outside the data, so that the actor avoids them."""

    params_class = CQLParams
    params: CQLParams
    recommended = classmethod(offline_fields)  # type: ignore[assignment]  # another trainer's

    def __init__(self, policy: SquashedActorCritic, params: CQLParams | None = None) -> None:
        super().__init__(policy, params)

    def sample_noise(self, batch: Transitions) -> CQLNoise:
        """Sample the noise of all actions, and the uniform ones."""
        noise = super().sample_noise(batch)
        shape = (self.params.num_sampled_actions, *batch.action.shape)
        sampled, next_sampled, uniform = (torch.empty(shape, device=self.device) for _ in range(3))
        return CQLNoise(
            action=noise.action, next_action=noise.next_action, sampled=sampled.normal_(generator=self.generator),
            next_sampled=next_sampled.normal_(generator=self.generator),
            uniform=uniform.uniform_(-1, 1, generator=self.generator),
        )  # fmt: skip

    @torch.no_grad()
    def critic_target(self, batch: Transitions, noise: CQLNoise) -> Tensor:
        """Return SAC's target, or its highest over N next actions if `max_target_backup` [B]."""
        if not self.params.max_target_backup:
            return super().critic_target(batch, noise)
        next_action, log_prob = self.policy.distribution(batch.next_obs).rsample(noise.next_sampled)
        critic: Any = self.target_critic.network
        next_q = critic.values(critic.encoder(batch.next_obs), next_action)
        return batch.reward + batch.discount * self.next_value(next_q, log_prob, noise).amax(0)

    def critic_loss(self, batch: Transitions, target: Tensor, noise: CQLNoise) -> tuple[Tensor, Tensor]:
        """Return SAC's loss + coef * (log sum_a exp Q(s, a) - Q(s, a of the data)) [] (eq. 4), and errors [B]."""
        loss, td_error = super().critic_loss(batch, target, noise)
        with torch.no_grad():
            action, log_prob = self.policy.distribution(batch.obs).rsample(noise.sampled)
            next_action, next_log_prob = self.policy.distribution(batch.next_obs).rsample(noise.next_sampled)
        # log sum_a exp Q(s, a) is large if any action is overestimated; Q of the data's action is pushed up against it.
        # The soft maximum by importance sampling (appendix F); a uniform action of (-1, 1)^A has density 2^-A.
        log_uniform = torch.full_like(log_prob, math.log(0.5) * action.shape[-1])
        q = self.sampled_values(batch, torch.cat([action, next_action, noise.uniform]), noise)
        soft_maximum = (q - torch.cat([log_prob, next_log_prob, log_uniform])).logsumexp(1)
        gap = soft_maximum - self.critic(batch.obs, batch.action)
        return loss + self.params.conservative_coef * (gap * batch.weight).mean(-1).sum(), td_error

    def sampled_values(self, batch: Transitions, action: Tensor, noise: CQLNoise) -> Tensor:
        """Return the values [E, 3 N, B] of actions [3 N, B, A]: 2 N of the policy, then N uniform ones."""
        return self.critic.values(self.critic.encoder(batch.obs), action)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DiscreteCQLParams(DQNParams):
    """Hyperparameters of discrete CQL."""

    double: Flag = True
    conservative_coef: PositiveFloat = 1.0
    """Weight of the conservative term."""


class DiscreteCQL(DQN):
    """DQN that pushes down the values of actions outside the data."""

    params_class = DiscreteCQLParams
    params: DiscreteCQLParams
    recommended = classmethod(offline_fields)  # type: ignore[assignment]  # another trainer's

    def __init__(self, policy: QNetwork, params: DiscreteCQLParams | None = None) -> None:
        super().__init__(policy, params)

    def loss(self, batch: Transitions, noise: Any) -> tuple[Tensor, Tensor]:
        """Return DQN's loss + conservative_coef * (log sum_a exp Q(obs, a) - Q(obs, action)), both [B] (eq. 4)."""
        q = self.policy.q_values(batch.obs)
        of_data = chosen(q, batch.action)
        td_error = self.target(batch) - of_data
        return self.td_loss(td_error) + self.params.conservative_coef * (q.logsumexp(1) - of_data), td_error
