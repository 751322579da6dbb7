"""PPO (Schulman et al. 2017, Proximal Policy Optimization Algorithms): A2C with a clipped surrogate loss."""

import dataclasses
from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.policy_gradient.a2c import A2C, A2CParams, Losses, PolicyStep
from rltrainer.algorithms.recommended import OnPolicyFields, VectorEnv, look_at
from rltrainer.algorithms.symmetry import Symmetry
from rltrainer.functional.losses import clipped_surrogate, weighted_mean
from rltrainer.functional.trust_region import RATES
from rltrainer.nets import ActorCritic
from rltrainer.nets.distributions import Distribution, with_parameters
from rltrainer.schedules import ScheduledValue
from rltrainer.types import Rollout, UpdateResult
from rltrainer.updates.planned_step import autocast
from rltrainer.validation.field_rules import Flag, PositiveFloat, Scheduled, UnitFloat, instance_of


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
    desired_kl: PositiveFloat | None = None
    """Adapts the learning rate: before each gradient step the rate is divided by 1.5 if KL(old || new), the mean over
    the minibatch, is above twice this, and multiplied by 1.5 if KL is below half of this. The rate starts at `lr` and
    stays within [1e-5, 1e-2]. None takes `lr` as it is.

    The source is rsl_rl's `schedule="adaptive"`, whose `desired_kl` is 0.01. One thing differs: here the rate stays
    until a step of the update has changed the policy, as KL is 0 up to rounding before. rsl_rl adds 1e-5 to a ratio of
    standard deviations; so KL is above 0 there, and the first minibatch of each update raises the rate. `old` is the
    policy before the update. If gradients are accumulated, the last minibatch of a group decides. The minibatch at
    which `target_kl` ends an update changes the rate too."""
    symmetry: Annotated[Symmetry, instance_of(Symmetry, hint="Write rl.Symmetry(obs=..., action=...).")] | None = None
    """A symmetry of the env to learn by: mirrored steps, or a loss for policies that are not symmetric; or both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.desired_kl is not None and (callable(self.lr) or not RATES[0] <= self.lr <= RATES[1]):
            rule = f"must be a number in [{RATES[0]:g}, {RATES[1]:g}] with desired_kl, which changes it"
            self.raise_invalid("lr", rule, "Leave out desired_kl for a schedule.")


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
        if self.params.desired_kl is not None:
            self.optimizer.make_adaptive()
        if self.params.symmetry is not None:
            self.params.symmetry.check(policy)
            self.coefs |= {"mirror_loss": coef} if (coef := self.params.symmetry.loss_coef) > 0 else {}

    def check_num_steps(self, num_steps: float) -> None:
        """Raise a `ParamsError` if the learning rate is to adapt, and an update has no second gradient step."""
        if self.params.desired_kl is not None and num_steps <= 1:
            rule = "must be None with one gradient step an update, before which KL is 0: the rate would never change"
            self.params.raise_invalid("desired_kl", rule, "Take smaller minibatches, or more repetitions.")

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
            self.add_old(samples, lambda: self.policy.distribution(flat.obs, *([] if is_rounded else features)))
            if self.params.value_clip is not None and is_rounded:
                samples.value = self.policy.value(flat.obs).view_as(value)  # the center of the clip range
        if self.params.symmetry is not None:
            mirrored = self.params.symmetry.mirrored_obs(rollout.obs, self.policy.normalize)
            samples.extra = {**samples.extra, "mirrored_obs": mirrored}
        return samples

    def add_old(self, samples: OnPolicyBatch, distribute: Callable[[], Distribution]) -> None:
        """Add the old log-probabilities [T, N], and if KL is needed, the old distributions' parameters.

        `distribute` makes these distributions [T * N]; it is not called if the column `log_prob` is enough.
        """
        acted, needs_kl = samples.extra.get("log_prob"), self.params.desired_kl is not None
        if acted is None or needs_kl:
            old, shape = distribute(), samples.value.shape
            samples.log_prob = old.log_prob(samples.action.flatten(0, 1)).view(shape)
            if needs_kl:
                samples.extra = {**samples.extra, "old": tuple(x.view(*shape, *x.shape[1:]) for x in old.parameters)}
        if acted is not None:
            samples.log_prob = acted

    def losses(self, batch: OnPolicyBatch, distribution: Distribution, log_prob: Tensor, value: Tensor) -> Losses:
        """Average the losses of each step [B] with its mirror image's, and add the mirror loss."""
        losses, symmetry = super().losses(batch, distribution, log_prob, value), self.params.symmetry
        if symmetry is None:
            return losses
        mirrored = symmetry.mirrored(batch)
        there, value = self.evaluate(mirrored)
        if symmetry.augments:  # the mean over both halves of [2 B] is the mean of their means
            others = super().losses(mirrored, there, there.log_prob(mirrored.action), value)
            losses = {name: (x + others[name]) / 2 for name, x in losses.items()}
        return losses | ({"mirror_loss": symmetry.loss(distribution, there)} if "mirror_loss" in self.coefs else {})

    def policy_loss(self, log_prob: Tensor, batch: OnPolicyBatch) -> Tensor:
        """Return the clipped surrogate -min(r A, clip(r, 1 - eps, 1 + eps) A) per step [B] (eq. 7)."""
        # The minimum makes it a lower bound: clipping only removes what a larger ratio would gain, never what it loses.
        return clipped_surrogate(log_prob - batch.log_prob, self.advantage(batch), self.clip.value)

    @torch.no_grad()
    def before_step(self, distribution: Distribution, batch: OnPolicyBatch) -> None:
        """Change the learning rate by the exact KL(old || new) of a minibatch, if the params say so."""
        if self.params.desired_kl is not None:
            # In float64: after a few steps at 1e-5, KL is as small as float32 rounds it, above 0 or below.
            old, new = ([x.double() for x in each] for each in (batch.extra["old"], distribution.parameters))
            kl = with_parameters(distribution, old).kl(with_parameters(distribution, new))
            self.optimizer.adapt(weighted_mean(kl, batch.weight), self.params.desired_kl)

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
