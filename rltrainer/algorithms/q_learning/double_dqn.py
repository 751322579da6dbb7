"""Double DQN (van Hasselt et al. 2016, Deep Reinforcement Learning with Double Q-learning)."""

from torch import Tensor

from rltrainer.algorithms.q_learning.dqn import DQN
from rltrainer.types import Transitions


class DoubleDQN(DQN):
    """DQN that chooses the next action with the online network and values it with the target network."""

    def next_value(self, batch: Transitions) -> Tensor:
        """Return Q_target(next_obs, argmax_a Q(next_obs, a)) [B]: less overestimation (eq. 4)."""
        best = self.policy.critic(batch.next_obs).argmax(1, keepdim=True)
        q: Tensor = self.target_critic(batch.next_obs)
        return q.gather(1, best).squeeze(1)
