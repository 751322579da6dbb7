"""FlashSAC (Kim et al. 2026, arXiv 2604.04539)."""

import dataclasses
import math
from typing import Any, ClassVar

from torch import Tensor

from rltrainer.algorithms.actor_critic.categorical_sac import CategoricalSAC, CategoricalSACParams
from rltrainer.algorithms.actor_critic.sac import SACNoise, joined_obs
from rltrainer.algorithms.recommended import OffPolicyFields, VectorEnv, look_at
from rltrainer.nets import CategoricalActorCritic, NetParams
from rltrainer.nets.blocks import ResidualBlock
from rltrainer.nets.distributions import SquashedGaussian
from rltrainer.schedules import CosineSchedule
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import PositiveFloat, PositiveInt, Scheduled, UnitFloat

RATE = CosineSchedule(3e-4, 1.5e-4)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FlashSACParams(CategoricalSACParams):
    """Hyperparameters of FlashSAC; a target entropy of None is a normal's with a standard deviation of 0.15."""

    gamma: UnitFloat = 0.99
    lr: PositiveFloat | Scheduled = RATE
    critic_lr: PositiveFloat | Scheduled = RATE
    tau: UnitFloat = 0.01
    actor_update_interval: PositiveInt = 2


class FlashSAC(CategoricalSAC):
    """SAC for robots: categorical critics of residual blocks with batch norm and unit rows, and an actor like them.

    ```
    every 2nd step   actor: batch statistics of [s; s'], loss at s; then the temperature
    each step        target: a' by the new actor, target critics with batch statistics of [(s, a); (s', a')]
                     critics: the same batch, mean of their cross-entropies
    ```

    Its policy is `CategoricalActorCritic.for_envs(envs, **FlashSAC.policy_options)`, which explores with each normal
    number for several steps (`noise_repeat`), and scales rewards so that returns fit the atoms.
    """

    # The authors' code has one number of repetitions for all envs, takes gamma^n as discount where a time limit cut
    # n steps, and trains the actor at the 1st, 3rd ... step, not the 2nd, 4th ...
    params_class = FlashSACParams
    params: FlashSACParams
    uses_batch_stats = True
    target_entropy_per_dimension = 0.5 * math.log(2 * math.pi * math.e * 0.15**2)
    policy_options: ClassVar[dict[str, Any]] = {
        "net": NetParams(norm="unit_residual", hidden_sizes=(128, 128)),
        "critic_net": NetParams(norm="unit_residual", hidden_sizes=(256, 256)),
        "smooth_log_std": True, "noise_repeat": 16, "normalize_reward": True,
    }  # fmt: skip
    critic_part = ResidualBlock

    def __init__(self, policy: CategoricalActorCritic, params: FlashSACParams | None = None) -> None:
        super().__init__(policy, params)

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OffPolicyFields:
        """Return fields of `OffPolicyTrainerParams` that train well: `**rl.FlashSAC.recommended(envs)`."""
        # The authors' settings of one env (run_mujoco.sh), and of 1,024 on a GPU (run_isaaclab.sh).
        num_envs, _ = look_at(envs, cls)
        batch_size, rate, warmup = (512, 1.0, 10_000) if num_envs < 1024 else (2048, 2 / 1024, 100_000)
        return OffPolicyFields(
            collection_step_num_env_steps=num_envs, batch_size=batch_size,
            update_step_num_gradient_steps_per_sample=rate, warmup_num_env_steps=warmup,
        )  # fmt: skip

    def gradient_step(self, batch: Transitions, noise: SACNoise) -> UpdateResult:
        """Train actor and temperature if it is their turn, then the critics by the new actor."""
        metrics = self.train_actor(batch, noise) if noise.is_actors_turn else {}
        of_critics, error = self.train_critics(batch, noise)
        self.target_critic.update(self.critic)
        return UpdateResult(of_critics | metrics, td_error=error)

    def actor_distribution(self, batch: Transitions) -> SquashedGaussian:
        """Return the distribution at the observations, with statistics of the next ones too."""
        both, num_rows = self.policy.distribution(joined_obs(batch), True), len(batch.reward)
        return SquashedGaussian(both.mean[:num_rows], both.log_std[:num_rows])

    def critic_step(self, batch: Transitions, noise: SACNoise) -> tuple[Tensor, Tensor]:
        """Return the cross-entropies of target and prediction, as a mean over critics, and their mean [B]."""
        loss, error = super().critic_step(batch, noise)
        return loss / self.policy.num_critics, error
