"""Double DQN (van Hasselt et al. 2016, Deep Reinforcement Learning with Double Q-learning)."""

import dataclasses

from rltrainer.algorithms.q_learning.dqn import DQN, DQNParams
from rltrainer.nets import QNetwork


class DoubleDQN(DQN):
    """DQN with `double=True`, whatever its params say."""

    def __init__(self, policy: QNetwork, params: DQNParams | None = None) -> None:
        super().__init__(policy, params)
        self.params = dataclasses.replace(self.params, double=True)
