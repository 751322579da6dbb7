"""QR-DQN (Dabney et al. 2018, Distributional Reinforcement Learning with Quantile Regression)."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from rltrainer.algorithms.q_learning.dqn import DQN, DQNParams, chosen
from rltrainer.functional.losses import midpoints, quantile_huber
from rltrainer.nets import QuantileQNetwork
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import PositiveFloat, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class QRDQNParams(DQNParams):
    """Hyperparameters of QR-DQN. Learning rate and epsilon of Adam are the paper's, for Atari with 200 quantiles."""

    lr: PositiveFloat | Scheduled = 5e-5
    adam_eps: PositiveFloat = 0.01 / 32
    huber_delta: PositiveFloat = 1.0
    """Error above which the quantile Huber loss is linear: kappa in eq. 9 and 10."""


class QRDQN(DQN):
    """DQN that learns the whole distribution of returns, as quantiles."""

    policy_class = QuantileQNetwork
    params_class = QRDQNParams
    policy: QuantileQNetwork
    params: QRDQNParams

    def __init__(self, policy: QuantileQNetwork, params: QRDQNParams | None = None) -> None:
        super().__init__(policy, params)

    def loss(self, batch: Transitions, noise: Any) -> tuple[Tensor, Tensor]:
        """Return the quantile Huber loss (eq. 10), and the mean distance of the target from the predicted mean, [B]."""
        quantiles, target = chosen(self.policy.critic(batch.obs), batch.action), self.target(batch)
        # Quantile regression: errors above count tau, errors below 1 - tau, so that a share tau of returns lies below.
        loss = quantile_huber(quantiles, midpoints(quantiles), target, self.params.huber_delta)
        return loss, (target - quantiles.mean(-1, keepdim=True)).abs().mean(-1)

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """Return reward + discount * quantiles of the next return [B, K] (eq. 9)."""
        return batch.reward.unsqueeze(1) + batch.discount.unsqueeze(1) * self.next_output(batch)
