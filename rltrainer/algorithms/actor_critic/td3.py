"""TD3 (Fujimoto et al. 2018, Addressing Function Approximation Error in Actor-Critic Methods), and DDPG before it."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.recommended import a_step_per_sample
from rltrainer.errors import ParamsError
from rltrainer.nets import DeterministicActorCritic, GaussianNoise
from rltrainer.nets.target import TargetNetwork
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import NonNegativeFloat, PositiveFloat, PositiveInt, Scheduled, UnitFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TD3Params(OffPolicyParams):
    """Hyperparameters of TD3. Actions are in (-1, 1), so noise is in shares of half the action range."""

    lr: PositiveFloat | Scheduled = 1e-3
    exploration_noise: NonNegativeFloat | Scheduled = 0.1
    """Standard deviation of the noise added while collecting."""
    target_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on the target's action."""
    target_noise_clip: NonNegativeFloat = 0.5
    """Bound of that noise."""
    actor_update_interval: PositiveInt = 2
    """Gradient steps of the critic for each one of the actor and the target networks."""
    tau: UnitFloat = 0.005
    """Step of the target networks towards the online ones."""


@dataclasses.dataclass(slots=True, kw_only=True)
class TD3Noise:
    """Random numbers [B, A] of one gradient step."""

    target_noise: Tensor  # added to the target's action [B, A]
    is_actors_turn: bool = True  # train the actor too, and let the target networks follow


class TD3(OffPolicyAlgorithm):
    """Deterministic policy gradient with two critics, a smoothed target and a delayed actor.

    A policy with `num_outputs` > 1 raises a `ParamsError`.
    """

    policy_class = DeterministicActorCritic
    params_class = TD3Params
    policy: DeterministicActorCritic
    params: TD3Params
    recommended = classmethod(a_step_per_sample)
    occasional_metrics = ("actor_loss",)

    def __init__(self, policy: DeterministicActorCritic, params: TD3Params | None = None) -> None:
        super().__init__(policy, params)
        if policy.num_outputs != 1:
            raise ParamsError.about(f"{type(self).__name__}.policy", "num_outputs", "must be 1", policy.num_outputs)
        self.policy.exploration = GaussianNoise(self.params.exploration_noise)
        self.actor, self.critic = policy.actor, policy.critic
        self.target_actor = TargetNetwork(policy.actor, self.params.tau)
        self.target_critic = TargetNetwork(policy.critic, self.params.tau)
        self.actor_optimizer = self.make_optimizer(self.params, actor=policy.actor)
        self.critic_optimizer = self.make_optimizer(self.params, critic=policy.critic)
        self.num_critic_steps = torch.zeros((), dtype=torch.int64)  # on the CPU: Python reads it

    def sample_noise(self, batch: Transitions) -> TD3Noise:
        """Sample the noise on the target's action."""
        noise = torch.empty_like(batch.action).normal_(generator=self.generator) * self.params.target_noise
        return TD3Noise(target_noise=noise.clamp_(-self.params.target_noise_clip, self.params.target_noise_clip))

    def next_turn(self) -> bool:
        """Count a step of the critic, and decide on the actor's turn."""
        self.num_critic_steps += self.begins_step
        return int(self.num_critic_steps) % self.params.actor_update_interval == 0

    def gradient_step(self, batch: Transitions, noise: TD3Noise) -> UpdateResult:
        """Train the critics; at every `actor_update_interval`-th step the actor too."""
        critic_loss, td_error = self.critic_loss(batch, self.critic_target(batch, noise), noise)
        self.critic_optimizer.step(critic_loss)
        metrics: dict[str, Tensor | float] = {"critic_loss": critic_loss.detach()}
        if noise.is_actors_turn:
            actor_loss = self.actor_loss(batch)
            self.actor_optimizer.step(actor_loss)
            self.target_actor.update(self.actor)
            self.target_critic.update(self.critic)
            metrics["actor_loss"] = actor_loss.detach()
        return UpdateResult(metrics, td_error=td_error)

    @torch.no_grad()
    def critic_target(self, batch: Transitions, noise: Any) -> Tensor:
        """Return reward + discount * min_i Q_i(next_obs, smoothed target action) [B] (eq. 14)."""
        # Noise smooths the target over similar actions: the actor cannot exploit a narrow peak of the critic.
        next_action = (self.target_actor(batch.next_obs) + noise.target_noise).clamp(-1, 1)
        next_q: Tensor = self.target_critic(batch.next_obs, next_action)
        return batch.reward + batch.discount * self.target_value(next_q, noise)

    def critic_loss(self, batch: Transitions, target: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Return the mean squared errors of the critics, summed, and their mean absolute error [B] without gradient."""
        td_error: Tensor = target - self.critic(batch.obs, batch.action)
        return (td_error.square() * batch.weight).mean(-1).sum(), td_error.detach().abs().mean(0)

    def target_value(self, q: Tensor, noise: Any) -> Tensor:
        """Reduce the target critics' values [E, B] to [B]."""
        return q.amin(0)

    def actor_loss(self, batch: Transitions) -> Tensor:
        """Return -mean Q_1(obs, actor(obs)) []."""
        q: Tensor = self.critic(batch.obs, self.actor(batch.obs), num_members=1)[0]
        return -(q * batch.weight).mean()


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DDPGParams(TD3Params):
    """Hyperparameters of DDPG: TD3's without `target_noise`, `target_noise_clip` and `actor_update_interval`."""

    target_noise: NonNegativeFloat = 0.0
    actor_update_interval: PositiveInt = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        added = ("target_noise", "target_noise_clip", "actor_update_interval")
        self._must_be_left_out(*added, why="It is what TD3 adds to DDPG.")


class DDPG(TD3):
    """Deterministic policy gradient with one critic (Lillicrap et al. 2016): TD3 without its three additions.

    Its policy is `DeterministicActorCritic.for_envs(envs, num_critics=1)`; several critics are a `ParamsError`.
    """

    params_class = DDPGParams
    params: DDPGParams
    policy_options: ClassVar[dict[str, Any]] = {"num_critics": 1}

    def __init__(self, policy: DeterministicActorCritic, params: DDPGParams | None = None) -> None:
        super().__init__(policy, params)
        if policy.num_critics != 1:
            raise ParamsError.about("DDPG.policy", "num_critics", "must be 1", policy.num_critics)
