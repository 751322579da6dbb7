"""SimbaV2 (Lee et al. 2025, Hyperspherical Normalization for Scalable Deep Reinforcement Learning)."""

import dataclasses
from typing import Any, ClassVar

from rltrainer.algorithms.actor_critic.categorical_sac import CategoricalSAC, CategoricalSACParams
from rltrainer.nets import CategoricalActorCritic, NetParams
from rltrainer.nets.blocks import LerpBlock
from rltrainer.schedules import LinearSchedule
from rltrainer.validation.field_rules import PositiveFloat, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SimbaV2Params(CategoricalSACParams):
    """Hyperparameters of SimbaV2."""

    lr: PositiveFloat | Scheduled = LinearSchedule(1e-4, 5e-5)
    critic_lr: PositiveFloat | Scheduled = LinearSchedule(1e-4, 5e-5)


class SimbaV2(CategoricalSAC):
    """SAC with features and weights on the unit sphere, and categorical critics of scaled rewards.

    Its policy is `CategoricalActorCritic.for_envs(envs, net, critic_net=critic_net, ...)` with the `policy_options`;
    critics of other layers are a `ParamsError`. The paper has one critic, `num_critics=1`, in DeepMind's suite.
    """

    # The authors' code trains actor and temperature before the critics; here it is the other way round, as in SAC.
    params_class = SimbaV2Params
    params: SimbaV2Params
    policy_options: ClassVar[dict[str, Any]] = {
        "net": NetParams(norm="unit_lerp", hidden_sizes=(128,)),
        "critic_net": NetParams(norm="unit_lerp", hidden_sizes=(512, 512)),
        "smooth_log_std": True, "normalize_obs": True, "normalize_reward": True,
    }  # fmt: skip
    critic_part = LerpBlock

    def __init__(self, policy: CategoricalActorCritic, params: SimbaV2Params | None = None) -> None:
        super().__init__(policy, params)
