"""Off-policy updates: sampled transitions in, one gradient step for each batch of them."""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar

from rltrainer.algorithms.algorithm import Algorithm, AlgorithmParams
from rltrainer.data import ReplayBuffer
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets.policy import Policy
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OffPolicyParams(AlgorithmParams):
    """Hyperparameters that all off-policy algorithms have."""

    n_step: PositiveInt = 1
    """Env steps whose rewards a target sums before it bootstraps."""


class OffPolicyAlgorithm(Algorithm):
    """Algorithm that learns from transitions of any origin: a replay buffer that grows, or one from a file.

    A subclass implements `gradient_step`, and `sample_noise` if it needs random numbers there.
    """

    params_class = OffPolicyParams
    params: OffPolicyParams
    learns_from_rewards: ClassVar[bool] = True

    def __init__(self, policy: Policy, params: OffPolicyParams | None = None) -> None:
        super().__init__(policy, params)
        self.n_step = self.params.n_step

    @abstractmethod
    def gradient_step(self, batch: Transitions, noise: Any) -> UpdateResult:
        """Take one gradient step on transitions [B] with normalised observations and unscaled actions.

        `noise` is what `sample_noise` returned for this step.
        """

    def sample_noise(self, batch: Transitions) -> Any:
        """Return the random numbers of a gradient step, from `self.generator`; by default none.

        Several of them are a dataclass, to which a variant adds fields. A compiled step cannot sample by itself.
        """
        return None

    @property
    def begins_step(self) -> bool:
        """True if the next batch begins a step of the optimizers; False if its gradient is only added to one."""
        return self.accumulation is None or self.accumulation.begins

    def prepare(self, buffer: ReplayBuffer) -> None:
        """Take statistics from the data of offline training; a second call changes nothing more.

        Raises:
            ParamsError: the policy normalises rewards and has seen none: their scale is measured in envs.
        """
        normalizer = self.policy.reward_normalizer
        if self.learns_from_rewards and normalizer is not None and not normalizer.moments.count:
            rule, hint = "must be False before offline training", "Scale the rewards of the data."
            raise ParamsError(field_error_text(type(self.policy).__name__, "normalize_reward", rule, True, hint))
        if self.policy.obs_normalizer is not None:
            self.policy.obs_normalizer.reset()
            for obs in buffer.observations():
                self.policy.obs_normalizer.update(obs)

    def sample(self, buffer: ReplayBuffer, batch_size: int, num_batches: int | None = None) -> Transitions:
        """Return transitions for `update`: [B], or [K, B] for K gradient steps."""
        buffer.progress = self.plan.progress
        return buffer.sample(batch_size, n_step=self.n_step, gamma=self.gamma, num_batches=num_batches)

    def update(self, transitions: Transitions) -> UpdateResult:
        """Update from sampled transitions: [B] for one gradient step, [K, B] for K in order.

        Returns:
            metrics averaged over the gradient steps; `td_error` [B] or [K, B].

        Raises:
            NonFiniteError: a gradient was not finite; that step was not applied. See `check_faults`.
        """
        self._begin_update()
        transitions = transitions.to(self.device)
        is_single = transitions.reward.dim() == transitions.num_axes
        batches = [transitions] if is_single else [transitions[k] for k in range(len(transitions.reward))]
        steps = ((batch, self.sample_noise(batch)) for batch in batches)
        results = self._compiled_step.run(steps if self.accumulation is None else self.accumulation.grouped(steps))
        self._end_update(results)
        result = results[0] if is_single else UpdateResult.mean(results)
        if result.td_error is not None and self.plan.skips_steps:
            # A priority that is not finite would outweigh all others.
            result.td_error = result.td_error.nan_to_num(0.0, 0.0, 0.0)
        return result

    def _step(self, batch: Transitions, noise: Any) -> UpdateResult:
        obs, next_obs = self.policy.normalize(batch.obs), self.policy.normalize(batch.next_obs)
        action, reward = self.policy.unscale(batch.action), self.policy.scale_reward(batch.reward)
        if not (obs is batch.obs and next_obs is batch.next_obs and action is batch.action and reward is batch.reward):
            batch = dataclasses.replace(batch, obs=obs, next_obs=next_obs, action=action, reward=reward)
        return self.gradient_step(batch, noise)
