"""C51 (Bellemare, Dabney & Munos 2017, A Distributional Perspective on Reinforcement Learning)."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from rltrainer.algorithms.q_learning.dqn import DQN, DQNParams, chosen
from rltrainer.functional.losses import project
from rltrainer.nets import CategoricalQNetwork
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import PositiveFloat, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class C51Params(DQNParams):
    """Hyperparameters of C51. Learning rate and epsilon of Adam are the paper's; the atoms are the policy's."""

    lr: PositiveFloat | Scheduled = 2.5e-4
    adam_eps: PositiveFloat = 0.01 / 32
    huber_delta: None = None
    """None: the loss is a cross-entropy."""


class C51(DQN):
    """DQN that learns the whole distribution of returns, as probabilities of fixed atoms.

    The policy's `v_min` and `v_max` must cover the discounted returns of the env.
    """

    policy_class = CategoricalQNetwork
    params_class = C51Params
    policy: CategoricalQNetwork
    params: C51Params

    def __init__(self, policy: CategoricalQNetwork, params: C51Params | None = None) -> None:
        super().__init__(policy, params)

    def loss(self, batch: Transitions, noise: Any) -> tuple[Tensor, Tensor]:
        """Return the cross-entropies of target and prediction [B], as losses and as errors (algorithm 1)."""
        log_probability = chosen(self.policy.critic(batch.obs), batch.action).log_softmax(-1)
        loss = -(self.target(batch) * log_probability).sum(-1)
        return loss, loss

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """Return the distribution of reward + discount * next return, as probabilities of the atoms [B, K] (eq. 7)."""
        # The atoms r + discount * z lie between or beyond the support's atoms: each shares its mass among neighbours.
        return project(self.policy.support, self.next_output(batch).softmax(-1), batch.reward, batch.discount)
