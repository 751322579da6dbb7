"""A2C: advantage actor-critic (Mnih et al. 2016, Asynchronous Methods for Deep RL; the synchronous variant)."""

import dataclasses
import functools
import itertools
import operator
from typing import ClassVar, cast

import torch
from torch import Tensor

from rltrainer.algorithms.algorithm import AlgorithmParams
from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from rltrainer.algorithms.recommended import OnPolicyFields, VectorEnv, look_at
from rltrainer.functional.losses import explained_variance, standardize, weighted_mean
from rltrainer.functional.moments import standardized
from rltrainer.nets import ActorCritic
from rltrainer.nets.distributions import Distribution
from rltrainer.schedules import ScheduledValue
from rltrainer.types import Rollout, UpdateResult
from rltrainer.validation.field_rules import Flag, NonNegativeFloat, PositiveFloat, Scheduled, UnitFloat

Losses = dict[str, Tensor]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class A2CParams(AlgorithmParams):
    """Hyperparameters of A2C. Its references use RMSprop (`optimizer=rl.rms_prop`), the default here is Adam."""

    lr: PositiveFloat | Scheduled = 7e-4
    gae_lambda: UnitFloat = 1.0
    """Lambda of generalised advantage estimation: 0 gives one-step advantages, 1 Monte-Carlo ones."""
    value_coef: NonNegativeFloat = 0.5
    """Weight of the critic's loss."""
    entropy_coef: NonNegativeFloat | Scheduled = 0.0
    """Weight of the entropy bonus, or a schedule of it over progress."""
    normalize_advantage: Flag = False
    """Standardise the advantages of each minibatch."""
    max_grad_norm: PositiveFloat | None = 0.5
    adam_eps: PositiveFloat = 1e-5


@dataclasses.dataclass(slots=True, kw_only=True)
class PolicyStep(UpdateResult):
    """Result of a gradient step, with the arguments [B] of `policy_change`; it shares no memory with the batch."""

    log_ratio: Tensor  # log-probability of each action minus its value under the collecting policy
    weight: Tensor
    share: Tensor | None = None  # what its batch counts in the mean over ranks; None is 1
    is_taken: Tensor | None = None  # False if the update step had ended before; None if it never ends early


class A2C(OnPolicyAlgorithm):
    """Policy gradient with a learned value as baseline; actor and critic share one optimizer."""

    has_policy_change: ClassVar[bool] = False  # whether `policy_change` returns metrics
    recommended_num_rows: ClassVar[int] = 5  # the paper's t_max; Stable-Baselines3
    policy_class = ActorCritic
    params_class = A2CParams
    policy: ActorCritic
    params: A2CParams
    standardized_by = "normalize_advantage"

    def __init__(self, policy: ActorCritic, params: A2CParams | None = None) -> None:
        super().__init__(policy, params)
        self.optimizer = self.make_optimizer(self.params, policy=policy)
        self.entropy_coef = ScheduledValue(self.params.entropy_coef, self.device)
        self.coefs = {"value_loss": self.params.value_coef}  # of `losses` beside the policy's

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OnPolicyFields:
        """Return fields of `OnPolicyTrainerParams` that train well: `**rl.A2C.recommended(envs)`."""
        # Steps of each env, used once and at once: a second step would follow the gradient of another policy.
        num_steps = cls.recommended_num_rows * look_at(envs, cls)[0]
        return {"collection_step_num_env_steps": num_steps, "batch_size": None, "update_step_num_repetitions": 1}

    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Estimate advantages and returns with one pass of the critic over all observations of the rollout."""
        value, next_value, _ = self._values(rollout)
        return self.samples(rollout, value, next_value)

    def samples(self, rollout: Rollout, value: Tensor, next_value: Tensor) -> OnPolicyBatch:
        """Return a batch with advantages and returns, given V(obs) and V(next_obs) [T, N]."""
        return self.with_advantages(rollout, value, next_value, self.params.gae_lambda)

    def gradient_step(self, batch: OnPolicyBatch) -> UpdateResult:
        """Take one step on policy loss + value_coef * value loss - entropy_coef * entropy."""
        distribution, value = self.evaluate(batch)
        log_prob, weight = distribution.log_prob(batch.action), batch.weight
        total = weight.sum()
        of_steps = self.losses(batch, distribution, log_prob, value)
        losses = {name: weighted_mean(x, weight, total) for name, x in of_steps.items()}
        entropy = weighted_mean(distribution.entropy(), weight, total)
        parts = [losses["policy_loss"], *(self.coefs[name] * losses[name] for name in self.coefs)]
        if self.params.entropy_coef != 0:  # else the backward pass leaves the entropy out
            parts.append(-self.entropy_coef.value * entropy)
        loss = functools.reduce(operator.add, parts)
        losses = {"loss": loss, **losses, "entropy": entropy}
        metrics: dict[str, Tensor | float] = {name: value.detach() for name, value in losses.items()}
        self.before_step(distribution, batch)
        result = self.step_result(metrics, log_prob.detach(), batch)
        self.optimizer.step(loss, parts)
        return result

    def losses(self, batch: OnPolicyBatch, distribution: Distribution, log_prob: Tensor, value: Tensor) -> Losses:
        """Return the losses of each step [B] by name, given the result of `evaluate` and log pi(a|s) [B]."""
        return {"policy_loss": self.policy_loss(log_prob, batch), "value_loss": self.value_loss(value, batch)}

    def evaluate(self, batch: OnPolicyBatch) -> tuple[Distribution, Tensor]:
        """Return the distributions over actions and the values [B] of a minibatch."""
        return self.policy.evaluate(batch.obs)

    def before_step(self, distribution: Distribution, batch: OnPolicyBatch) -> None:
        """Use the distributions of a minibatch before its gradient step."""

    def step_result(self, metrics: dict[str, Tensor | float], log_prob: Tensor, batch: OnPolicyBatch) -> UpdateResult:
        """Return the result of the coming gradient step, a `PolicyStep` for `policy_change`, given log pi(a|s) [B]."""
        if not self.has_policy_change:
            return UpdateResult(metrics)
        log_ratio, weight = log_prob - batch.log_prob, batch.weight.clone()
        return PolicyStep(metrics, log_ratio=log_ratio, weight=weight, share=self.reduce.share)

    def policy_change(self, log_ratio: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Return metrics [K] of the distance from the collecting policy, given fields [K, B] of `PolicyStep`."""
        return {}

    def _measure(self, results: list[UpdateResult]) -> None:
        """Measure the policy's change at all steps at once: step by step, a dozen small operations take 30 us."""
        places = [k for k, result in enumerate(results) if isinstance(result, PolicyStep)]
        for _, group in itertools.groupby(places, key=lambda k: cast(PolicyStep, results[k]).weight.shape):
            steps = [(k, cast(PolicyStep, results[k])) for k in group]
            log_ratio = torch.stack([step.log_ratio for _, step in steps])
            change = self.policy_change(log_ratio, torch.stack([step.weight for _, step in steps]))
            for (k, step), *values in zip(steps, *(value.unbind() for value in change.values()), strict=True):
                values = values if step.share is None else [value * step.share for value in values]
                results[k] = UpdateResult(step.metrics | dict(zip(change, values, strict=True)))

    def before_batches(self, samples: OnPolicyBatch) -> dict[str, Tensor]:
        """Return the share [] of the returns' variance that the critic explained before this update."""
        value, return_, weight = (x.flatten() for x in (samples.value, samples.return_, samples.weight))
        if self.num_ranks > 1:
            unexplained, total = self.plan.ranks.moments(torch.stack([return_ - value, return_]), weight)[2]
            return {"explained_variance": (1 - unexplained / total).masked_fill(total == 0, 0.0)}
        return {"explained_variance": explained_variance(value, return_, weight)}

    def policy_loss(self, log_prob: Tensor, batch: OnPolicyBatch) -> Tensor:
        """Return -A log pi(a|s) per step [B] (Mnih et al. 2016, algorithm S3)."""
        # No gradient flows through A: it is a number of the rollout, not of this minibatch's critic.
        return -self.advantage(batch) * log_prob

    def value_loss(self, value: Tensor, batch: OnPolicyBatch) -> Tensor:
        """Return the squared error of the critic per step [B]."""
        return (batch.return_ - value).square()

    def advantage(self, batch: OnPolicyBatch) -> Tensor:
        """Return the advantages [B], standardised if the params say so."""
        is_due = self.params.normalize_advantage and self.num_ranks == 1  # with several, `in_all` has done so
        return standardize(batch.advantage, batch.weight) if is_due else batch.advantage

    def in_all(self, batch: OnPolicyBatch, of_all: Tensor) -> OnPolicyBatch:
        """Return a minibatch with advantages [B] standardised by the moments [3] of all ranks' minibatches."""
        if not self.params.normalize_advantage:
            return batch
        return dataclasses.replace(batch, advantage=standardized(batch.advantage, of_all))

    def _values(self, rollout: Rollout) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return V(obs) and V(next_obs) [T, N], and the features of obs if actor and critic share them."""
        # Each observation is valued once: the successor of a step is the next row, the last, or an episode's final one.
        everything = self.policy.normalize(rollout.all_obs())
        features = self.policy.shared_features(everything)
        value, next_value = rollout.by_step(self.policy.value(everything, *features))
        return value, next_value, [x[: value.numel()] for x in features]
