"""XQC (Palenicek et al. 2026, XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning)."""

import dataclasses
from typing import Any, ClassVar

from rltrainer.algorithms.actor_critic.categorical_sac import CategoricalSAC, CategoricalSACParams
from rltrainer.nets import CategoricalActorCritic, NetParams
from rltrainer.nets.blocks import BatchNorm
from rltrainer.schedules import LinearSchedule
from rltrainer.validation.field_rules import PositiveFloat, PositiveInt, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class XQCParams(CategoricalSACParams):
    """Hyperparameters of XQC."""

    lr: PositiveFloat | Scheduled = LinearSchedule(3e-4, 3e-5)
    critic_lr: PositiveFloat | Scheduled = LinearSchedule(3e-4, 3e-5)
    actor_update_interval: PositiveInt = 3


class XQC(CategoricalSAC):
    """SAC with batch norms, weights of unit length and categorical critics, which together keep gradients even.

    Its policy is `CategoricalActorCritic.for_envs(envs, net, critic_net=critic_net, ...)` with the `policy_options`;
    critics without a batch norm are a `ParamsError`.
    """

    # In the authors' code the actor's pass over a batch runs at each step, and only its update is left out: there its
    # running statistics follow three times faster.
    params_class = XQCParams
    params: XQCParams
    policy_options: ClassVar[dict[str, Any]] = {
        "net": NetParams(norm="unit_batch", hidden_sizes=(256, 256, 256, 256)),
        "critic_net": NetParams(norm="unit_batch", hidden_sizes=(512, 512, 512, 512)),
        "normalize_reward": True, "limit_returns": False,
    }  # fmt: skip
    uses_batch_stats = True
    critic_part = BatchNorm

    def __init__(self, policy: CategoricalActorCritic, params: XQCParams | None = None) -> None:
        super().__init__(policy, params)
