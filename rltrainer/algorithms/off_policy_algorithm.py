"""The skeleton of an off-policy update: sampled transitions in, one gradient step for each batch of them."""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar

from rltrainer.algorithms.algorithm import Algorithm
from rltrainer.algorithms.algorithm_params import AlgorithmParams
from rltrainer.data import ReplayBuffer
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets.policy import Policy
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OffPolicyParams(AlgorithmParams):
    """Hyperparameters that all off-policy algorithms have."""

    n_step: PositiveInt = 1
    """Env steps that a target looks ahead before it bootstraps."""


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from transitions of any origin: a replay buffer that grows, or one from a file.

    A subclass implements `gradient_step`, and `sample_noise` if it needs random numbers there.

    Args:
        policy: the policy to train.
        params: the hyperparameters; None takes the defaults.
    """

    params_class = OffPolicyParams
    params: OffPolicyParams
    learns_from_rewards: ClassVar[bool] = True

    def __init__(self, policy: Policy, params: OffPolicyParams | None = None) -> None:
        super().__init__(policy, params)
        self.n_step = self.params.n_step

    @abstractmethod
    def gradient_step(self, batch: Transitions, noise: Any) -> UpdateResult:
        """Take one gradient step.

        Args:
            batch: transitions [B] with normalised observations and actions in the scale of the networks.
            noise: what `sample_noise` returned for this step.
        """

    def sample_noise(self, batch: Transitions) -> Any:
        """Return what `gradient_step` needs from outside: random numbers of `self.generator`; by default nothing.

        What several numbers make up is a dataclass, to which the class of a variant adds fields.
        """
        return None

    @property
    def begins_step(self) -> bool:
        """Return whether the batch that `sample_noise` is given begins a step of the optimizers.

        Each does; where gradients are accumulated, the first of the batches that make up a step.
        """
        return self.accumulation is None or self.accumulation.begins

    def prepare(self, buffer: ReplayBuffer) -> None:
        """Take statistics from the data that offline training will use; a second call changes nothing more.

        Raises:
            ParamsError: the policy normalises rewards and has seen none: what returns are is learned in envs.
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
        """Return what `update` learns from: [B], or [K, B] for K gradient steps."""
        buffer.drawing.progress = self.plan.progress
        return buffer.sample(batch_size, n_step=self.n_step, gamma=self.gamma, num_batches=num_batches)

    def update(self, transitions: Transitions) -> UpdateResult:
        """Update from sampled transitions.

        Args:
            transitions: [B] for one gradient step, [K, B] for K in order.

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
            # Of a transition that is drawn by it, an error that is not finite would be the only one that counts.
            result.td_error = result.td_error.nan_to_num(0.0, 0.0, 0.0)
        return result

    def _step(self, batch: Transitions, noise: Any) -> UpdateResult:
        obs, next_obs = self.policy.normalize(batch.obs), self.policy.normalize(batch.next_obs)
        action, reward = self.policy.unscale(batch.action), self.policy.scale_reward(batch.reward)
        if not (obs is batch.obs and next_obs is batch.next_obs and action is batch.action and reward is batch.reward):
            batch = dataclasses.replace(batch, obs=obs, next_obs=next_obs, action=action, reward=reward)
        return self.gradient_step(batch, noise)
