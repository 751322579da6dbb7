"""PQN (Gallici et al. 2024, Simplifying Deep Temporal Difference Learning): Q-learning without buffer and target."""

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from rltrainer.algorithms.algorithm import AlgorithmParams
from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from rltrainer.algorithms.q_learning.dqn import chosen
from rltrainer.algorithms.recommended import OnPolicyFields, VectorEnv, look_at
from rltrainer.functional.losses import weighted_mean
from rltrainer.nets import EpsilonGreedy, NetParams, QNetwork
from rltrainer.schedules import LinearSchedule
from rltrainer.types import Rollout, UpdateResult
from rltrainer.validation.field_rules import PositiveFloat, Scheduled, UnitFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PQNParams(AlgorithmParams):
    """Hyperparameters of PQN; the defaults are for a few envs, from CleanRL's `pqn.py`.

    Its sources use RAdam (`optimizer=torch.optim.RAdam`), the default here is Adam, which fits into CUDA graphs.
    """

    lr: PositiveFloat | Scheduled = LinearSchedule(2.5e-4)
    td_lambda: UnitFloat = 0.65
    """Lambda of the returns that are learned: 0 takes one reward and the next value, 1 all rewards of the rollout."""
    epsilon: UnitFloat | Scheduled = LinearSchedule(1.0, 0.05, until=0.5)
    """Probability of a random action while collecting, or a schedule of it."""
    max_grad_norm: PositiveFloat | None = 10.0


class PQN(OnPolicyAlgorithm):
    """Q-learning from the newest rollout of many envs; layer normalisation keeps it stable without a target network.

    Its policy is `QNetwork.for_envs(envs, rl.NetParams(norm="layer"))`; one without a norm is taken, too.
    A truncated episode bootstraps from its final observation; both sources (purejaxql, CleanRL) treat it as terminal.
    """

    policy_class = QNetwork
    policy_options: ClassVar[dict[str, Any]] = {"net": NetParams(norm="layer")}
    params_class = PQNParams
    policy: QNetwork
    params: PQNParams
    # Older weights may act as random actions may: max_a Q(next_obs, a) holds for any action, and traces follow all.
    columns_if_stale = ()

    def __init__(self, policy: QNetwork, params: PQNParams | None = None) -> None:
        super().__init__(policy, params)
        self.policy.exploration = EpsilonGreedy(self.params.epsilon)
        self.optimizer = self.make_optimizer(self.params, critic=policy.critic)

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OnPolicyFields:
        """Return fields of `OnPolicyTrainerParams` that train well: `**rl.PQN.recommended(envs)`."""
        # A few envs: 128 steps of each, 4 minibatches, 4 repetitions (CleanRL). Many: 32, 32, 2 (purejaxql, MinAtar).
        num_envs, _ = look_at(envs, cls)
        num_rows, num_minibatches, repeat = (128, 4, 4) if num_envs < 128 else (32, 32, 2)
        num_steps = num_rows * num_envs
        return OnPolicyFields(
            collection_step_num_env_steps=num_steps, batch_size=num_steps // num_minibatches,
            update_step_num_repetitions=repeat,
        )  # fmt: skip

    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Estimate lambda returns of the greedy policy with one pass over all observations (Peng & Williams 1996)."""
        # G_t = r_t + gamma * (1 - terminated_t) * [(1 - lambda) * max_a Q(next_obs_t, a) + lambda * G_{t+1}]
        # `gae` of the values max_a Q(obs, a) comes to it: V(obs_{t+1}) cancels out of A_{t+1} + V(obs_{t+1}).
        policy = self.policy
        everything = policy.with_open_masks(policy.normalize(rollout.all_obs()), rollout.terminated.new_zeros(1))
        return self.samples(rollout, *rollout.by_step(policy.q_values(everything).amax(1)))

    def samples(self, rollout: Rollout, value: Tensor, next_value: Tensor) -> OnPolicyBatch:
        """Return a batch with returns, given max_a Q(obs, a) and max_a Q(next_obs, a) [T, N]."""
        return self.with_advantages(rollout, value, next_value, self.params.td_lambda)

    def gradient_step(self, batch: OnPolicyBatch) -> UpdateResult:
        """Take one step on (G - Q(obs, action))^2 (algorithm 1)."""
        q = chosen(self.q_values(batch), self.policy.unscale(batch.action))
        loss = weighted_mean((batch.return_ - q).square(), batch.weight)
        self.optimizer.step(loss)
        return UpdateResult({"loss": loss.detach(), "q": weighted_mean(q.detach(), batch.weight)})

    def q_values(self, batch: OnPolicyBatch) -> Tensor:
        """Return the action values [B, A] of a minibatch."""
        return self.policy.q_values(batch.obs)
