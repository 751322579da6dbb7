"""SAC with critics that are distributions of the return over fixed atoms: the common part of SimbaV2 and XQC."""

from typing import Any

import torch
from torch import Tensor

from rltrainer.algorithms.actor_critic.sac import SAC, SACNoise, SACParams, joined_obs
from rltrainer.errors import ParamsError
from rltrainer.functional.losses import project
from rltrainer.nets import CategoricalActorCritic
from rltrainer.nets.blocks import has_batch_norm
from rltrainer.types import Transitions


class CategoricalSAC(SAC):
    """SAC with categorical critics (Lee et al. 2025, SimbaV2, section 4.3).

    With `uses_batch_stats`, the critics have a batch norm, and see both observations of a transition in one batch, as
    in CrossQ; so does the target network.
    """

    policy_class = CategoricalActorCritic
    policy: CategoricalActorCritic

    def __init__(self, policy: CategoricalActorCritic, params: SACParams | None = None) -> None:
        super().__init__(policy, params)

    def check_critics(self, policy: CategoricalActorCritic) -> None:  # type: ignore[override]  # of its class
        """Raise a `ParamsError` if the critics lack the batch norm that updates use."""
        if self.uses_batch_stats and not has_batch_norm(policy.critic):
            name, rule = type(self).__name__, "must have a batch norm"
            raise ParamsError(f"{name}.policy: NetParams of its critics {rule}. Give it to net, and to critic_net.")

    def default_target_entropy(self) -> float:
        """Return half of minus the number of action dimensions."""
        return super().default_target_entropy() / 2

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
        """Return the logits [E, B, K] of critics at the transitions' first step, or at the next one."""
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
