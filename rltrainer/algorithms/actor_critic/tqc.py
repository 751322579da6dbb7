"""TQC (Kuznetsov et al. 2020, Controlling Overestimation Bias with Truncated Mixture of ... Quantile Critics)."""

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from rltrainer.algorithms.actor_critic.sac import SAC, SACNoise, SACParams
from rltrainer.errors import ParamsError
from rltrainer.functional.losses import midpoints, quantile_huber
from rltrainer.nets import SquashedActorCritic
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import NonNegativeInt, PositiveFloat, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TQCParams(SACParams):
    """Hyperparameters of TQC."""

    critic_lr: PositiveFloat | Scheduled = 3e-4
    num_dropped: NonNegativeInt = 2
    """Number of quantiles per critic that a target drops: the highest of all critics' together. The paper has 2, but 5
    for Hopper and 0 for HalfCheetah."""


class TQC(SAC):
    """SAC with critics that are distributions of the return; targets leave out their upper ends.

    Its policy is `SquashedActorCritic.for_envs(envs, num_outputs=25)`, critics of 25 quantiles: two as in
    Stable-Baselines3 (the paper has five). More than `num_dropped` quantiles are needed.
    """

    params_class = TQCParams
    params: TQCParams
    policy_options: ClassVar[dict[str, Any]] = {"num_outputs": 25}

    def __init__(self, policy: SquashedActorCritic, params: TQCParams | None = None) -> None:
        super().__init__(policy, params)
        self.num_kept = (policy.num_outputs - self.params.num_dropped) * policy.num_critics

    def check_critics(self, policy: SquashedActorCritic) -> None:
        """Raise a `ParamsError` unless the critics have more quantiles than are dropped."""
        num_dropped = self.params.num_dropped
        if policy.num_outputs <= max(num_dropped, 1):
            least = "1, quantiles" if policy.num_outputs == 1 else f"num_dropped ({num_dropped})"
            raise ParamsError.about("TQC.policy", "num_outputs", f"must be more than {least}", policy.num_outputs)

    def critic_loss(self, batch: Transitions, target: Tensor, noise: SACNoise) -> tuple[Tensor, Tensor]:
        """Return the quantile Huber loss, a mean over critics, quantiles and target [M, B] (section 4)."""
        quantiles: Tensor = self.critic(batch.obs, batch.action)
        num_quantiles = quantiles.shape[-1]
        loss = quantile_huber(quantiles, midpoints(quantiles), target.t()) / num_quantiles
        td_error = target.mean(0) - quantiles.detach().mean(-1)
        return (loss * batch.weight).mean(), td_error.abs().mean(0)

    def target_value(self, q: Tensor, noise: SACNoise) -> Tensor:
        """Return the lowest quantiles [M, B] of all critics' together [E, B, K], in any order (section 4)."""
        # Unlike the minimum of two critics, the number of dropped quantiles tunes how far targets are held down.
        return q.transpose(0, 1).flatten(1).topk(self.num_kept, largest=False, sorted=False).values.t()

    def actor_value(self, q: Tensor) -> Tensor:
        """Return the mean of all quantiles [B], the upper ones too."""
        return q.mean((0, 2))
