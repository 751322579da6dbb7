"""REINFORCE (Williams 1992, Simple Statistical Gradient-Following Algorithms for Connectionist RL)."""

import dataclasses

import torch

from rltrainer.algorithms.algorithm import AlgorithmParams
from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from rltrainer.algorithms.recommended import OnPolicyFields, VectorEnv, look_at
from rltrainer.functional.losses import weighted_mean
from rltrainer.functional.returns import backward_recurrence
from rltrainer.nets import Actor
from rltrainer.nets.normalizer import warn_once
from rltrainer.types import Rollout, UpdateResult
from rltrainer.validation.field_rules import Flag, PositiveFloat, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class REINFORCEParams(AlgorithmParams):
    """Hyperparameters of REINFORCE."""

    lr: PositiveFloat | Scheduled = 1e-3
    standardize_return: Flag = True
    """Shift and scale the returns of a rollout to mean 0 and standard deviation 1: a baseline without a critic."""


class REINFORCE(OnPolicyAlgorithm):
    """Policy gradient with Monte-Carlo returns: no critic, no bootstrapping.

    A return ends with its trajectory. The rest of an episode that a time limit truncates, or that continues after the
    rollout, counts nothing: collect whole episodes (`collection_step_num_episodes`). A critic of the policy is not
    trained.
    """

    policy_class = Actor
    params_class = REINFORCEParams
    policy: Actor
    params: REINFORCEParams
    standardized_by = "standardize_return"
    waits_in_update = True

    def __init__(self, policy: Actor, params: REINFORCEParams | None = None) -> None:
        super().__init__(policy, params)
        self.optimizer = self.make_optimizer(self.params, actor=policy.actor)

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OnPolicyFields:
        """Return fields of `OnPolicyTrainerParams` that train well: `**rl.REINFORCE.recommended(envs)`."""
        # One gradient step on two episodes of each env: after it, the data belongs to another policy.
        num_envs, _ = look_at(envs, cls)
        return OnPolicyFields(
            collection_step_num_env_steps=None, collection_step_num_episodes=2 * num_envs, batch_size=None,
            update_step_num_repetitions=1,
        )  # fmt: skip

    def check_batch_size(self, batch_size: int | None, num_rows: int | None, num_envs: int = 1) -> None:
        """Raise a `ParamsError` if returns are standardised and a rollout has one step."""
        super().check_batch_size(None, num_rows, num_envs)

    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Return G_t = r_t + gamma G_t+1 up to the end of each trajectory, as returns and as advantages."""
        self.check_batch_size(None, self._num_in_all(rollout.valid.count_nonzero()))
        weight = rollout.valid.to(rollout.reward.dtype)
        reward = self.policy.scale_reward(rollout.reward)
        ends = rollout.ends
        if bool((rollout.valid[-1] & ~ends[-1]).any()):
            text = "REINFORCE: episodes continue after the rollout, and their returns lack the later rewards. "
            hint = "Collect whole ones: collection_step_num_env_steps=None, collection_step_num_episodes=..."
            warn_once(text + hint)
        return_ = backward_recurrence(reward, self.gamma * (~ends).to(reward.dtype))
        advantage = return_
        if self.params.standardize_return:
            advantage = self.plan.ranks.standardized(return_.flatten(), weight.flatten()).view_as(return_)
        obs, nothing = self.policy.normalize(rollout.obs), torch.zeros_like(return_)
        return OnPolicyBatch(obs, rollout.action, advantage, return_, nothing, nothing, weight, rollout.extra)

    def gradient_step(self, batch: OnPolicyBatch) -> UpdateResult:
        """Take one step on -G log pi(a|s)."""
        distribution = self.policy.distribution(batch.obs)
        # A baseline that does not depend on the action leaves the expected gradient as it is, and lowers its variance.
        loss = -weighted_mean(batch.advantage * distribution.log_prob(batch.action), batch.weight)
        self.optimizer.step(loss)
        entropy = weighted_mean(distribution.entropy(), batch.weight)
        return UpdateResult({"loss": loss.detach(), "entropy": entropy.detach()})
