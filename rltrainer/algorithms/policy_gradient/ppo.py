"""PPO (Schulman et al. 2017, Proximal Policy Optimization Algorithms): A2C with a clipped surrogate loss."""

import dataclasses

import torch
from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.policy_gradient.a2c import A2C, A2CParams, PolicyStep
from rltrainer.algorithms.recommended import OnPolicyFields, VectorEnv, look_at
from rltrainer.functional.losses import clipped_surrogate, weighted_mean
from rltrainer.nets import ActorCritic
from rltrainer.schedules import ScheduledValue
from rltrainer.types import Rollout, UpdateResult
from rltrainer.updates.planned_step import autocast
from rltrainer.validation.field_rules import Flag, PositiveFloat, Scheduled, UnitFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PPOParams(A2CParams):
    """Hyperparameters of PPO."""

    lr: PositiveFloat | Scheduled = 3e-4
    gae_lambda: UnitFloat = 0.95
    normalize_advantage: Flag = True
    clip: PositiveFloat | Scheduled = 0.2
    """The probability ratio is clipped to [1 - clip, 1 + clip]."""
    value_clip: PositiveFloat | None = None
    """Distance of the critic from its old value above which its loss is clipped; None does not clip."""
    target_kl: PositiveFloat | None = None
    """An update step ends before the first minibatch whose `approx_kl` is above 1.5 times this, as in
    Stable-Baselines3; None takes all."""


class PPO(A2C):
    """A2C whose policy loss is clipped, so that one rollout can be used several times.

    Ratios correct a rollout of older weights if it has the column `log_prob`, with the probabilities of that time.
    """

    params_class = PPOParams
    params: PPOParams
    columns_if_stale = ("log_prob",)
    has_policy_change = True

    def __init__(self, policy: ActorCritic, params: PPOParams | None = None) -> None:
        super().__init__(policy, params)
        self.clip = ScheduledValue(self.params.clip, self.device)
        self.optimizer.can_stop = self.params.target_kl is not None

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OnPolicyFields:
        """Return fields of `OnPolicyTrainerParams` that train well: `**rl.PPO.recommended(envs)`."""
        # Vectors: 2048 env steps, minibatches of 64, 10 repetitions (the paper's table 3, and Stable-Baselines3 in one
        # env); at least 32 steps of each env, in 32 minibatches as there. Images: 128 steps of each env in 4
        # minibatches, 4 repetitions (RL Zoo's Atari; the paper's table 5 has 3).
        num_envs, has_images = look_at(envs, cls)
        num_steps = 128 * num_envs if has_images else max(2048, 32 * num_envs)
        return OnPolicyFields(
            collection_step_num_env_steps=num_steps, batch_size=num_steps // (4 if has_images else 32),
            update_step_num_repetitions=4 if has_images else 10,
        )  # fmt: skip

    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Add the log-probability under the policy that collected: the column `log_prob`, or the current policy's."""
        value, next_value, features = self._values(rollout)
        samples = self.samples(rollout, value, next_value)
        is_rounded = self.plan.precision.amp is not None  # in the steps, and not in the features
        # In the number formats of the gradient steps: the ratio of probabilities is exactly 1 before the first of them.
        with autocast(self.device, self.plan.precision.amp):
            flat = samples.flatten()
            if "log_prob" in rollout.extra:
                samples.log_prob = rollout.extra["log_prob"]
            else:
                distribution = self.policy.distribution(flat.obs, *([] if is_rounded else features))
                samples.log_prob = distribution.log_prob(flat.action).view_as(value)
            if self.params.value_clip is not None and is_rounded:
                samples.value = self.policy.value(flat.obs).view_as(value)  # the center of the clip range
        return samples

    def policy_loss(self, log_prob: Tensor, batch: OnPolicyBatch) -> Tensor:
        """Return the clipped surrogate -min(r A, clip(r, 1 - eps, 1 + eps) A) per step [B] (eq. 7)."""
        # The minimum makes it a lower bound: clipping only removes what a larger ratio would gain, never what it loses.
        return clipped_surrogate(log_prob - batch.log_prob, self.advantage(batch), self.clip.value)

    def step_result(self, metrics: dict[str, Tensor | float], log_prob: Tensor, batch: OnPolicyBatch) -> UpdateResult:
        """Return a `PolicyStep` for log pi(a|s) [B]; stop the optimizer if the policy has changed too much."""
        step = super().step_result(metrics, log_prob, batch)
        if self.params.target_kl is not None and isinstance(step, PolicyStep):
            approx_kl = weighted_mean(divergence(step.log_ratio), batch.weight)
            self.optimizer.stop_above(1.5 * self.params.target_kl, approx_kl)
            step.is_taken = ~self.optimizer.is_stopped
        return step

    def policy_change(self, log_ratio: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Return `approx_kl` [K] and `clip_fraction` [K], the share of steps with |r - 1| > clip."""
        total = weight.sum(-1)
        is_clipped = (log_ratio.expm1().abs() > self.clip.value).to(log_ratio.dtype)
        kl = weighted_mean(divergence(log_ratio), weight, total)
        return {"approx_kl": kl, "clip_fraction": weighted_mean(is_clipped, weight, total)}

    def continues(self) -> bool:
        """Return whether the last policy was within `target_kl`; waits for the device."""
        return self.params.target_kl is None or not self.optimizer.is_stopped

    def _measure(self, results: list[UpdateResult]) -> None:
        """First drop the results of steps that were not taken: the last one, and its companions in a CUDA graph."""
        taken = [step.is_taken for step in results if isinstance(step, PolicyStep) and step.is_taken is not None]
        if taken:
            del results[int(torch.stack(taken).sum()) :]
        super()._measure(results)

    def value_loss(self, value: Tensor, batch: OnPolicyBatch) -> Tensor:
        """Return the squared error per step [B], the larger of the plain and the clipped error."""
        plain = super().value_loss(value, batch)
        if self.params.value_clip is None:
            return plain
        clipped = batch.value + (value - batch.value).clamp(-self.params.value_clip, self.params.value_clip)
        return plain.maximum(super().value_loss(clipped, batch))


def divergence(log_ratio: Tensor) -> Tensor:
    """Return the terms [...] of KL(old || new) by Schulman's estimator k3: (r - 1) - log r."""
    # Schulman 2020, Approximating KL Divergence, http://joschu.net/blog/kl-approx.html.
    # expm1, not exp() - 1: rounding would leave nothing of it while the policy has hardly moved.
    return log_ratio.expm1() - log_ratio
