"""SAC with critics that are distributions of the return over fixed atoms: the common part of SimbaV2 and XQC."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rltrainer.algorithms.actor_critic.sac import SAC, SACNoise, SACParams, joined_obs
from rltrainer.errors import ParamsError
from rltrainer.functional.losses import project
from rltrainer.nets import CategoricalActorCritic
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import PositiveFloat, UnitFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class CategoricalSACParams(SACParams):
    """Hyperparameters of SAC with categorical critics."""

    gamma: UnitFloat = 0.995
    """Discount factor per env step. The papers take 1 - 5 / T within [0.95, 0.995] for episodes of T steps."""
    temperature: PositiveFloat = 0.01


class CategoricalSAC(SAC):
    """SAC with categorical critics (Lee et al. 2025, SimbaV2; Palenicek et al. 2026, XQC).

    With `uses_batch_stats`, critics and target network see both observations of a transition in one batch.
    """

    policy_class = CategoricalActorCritic
    params_class = CategoricalSACParams
    policy: CategoricalActorCritic
    target_entropy_per_dimension = -0.5
    recommended_steps_per_sample, recommended_num_warmup_steps = 2.0, 5000  # both papers
    critic_part: ClassVar[type[nn.Module]] = nn.Module
    """A class of module that critics hold with the norm of `policy_options`."""

    def check_critics(self, policy: Any) -> None:
        """Raise a `ParamsError` if the critics are built of other parts than the algorithm's."""
        if not any(isinstance(part, self.critic_part) for part in policy.critic.modules()):
            norm = self.policy_options["critic_net"].norm
            rule = f"must have norm={norm!r}. Give it to net, and to critic_net."
            raise ParamsError(f"{type(self).__name__}.policy: NetParams of its critics {rule}")

    def critic_step(self, batch: Transitions, noise: SACNoise) -> tuple[Tensor, Tensor]:
        """Return the cross-entropies of target and prediction, summed over critics, and their mean [B]."""
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution(batch.next_obs).rsample(noise.next_action)
            next_logits = self.logits(self.target_critic, batch, next_action, of_next=True)
            target = self.target(batch, next_logits, next_log_prob, noise)
        log_probability = self.logits(self.critic, batch, next_action, of_next=False).log_softmax(-1)
        loss = -(target * log_probability).sum(-1)  # [E, B]
        return (loss * batch.weight).mean(-1).sum(), loss.detach().mean(0)

    def logits(self, critic: Any, batch: Transitions, next_action: Tensor, of_next: bool) -> Tensor:
        """Return the logits [E, B, K] of critics at the first steps of transitions, or at the next ones."""
        if not self.uses_batch_stats:
            return critic(batch.next_obs, next_action) if of_next else critic(batch.obs, batch.action)  # type: ignore[no-any-return]
        both: Tensor = critic(joined_obs(batch), torch.cat([batch.action, next_action]), None, True)
        return both[:, len(next_action) :] if of_next else both[:, : len(next_action)]

    def target(self, batch: Transitions, logits: Tensor, log_prob: Tensor, noise: SACNoise) -> Tensor:
        """Return the distribution of reward + discount * (z - alpha log pi(a'|s')) as probabilities of atoms [B, K]."""
        reward = batch.reward
        if self.params.entropy_in_target:
            reward = reward - batch.discount * self.temperature() * log_prob
        return project(self.policy.support, self.target_value(logits, noise).softmax(-1), reward, batch.discount)

    def target_value(self, q: Tensor, noise: SACNoise) -> Tensor:
        """Return the logits [B, K] of the critic with the lower mean, of all critics' logits [E, B, K]."""
        lowest = self.policy.expectation(q).argmin(0)
        return q[lowest, torch.arange(len(lowest), device=lowest.device)]

    def actor_value(self, q: Tensor) -> Tensor:
        """Return the lowest mean [B] of the critics' logits [E, B, K]."""
        return self.policy.expectation(q).amin(0)
