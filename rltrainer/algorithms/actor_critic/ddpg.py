"""DDPG (Lillicrap et al. 2016, Continuous control with deep reinforcement learning)."""

import dataclasses

from rltrainer.algorithms.actor_critic.td3 import TD3, TD3Params
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets import DeterministicActorCritic
from rltrainer.validation.field_rules import NonNegativeFloat, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DDPGParams(TD3Params):
    """Hyperparameters of DDPG: TD3's without `target_noise`, `target_noise_clip` and `actor_update_interval`."""

    target_noise: NonNegativeFloat = 0.0
    actor_update_interval: PositiveInt = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        added = ("target_noise", "target_noise_clip", "actor_update_interval")
        self._must_be_left_out(*added, why="It is what TD3 adds to DDPG.")


class DDPG(TD3):
    """Deterministic policy gradient with one critic: TD3 without its three additions.

    Its policy is `DeterministicActorCritic.for_envs(envs, num_critics=1)`; several critics are a `ParamsError`.
    """

    params_class = DDPGParams
    params: DDPGParams

    def __init__(self, policy: DeterministicActorCritic, params: DDPGParams | None = None) -> None:
        super().__init__(policy, params)
        if policy.num_critics != 1:
            raise ParamsError(field_error_text("DDPG.policy", "num_critics", "must be 1", policy.num_critics))
