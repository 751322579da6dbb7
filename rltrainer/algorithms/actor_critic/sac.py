"""SAC (Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications)."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.recommended import a_step_per_sample
from rltrainer.errors import ParamsError
from rltrainer.nets import SquashedActorCritic
from rltrainer.nets.distributions import SquashedGaussian
from rltrainer.nets.target import TargetNetwork
from rltrainer.spaces import leaf_shape
from rltrainer.tree import map_tree
from rltrainer.types import Transitions, UpdateResult
from rltrainer.updates.optimizer import Optimizer
from rltrainer.validation.field_rules import FiniteFloat, Flag, PositiveFloat, PositiveInt, Scheduled, UnitFloat

Metrics = dict[str, Tensor | float]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SACParams(OffPolicyParams):
    """Hyperparameters of SAC."""

    critic_lr: PositiveFloat | Scheduled = 1e-3
    """Learning rate of the critics; `lr` is for actor and temperature."""
    tau: UnitFloat = 0.005
    """Step of the target critics towards the online ones."""
    temperature: PositiveFloat = 1.0
    """Weight of the entropy, or where it starts if it is learned."""
    target_entropy: FiniteFloat | None = None
    """Entropy in nats that a learned temperature steers to; None is minus the number of action dimensions."""
    learn_temperature: Flag = True
    """Adapt the temperature (section 5 of the paper), or keep it."""
    entropy_in_target: Flag = True
    """Count the entropy of the next action in the critics' target. RLPD leaves it out in AntMaze and Adroit."""
    actor_update_interval: PositiveInt = 1
    """Gradient steps of the critics for each one of actor and temperature."""


class Temperature(nn.Module):
    """The weight alpha of the entropy, as its logarithm."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(initial).log())

    def forward(self) -> Tensor:
        """Return alpha [], without gradient."""
        return self.log_alpha.detach().exp()


@dataclasses.dataclass(slots=True, kw_only=True)
class SACNoise:
    """Random numbers of one gradient step: standard normal, [B, A] for each action."""

    action: Tensor  # for actions at `obs`
    next_action: Tensor  # for actions at `next_obs`
    is_actors_turn: bool = True  # train actor and temperature too


def joined_obs(batch: Transitions) -> Any:
    """Return both observations of transitions as one batch [2 B, ...]."""
    # Apart, Q(s, a) and Q(s', a') would be standardised by statistics of different distributions.
    return map_tree(lambda obs, next_obs: torch.cat([obs, next_obs]), batch.obs, batch.next_obs)


class SAC(OffPolicyAlgorithm):
    """Maximum-entropy actor-critic with two critics and a learned temperature.

    A variant without a target network sets `has_target = False`, and overrides `critic_step`.
    """

    policy_class: ClassVar[type[Any]] = SquashedActorCritic
    params_class = SACParams
    policy: SquashedActorCritic
    params: SACParams
    recommended = classmethod(a_step_per_sample)
    occasional_metrics = ("actor_loss", "entropy", "temperature")  # if the actor takes fewer steps
    has_target: ClassVar[bool] = True
    """False if targets come from the critics themselves."""
    target_entropy_per_dimension: ClassVar[float] = -1.0
    """The default of `target_entropy`, for each number of an action (appendix D)."""

    def __init__(self, policy: SquashedActorCritic, params: SACParams | None = None) -> None:
        super().__init__(policy, params)
        self.check_critics(policy)
        target = self.params.target_entropy
        self.target_entropy = self.default_target_entropy() if target is None else target
        self.critic = policy.critic
        if self.has_target:
            self.target_critic = TargetNetwork(policy.critic, self.params.tau)
        self.temperature = Temperature(self.params.temperature).to(self.device, policy.weight_dtype)
        self.actor_optimizer = self.make_optimizer(self.params, actor=policy.actor)
        self.critic_optimizer = self.make_optimizer(self.params, lr=self.params.critic_lr, critic=policy.critic)
        # No decay, which would pull alpha towards 1, and Adam's usual betas.
        given = self.params.lr, self.params.max_grad_norm, self.params.adam_eps, self.params.optimizer
        self.temperature_optimizer = Optimizer({"temperature": self.temperature}, *given)
        if self.params.actor_update_interval > 1:
            self.num_critic_steps = torch.zeros((), dtype=torch.int64)  # on the CPU: Python reads it

    def check_critics(self, policy: SquashedActorCritic) -> None:
        """Raise a `ParamsError` if the critics have several outputs."""
        if policy.num_outputs > 1:
            raise ParamsError.about(f"{type(self).__name__}.policy", "num_outputs", "must be 1", policy.num_outputs)

    def default_target_entropy(self) -> float:
        """Return the target entropy that params leave to the algorithm."""
        return leaf_shape(self.policy.action_space)[0] * self.target_entropy_per_dimension

    def sample_noise(self, batch: Transitions) -> SACNoise:
        """Sample the noise of the current and the next action."""
        action, next_action = [torch.empty_like(batch.action).normal_(generator=self.generator) for _ in range(2)]
        return SACNoise(action=action, next_action=next_action)

    def next_turn(self) -> bool | None:
        """Count a step of the critics, and decide on the actor's turn; None if each step is."""
        if (interval := self.params.actor_update_interval) == 1:
            return None
        self.num_critic_steps += self.begins_step
        return int(self.num_critic_steps) % interval == 0

    def gradient_step(self, batch: Transitions, noise: SACNoise) -> UpdateResult:
        """Train the critics, and actor and temperature if it is their turn, once each."""
        metrics, td_error = self.train_critics(batch, noise)
        if noise.is_actors_turn:
            metrics |= self.train_actor(batch, noise)
        if self.has_target:
            self.target_critic.update(self.critic)
        return UpdateResult(metrics, td_error=td_error)

    def train_critics(self, batch: Transitions, noise: SACNoise) -> tuple[Metrics, Tensor]:
        """Train the critics; return their loss, and their mean absolute error [B]."""
        critic_loss, td_error = self.critic_step(batch, noise)
        self.critic_optimizer.step(critic_loss)
        return {"critic_loss": critic_loss.detach()}, td_error

    def train_actor(self, batch: Transitions, noise: SACNoise) -> Metrics:
        """Train the actor, and a learned temperature."""
        actor_loss, log_prob = self.actor_loss(batch, noise)
        self.actor_optimizer.step(actor_loss)
        if self.params.learn_temperature:
            self.temperature_optimizer.step(self.temperature_loss(log_prob, batch))
        return {"actor_loss": actor_loss.detach(), "entropy": -log_prob.mean(), "temperature": self.temperature()}

    def critic_step(self, batch: Transitions, noise: Any) -> tuple[Tensor, Tensor]:
        """Return the loss of the critics [], and their mean absolute error [B] without gradient."""
        return self.critic_loss(batch, self.critic_target(batch, noise), noise)

    @torch.no_grad()
    def critic_target(self, batch: Transitions, noise: Any) -> Tensor:
        """Return reward + discount * (min_i Q_i(s', a') - alpha log pi(a'|s')) [B] (eq. 3 and 5).

        The last term is left out unless `entropy_in_target`.
        """
        next_action, next_log_prob = self.policy.distribution(batch.next_obs).rsample(noise.next_action)
        # The lowest of several critics: the actor would go where one overestimates.
        next_q = self.target_critic(batch.next_obs, next_action)
        return batch.reward + batch.discount * self.next_value(next_q, next_log_prob, noise)

    def next_value(self, q: Tensor, log_prob: Tensor, noise: Any) -> Tensor:
        """Return the value [B] of next observations, given their Q [E, B] and log pi(a'|s') [B]."""
        value = self.target_value(q, noise)
        return value - self.temperature() * log_prob if self.params.entropy_in_target else value

    def critic_loss(self, batch: Transitions, target: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Return the mean squared errors of the critics, summed, and their mean absolute error [B] without gradient."""
        td_error: Tensor = target - self.critic(batch.obs, batch.action)
        return (td_error.square() * batch.weight).mean(-1).sum(), td_error.detach().abs().mean(0)

    def target_value(self, q: Tensor, noise: Any) -> Tensor:
        """Reduce the target critics' values [E, B] to [B]."""
        return q.amin(0)

    def actor_loss(self, batch: Transitions, noise: SACNoise) -> tuple[Tensor, Tensor]:
        """Return mean(alpha log pi(a|s) - min_i Q_i(s, a)) [] (eq. 9), and log pi [B] without gradient."""
        # Reparametrised: the action is a function of the actor's output and noise, so its gradient comes through Q.
        action, log_prob = self.actor_distribution(batch).rsample(noise.action)
        value = self.actor_value(self.critic(batch.obs, action))
        return ((self.temperature() * log_prob - value) * batch.weight).mean(), log_prob.detach()

    def actor_distribution(self, batch: Transitions) -> SquashedGaussian:
        """Return the distributions over actions [B, A] that the actor learns by, of batch statistics if it has any."""
        distribution = self.policy.distribution
        return distribution(batch.obs, True) if self.uses_batch_stats else distribution(batch.obs)

    def actor_value(self, q: Tensor) -> Tensor:
        """Reduce the critics' values [E, B] to the actor's objective [B]."""
        return q.amin(0)

    def temperature_loss(self, log_prob: Tensor, batch: Transitions) -> Tensor:
        """Return -log alpha * mean(log pi + target entropy) [] (eq. 18) for log pi [B]."""
        # The paper has alpha for log alpha; with the logarithm, as in its authors' code, alpha stays positive.
        return -self.temperature.log_alpha * ((log_prob + self.target_entropy) * batch.weight).mean()
