"""IMPALA (Espeholt et al. 2018, Importance Weighted Actor-Learner Architectures): A2C with V-trace, for stale data."""

import dataclasses

from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.policy_gradient.a2c import A2C, A2CParams
from rltrainer.functional.losses import weighted_mean
from rltrainer.functional.returns import vtrace
from rltrainer.nets import ActorCritic
from rltrainer.tree import map_tree
from rltrainer.types import Rollout
from rltrainer.validation.field_rules import NonNegativeFloat, PositiveFloat, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class IMPALAParams(A2CParams):
    """Hyperparameters of IMPALA as in the paper on Atari, with two exceptions.

    The default optimizer is Adam, as in A2C (the paper has `optimizer=rl.rms_prop`), and losses are means: the paper
    sums them over a batch and clips gradients at norm 40. `c_bar` above `rho_bar` is a `ParamsError`: the paper proves
    nothing for it.
    """

    lr: PositiveFloat | Scheduled = 6e-4
    entropy_coef: NonNegativeFloat | Scheduled = 0.01
    rho_bar: PositiveFloat = 1.0
    """Upper bound of the probability ratios that weigh errors and gradients."""
    c_bar: PositiveFloat = 1.0
    """Upper bound of the probability ratios along a trajectory; at most `rho_bar`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c_bar > self.rho_bar:
            self.raise_invalid("c_bar", f"must be at most rho_bar, {self.rho_bar:g}")


class IMPALA(A2C):
    """A2C that learns from data of older policies, as workers collect it while the learner updates.

    The column `log_prob` holds the log-probability of each action when it was chosen; ratios to the current policy's
    correct advantages and returns. They are computed before the first gradient step of an update, so take the whole
    rollout once, as the paper does. Data of the current policy is used as in A2C.
    """

    params_class = IMPALAParams
    params: IMPALAParams
    columns = ("log_prob",)
    columns_if_stale = ()
    has_policy_change = True
    recommended_num_rows = 20  # the paper's length of a trajectory on Atari

    def __init__(self, policy: ActorCritic, params: IMPALAParams | None = None) -> None:
        super().__init__(policy, params)

    def process(self, rollout: Rollout) -> OnPolicyBatch:
        """Estimate advantages and returns of the current policy by V-trace (eq. 1)."""
        value, next_value, features = self._values(rollout)
        obs, acted = self.policy.normalize(rollout.obs), rollout.extra["log_prob"]
        distribution = self.policy.distribution(map_tree(lambda x: x.flatten(0, 1), obs), *features)
        log_prob = distribution.log_prob(rollout.action.flatten(0, 1)).view_as(value)
        reward = self.policy.scale_reward(rollout.reward)
        discount = self.gamma * (~rollout.terminated).to(reward.dtype)
        # rho = pi(a|s) / mu(a|s): clipped, it bounds the variance, and V-trace then values a policy between mu and pi.
        ratio, params = (log_prob - acted).exp(), self.params
        bars = params.gae_lambda, params.rho_bar, params.c_bar
        advantage, return_ = vtrace(reward, value, next_value, discount, rollout.ends, ratio, *bars)
        weight = rollout.valid.to(value.dtype)
        return OnPolicyBatch(obs, rollout.action, advantage, return_, value, acted, weight, rollout.extra)

    def policy_change(self, log_ratio: Tensor, weight: Tensor) -> dict[str, Tensor]:
        """Return `rho` [K], the mean of the clipped ratios [K, B]: 1 for data of the current policy."""
        return {"rho": weighted_mean(log_ratio.exp().clamp(max=self.params.rho_bar), weight, weight.sum(-1))}
