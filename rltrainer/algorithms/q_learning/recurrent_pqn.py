"""PQN for policies with memory: it trains on sequences, each from the memory at its start."""

from typing import cast

from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.q_learning.pqn import PQN, PQNParams
from rltrainer.algorithms.recommended import whole_envs
from rltrainer.algorithms.sequences import Sequences, values_of
from rltrainer.nets import RecurrentQNetwork
from rltrainer.tree import Tree
from rltrainer.types import Rollout


class RecurrentPQN(PQN):
    """PQN whose policy has a memory: a minibatch is whole envs over the whole rollout.

    Each env's sequence starts from its memory at the start of the rollout, as in `RecurrentPPO`. The source
    (purejaxql's `pqn_rnn_gymnax.py`) runs the 4 rows before the rollout again instead, and shows the last action to the
    network: a wrapper of the env can put it into the observation.
    """

    policy_class = RecurrentQNetwork  # type: ignore[assignment]  # it is let in instead of policies without memory
    policy: RecurrentQNetwork  # type: ignore[assignment]
    trains_recurrent = True
    columns = ("state",)
    recommended = classmethod(whole_envs)

    def __init__(self, policy: RecurrentQNetwork, params: PQNParams | None = None) -> None:
        super().__init__(policy, params)  # type: ignore[arg-type]  # the methods below override PQN's that use it
        self.optimizer = self.make_optimizer(self.params, memory=policy.memory, critic=policy.critic)

    def process(self, rollout: Rollout) -> Sequences:
        """Estimate returns as PQN does, with one pass over each env's sequence."""
        policy, never = self.policy, rollout.terminated.new_zeros(1)

        def best(obs: Tree, state: Tensor) -> Tensor:
            return policy.q_values(state, policy.mask_of(policy.with_open_masks(obs, never))).amax(1)

        _, _, value, next_value = values_of(policy, rollout, best)
        return Sequences.of_samples(self.samples(rollout, value, next_value), rollout)

    def q_values(self, batch: OnPolicyBatch) -> Tensor:
        """Return the action values [T * n, A] of whole envs."""
        state = cast(Sequences, batch).memory(self.policy)
        return self.policy.q_values(state, self.policy.mask_of(batch.obs))
