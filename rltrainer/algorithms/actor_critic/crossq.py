"""CrossQ (Bhatt et al. 2024, CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample ...)."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from rltrainer.algorithms.actor_critic.sac import SAC, SACNoise, SACParams, joined_obs
from rltrainer.algorithms.algorithm import Betas
from rltrainer.errors import ParamsError
from rltrainer.nets import NetParams, SquashedActorCritic
from rltrainer.nets.blocks import has_batch_norm
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import PositiveFloat, PositiveInt, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class CrossQParams(SACParams):
    """Hyperparameters of CrossQ: SAC's without `tau`. The paper has learning rates of 8e-4 in DeepMind's suite."""

    lr: PositiveFloat | Scheduled = 1e-3
    adam_betas: Betas = (0.5, 0.999)
    actor_update_interval: PositiveInt = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._must_be_left_out("tau", why="CrossQ has no target network.")


class CrossQ(SAC):
    """SAC without target networks: critics with batch norm see both observations of a transition in one batch.

    Its policy is `SquashedActorCritic.for_envs(envs, net, critic_net=critic_net)`, where both `NetParams` have
    `norm="batch_renorm"`; critics without it are a `ParamsError`. The paper's critics are 2,048 wide.
    """

    params_class = CrossQParams
    params: CrossQParams
    policy_options: ClassVar[dict[str, Any]] = {
        "net": NetParams(norm="batch_renorm"),
        "critic_net": NetParams(norm="batch_renorm", hidden_sizes=(2048, 2048)),
    }
    has_target = False
    uses_batch_stats = True
    recommended_num_warmup_steps = 5000  # the authors' train.py

    def __init__(self, policy: SquashedActorCritic, params: CrossQParams | None = None) -> None:
        super().__init__(policy, params)

    def check_critics(self, policy: SquashedActorCritic) -> None:
        """Raise a `ParamsError` if the critics have several outputs, or no batch norm."""
        super().check_critics(policy)
        if not has_batch_norm(policy.critic):
            rule = "must have norm='batch_renorm', without which targets need a network of their own"
            raise ParamsError(f"CrossQ.policy: NetParams of its critics {rule}. Give it to net, and to critic_net.")

    def critic_step(self, batch: Transitions, noise: SACNoise) -> tuple[Tensor, Tensor]:
        """Return half the mean squared errors of the critics, summed (eq. 1), and their mean absolute error [B]."""
        with torch.no_grad():
            next_action, next_log_prob = self.policy.distribution(batch.next_obs).rsample(noise.next_action)
        # The gradient flows through the statistics of both observations, and not through the target.
        values = self.critic(joined_obs(batch), torch.cat([batch.action, next_action]), None, True)  # [E, 2 B]
        q, next_q = values[:, : len(next_action)], values[:, len(next_action) :].detach()
        td_error = batch.reward + batch.discount * self.next_value(next_q, next_log_prob, noise) - q
        return 0.5 * (td_error.square() * batch.weight).mean(-1).sum(), td_error.detach().abs().mean(0)
