"""Distillation: a student acts and learns a teacher's actions (DAgger; Ross et al. 2011, A Reduction to No-Regret)."""

import dataclasses
from typing import Any, Literal, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.algorithms.algorithm import AlgorithmParams
from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.offline.bc import Stochastic, require_stochastic
from rltrainer.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from rltrainer.algorithms.recommended import whole_envs
from rltrainer.algorithms.sequences import Sequences
from rltrainer.errors import ParamsError
from rltrainer.functional.losses import huber, weighted_mean
from rltrainer.nets import Policy, RecurrentActorCritic
from rltrainer.nets.distributions import Distribution
from rltrainer.nets.modes import EvalMode
from rltrainer.spaces import spaces_mismatch
from rltrainer.tree import map_tree
from rltrainer.types import Rollout, UpdateResult
from rltrainer.validation.field_rules import PositiveFloat, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DistillationParams(AlgorithmParams):
    """Hyperparameters of distillation; `gamma` must be left out."""

    lr: PositiveFloat | Scheduled = 1e-3
    loss: Literal["mse", "huber"] = "mse"
    """Loss of a Box, from the student's mean to the teacher's action: the squared error, or Huber's, which is linear
    beyond 1. Choices have the cross-entropy, and take none of the two names."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._must_be_left_out("gamma", why="Distillation uses no rewards.")


class Distillation(OnPolicyAlgorithm):
    """Supervised learning of a teacher's greedy actions in the states that the student itself comes to.

    Student and teacher read their own parts of one observation, which `NetParams.keys` name. The teacher and its
    normaliser do not change; files hold them beside the student. The student samples its actions while it learns, and
    its standard deviation stays as it is. As in rsl_rl, and unlike in the paper, the teacher never acts, and each
    rollout replaces the one before.

    Args:
        policy: the student, any stochastic policy (see `BC`), or a `RecurrentActorCritic`.
        teacher: any policy without memory, of the same spaces.
    """

    params_class = DistillationParams
    policy: Any  # a Policy that is Stochastic: no type says both
    params: DistillationParams
    trains_recurrent = True
    columns_if_stale = ()  # older weights may act: the teacher answers for any observation
    recommended = classmethod(whole_envs)

    def __init__(self, policy: Stochastic, teacher: Policy, params: DistillationParams | None = None) -> None:
        super().__init__(cast(Policy, policy), params)
        require_stochastic(self, policy)
        self._check_teacher(teacher)
        self.teacher = self._placed(teacher)
        self._eval_mode = EvalMode(nn.ModuleList([self.policy, teacher]))
        self.columns = ("state",) if self.policy.is_recurrent else ()
        memory = {"memory": self.policy.actor_memory} if self.policy.is_recurrent else {}
        self.optimizer = self.make_optimizer(self.params, actor=policy.actor, **memory)

    def _check_teacher(self, teacher: Any) -> None:
        name, student = type(self).__name__, self.policy
        if student.is_recurrent and not isinstance(student, RecurrentActorCritic):
            raise ParamsError.about(name, "policy", "must be a RecurrentActorCritic if it has a memory", student)
        if not isinstance(teacher, Policy) or teacher is student or teacher.is_recurrent:
            hint = "Load one with rl.load_policy(path)."
            raise ParamsError.about(name, "teacher", "must be another policy, without memory", teacher, hint)
        if text := spaces_mismatch(f"{name}.teacher", student, teacher):
            raise ParamsError(f"{text}. It must be the student's. Each sees its own NetParams.keys of an observation.")
        if not isinstance(student.action_space, spaces.Box) and self.params.loss != "mse":
            self.params.raise_invalid("loss", "must be left out where actions are choices")

    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Ask the teacher for its actions [T, N, ...], in the scale of the student's networks."""
        obs, shape = map_tree(lambda x: x.flatten(0, 1), rollout.obs), rollout.reward.shape
        action = self.policy.unscale(self.teacher.act(obs)).unflatten(0, shape)
        nothing, weight = torch.zeros_like(rollout.reward), rollout.valid.to(rollout.reward.dtype)
        columns = action, nothing, nothing, nothing, nothing, weight
        samples = OnPolicyBatch(self.policy.normalize(rollout.obs), *columns)
        return Sequences.of_samples(samples, rollout) if self.policy.is_recurrent else samples

    def gradient_step(self, batch: OnPolicyBatch) -> UpdateResult:
        """Take one step towards the teacher's actions."""
        policy, obs = self.policy, batch.obs
        given = (batch.memory(policy), policy.mask_of(obs)) if isinstance(batch, Sequences) else (obs,)
        loss = weighted_mean(self.imitation_loss(policy.distribution(*given), batch.action), batch.weight)
        self.optimizer.step(loss)
        return UpdateResult({"loss": loss.detach()})

    def imitation_loss(self, distribution: Distribution, action: Tensor) -> Tensor:
        """Return the loss of each step [B]: -log pi(action), or in a Box the mean of its numbers' errors."""
        if not isinstance(self.policy.action_space, spaces.Box):
            return -distribution.log_prob(action)
        error = distribution.mode() - action
        loss = (error.square() if self.params.loss == "mse" else huber(error)).mean(-1)
        # A standard deviation that no layer computes is not learned: a gradient of 0 tells the optimizer so.
        return loss + sum(0.0 * x.sum(-1) for x in distribution.parameters[1:])
