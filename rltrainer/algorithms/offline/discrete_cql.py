"""CQL for discrete actions (Kumar et al. 2020, Conservative Q-Learning for Offline Reinforcement Learning)."""

import dataclasses
from typing import Any

from torch import Tensor

from rltrainer.algorithms.q_learning.dqn import DQN, DQNParams, chosen
from rltrainer.algorithms.recommended import offline_fields
from rltrainer.nets import QNetwork
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import Flag, PositiveFloat


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
