"""DQN (Mnih et al. 2015, Human-level control through deep reinforcement learning)."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.recommended import OffPolicyFields, VectorEnv, look_at
from rltrainer.functional.losses import huber
from rltrainer.nets import EpsilonGreedy, QNetwork
from rltrainer.nets.target import TargetNetwork
from rltrainer.schedules import LinearSchedule
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import Flag, PositiveFloat, PositiveInt, Scheduled, UnitFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DQNParams(OffPolicyParams):
    """Hyperparameters of DQN."""

    lr: PositiveFloat | Scheduled = 1e-3
    epsilon: UnitFloat | Scheduled = LinearSchedule(1.0, 0.05, until=0.2)
    """Probability of a random action while collecting, or a schedule of it."""
    tau: UnitFloat = 1.0
    """Step of the target network towards the online one; 1 copies it."""
    target_update_interval: PositiveInt = 500
    """Gradient steps between two steps of the target network."""
    double: Flag = False
    """Choose the next action with the online network and value it with the target network: less overestimation."""
    huber_delta: PositiveFloat | None = 1.0
    """Error above which the Huber loss is linear, so that large ones count less; None takes the squared error, which
    limits values if the target network is updated often, such as every 50 gradient steps."""
    max_grad_norm: PositiveFloat | None = 10.0


class DQN(OffPolicyAlgorithm):
    """Q-learning with a neural network, a replay buffer and a target network."""

    policy_class: ClassVar[type[Any]] = QNetwork
    params_class: ClassVar[type[DQNParams]] = DQNParams
    policy: QNetwork
    params: DQNParams

    def __init__(self, policy: QNetwork, params: DQNParams | None = None) -> None:
        super().__init__(policy, params)
        self.policy.exploration = EpsilonGreedy(self.params.epsilon)
        self.target_critic = TargetNetwork(policy.critic, self.params.tau, self.params.target_update_interval)
        self.optimizer = self.make_optimizer(self.params, critic=policy.critic)

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OffPolicyFields:
        """Return fields of `OffPolicyTrainerParams` that train well: `**rl.DQN.recommended(envs)`."""
        # Vectors: a gradient step of 64 transitions for every two samples, after 1,000 random samples (RL Zoo's
        # CartPole). Images: a step of 32 for every four samples, after 50,000 (the paper's table of hyperparameters).
        _, has_images = look_at(envs, cls)
        return {
            "collection_step_num_env_steps": 4,
            "batch_size": 32 if has_images else 64,
            "update_step_num_gradient_steps_per_sample": 0.25 if has_images else 0.5,
            "warmup_num_env_steps": 50_000 if has_images else 1000,
        }

    def gradient_step(self, batch: Transitions, noise: Any = None) -> UpdateResult:
        """Take one step on the loss, and let the target network follow."""
        losses, td_error = self.loss(batch, noise)
        loss = (losses * batch.weight).mean()
        self.optimizer.step(loss)
        self.target_critic.update(self.policy.critic)
        return UpdateResult({"loss": loss.detach()}, td_error=td_error.detach())

    def loss(self, batch: Transitions, noise: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of target - Q(obs, action), and that difference, both [B]; variants override it."""
        td_error = self.target(batch) - chosen(self.policy.q_values(batch.obs), batch.action)
        return self.td_loss(td_error), td_error

    def td_loss(self, td_error: Tensor) -> Tensor:
        """Return the Huber loss of each error [...], or its square without a `huber_delta`."""
        # Mnih et al. 2015 clip the derivative of the squared error to [-1, 1], which is the Huber loss with delta 1.
        delta = self.params.huber_delta
        return td_error.square() if delta is None else huber(td_error, delta)

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """Return reward + discount * next value [B]."""
        # `discount` is gamma^n * not terminated: a truncated episode bootstraps, a terminal state is worth 0.
        return batch.reward + batch.discount * self.next_value(batch)

    def next_value(self, batch: Transitions) -> Tensor:
        """Return Q_target(next_obs, best action) [B]."""
        return self.policy.expectation(self.next_output(batch))

    def next_output(self, batch: Transitions) -> Tensor:
        """Return the target network's output for the best action in next_obs: [B], or [B, K] for K outputs."""
        # DQN: max_a Q'(s', a). The maximum prefers actions with errors upwards, so that it overestimates.
        # Double DQN (van Hasselt et al. 2016, eq. 4): Q'(s', argmax_a Q(s', a)); the other network has other errors.
        output: Tensor = self.target_critic(batch.next_obs)
        q = self.policy.q_values(batch.next_obs, None if self.params.double else output)
        return chosen(output, q.argmax(1))


class DoubleDQN(DQN):
    """DQN with `double=True`, whatever its params say (van Hasselt et al. 2016)."""

    def __init__(self, policy: QNetwork, params: DQNParams | None = None) -> None:
        super().__init__(policy, params)
        self.params = dataclasses.replace(self.params, double=True)


def chosen(output: Tensor, action: Tensor) -> Tensor:
    """Return the entries [B, ...] of an output [B, A, ...] that belong to the actions [B]."""
    index = action.view(-1, *[1] * (output.dim() - 1)).expand(-1, 1, *output.shape[2:])
    return output.gather(1, index).squeeze(1)
