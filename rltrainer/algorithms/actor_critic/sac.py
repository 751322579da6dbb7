"""SAC (Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications)."""

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.recommended import OffPolicyFields, VectorEnv, look_at
from rltrainer.field_rules import FiniteFloat, Flag, PositiveFloat, Scheduled, UnitFloat
from rltrainer.functional.losses import weighted_mean
from rltrainer.nets import SquashedActorCritic
from rltrainer.nets.target import TargetNetwork
from rltrainer.spaces import leaf_shape
from rltrainer.types import Transitions, UpdateResult


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SACParams(OffPolicyParams):
    """Hyperparameters of SAC."""

    critic_lr: PositiveFloat | Scheduled = 1e-3
    """Learning rate of the critics; `lr` is that of actor and temperature."""
    tau: UnitFloat = 0.005
    """Step of the target critics towards the online ones."""
    temperature: PositiveFloat = 1.0
    """Weight of the entropy, or where it starts if it is learned."""
    target_entropy: FiniteFloat | None = None
    """Entropy in nats that a learned temperature steers to; None is minus the number of action dimensions."""
    learn_temperature: Flag = True
    """Adapt the temperature (section 5 of the paper), or keep it."""


class Temperature(nn.Module):
    """The weight alpha of the entropy, as its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(initial).log())

    def forward(self) -> Tensor:
        """Return alpha, without gradient."""
        return self.log_alpha.detach().exp()


class SACNoise(NamedTuple):
    """Standard normal numbers for the actions of one gradient step, each [B, A]."""

    action: Tensor
    next_action: Tensor


class SAC(OffPolicyAlgorithm):
    """Maximum-entropy actor-critic with two critics and a learned temperature.

    Args:
        policy: squashed Gaussian actor and critics.
        params: hyperparameters; None takes the defaults.
    """

    policy_class = SquashedActorCritic
    params_class = SACParams
    policy: SquashedActorCritic
    params: SACParams

    def __init__(self, policy: SquashedActorCritic, params: SACParams | None = None) -> None:
        super().__init__(policy, params)
        target = self.params.target_entropy
        self.target_entropy = -float(leaf_shape(policy.action_space)[0]) if target is None else target
        self.critic = policy.critic
        self.target_critic = TargetNetwork(policy.critic, self.params.tau)
        self.temperature = Temperature(self.params.temperature).to(self.device)
        self.actor_optimizer = self.make_optimizer(self.params, actor=policy.actor)
        self.critic_optimizer = self.make_optimizer(self.params, lr=self.params.critic_lr, critic=policy.critic)
        self.temperature_optimizer = self.make_optimizer(self.params, temperature=self.temperature)

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OffPolicyFields:
        """Return fields of `OffPolicyTrainerParams` that train well: `**rl.SAC.recommended(envs)`.

        A gradient step of 256 transitions per sample (the paper's table 1), after 1,000 random ones (the authors' code;
        RL Zoo takes 10,000 for MuJoCo).
        """
        num_envs, _ = look_at(envs, cls)
        return {
            "collection_step_num_env_steps": num_envs,
            "batch_size": 256,
            "update_step_num_gradient_steps_per_sample": 1.0,
            "warmup_num_env_steps": 1000,
        }

    def draw_noise(self, batch: Transitions) -> SACNoise:
        """Draw the noise of the current and the next action."""
        return SACNoise(*(torch.empty_like(batch.action).normal_(generator=self.generator) for _ in range(2)))

    def gradient_step(self, batch: Transitions, noise: SACNoise) -> UpdateResult:
        """Train critics, actor and temperature once each."""
        td_error = self.critic_target(batch, noise.next_action) - self.critic(batch.obs, batch.action)
        critic_loss = weighted_mean(td_error.square(), batch.weight).sum()
        self.critic_optimizer.step(critic_loss)
        actor_loss, log_prob = self.actor_loss(batch, noise.action)
        self.actor_optimizer.step(actor_loss)
        if self.params.learn_temperature:
            self.temperature_optimizer.step(self.temperature_loss(log_prob, batch))
        self.target_critic.update(self.critic)
        metrics: dict[str, Tensor | float] = {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "entropy": -log_prob.mean(),
            "temperature": self.temperature(),
        }
        return UpdateResult(metrics, td_error=td_error.detach().mean(0))

    @torch.no_grad()
    def critic_target(self, batch: Transitions, noise: Tensor) -> Tensor:
        """Return reward + discount * (min_i Q_i(s', a') - alpha log pi(a'|s')) [B] (eq. 3 and 5)."""
        next_action, next_log_prob = self.policy.distribution(batch.next_obs).rsample(noise)
        next_q: Tensor = self.target_critic(batch.next_obs, next_action)
        next_value: Tensor = next_q.amin(0) - self.temperature() * next_log_prob
        return batch.reward + batch.discount * next_value

    def actor_loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean(alpha log pi(a|s) - min_i Q_i(s, a)) (eq. 9), and log pi [B] without gradient."""
        action, log_prob = self.policy.distribution(batch.obs).rsample(noise)
        q: Tensor = self.critic(batch.obs, action)
        loss = weighted_mean(self.temperature() * log_prob - q.amin(0), batch.weight)
        return loss, log_prob.detach()

    def temperature_loss(self, log_prob: Tensor, batch: Transitions) -> Tensor:
        """Return -log alpha * mean(log pi + target entropy) (eq. 18, with log alpha as everyone implements it)."""
        return -self.temperature.log_alpha * weighted_mean(log_prob + self.target_entropy, batch.weight)
