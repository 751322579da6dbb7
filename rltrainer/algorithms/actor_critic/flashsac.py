"""FlashSAC (Kim et al. 2026, arXiv 2604.04539)."""

import dataclasses
import math
from typing import Any, ClassVar

from torch import Tensor

from rltrainer.algorithms.actor_critic.categorical_sac import CategoricalSAC
from rltrainer.algorithms.actor_critic.sac import SACNoise, SACParams, joined_obs
from rltrainer.algorithms.recommended import OffPolicyFields, VectorEnv
from rltrainer.nets import CategoricalActorCritic, NetParams
from rltrainer.nets.distributions import SquashedGaussian
from rltrainer.schedules import CosineSchedule
from rltrainer.spaces import leaf_shape
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import PositiveFloat, PositiveInt, Scheduled, UnitFloat

RATE = CosineSchedule(3e-4, 1.5e-4)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FlashSACParams(SACParams):
    """Hyperparameters of FlashSAC: SAC's, with other defaults.

    `target_entropy` of None is the entropy of a normal with a standard deviation of 0.15 in each dimension.
    """

    lr: PositiveFloat | Scheduled = RATE
    critic_lr: PositiveFloat | Scheduled = RATE
    tau: UnitFloat = 0.01
    temperature: PositiveFloat = 0.01
    actor_update_interval: PositiveInt = 2


class FlashSAC(CategoricalSAC):
    """SAC for robots: categorical critics of residual blocks with batch norm and unit rows, and an actor like them.

    ```
    actor's turn     batch statistics of [s; s'], loss at s; then the temperature
    target           a' by the new actor; target critics with batch statistics of [(s, a); (s', a')]
    critics          the same batch; cross-entropy, mean over critics
    ```

    Its policy explores with each normal number for several steps (`noise_repeat`). Rewards are scaled so that returns
    fit the atoms.
    """

    # The authors' code has one number of repetitions for all envs, takes gamma^n as discount where a time limit cut
    # n steps, and trains the actor at the 1st, 3rd ... step, not the 2nd, 4th ...
    params_class = FlashSACParams
    params: FlashSACParams
    uses_batch_stats = True
    policy_options: ClassVar[dict[str, Any]] = {
        "net": NetParams(norm="unit_residual", hidden_sizes=(128, 128)),
        "critic_net": NetParams(norm="unit_residual", hidden_sizes=(256, 256)),
        "smooth_log_std": True, "noise_repeat": 16, "normalize_reward": True,
    }  # fmt: skip

    def __init__(self, policy: CategoricalActorCritic, params: FlashSACParams | None = None) -> None:
        super().__init__(policy, params)

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OffPolicyFields:
        """Return fields of `OffPolicyTrainerParams` that train well: `**rl.FlashSAC.recommended(envs)`."""
        # The authors' settings of one env (run_mujoco.sh), and of 1,024 on a GPU (run_isaaclab.sh).
        fields = super().recommended(envs)
        if envs.num_envs < 1024:
            return {**fields, "batch_size": 512, "warmup_num_env_steps": 10_000}
        fields |= {"batch_size": 2048, "warmup_num_env_steps": 100_000}
        return {**fields, "update_step_num_gradient_steps_per_sample": 2 / 1024}

    def default_target_entropy(self) -> float:
        """Return A log(2 pi e 0.15^2) / 2, of A action dimensions."""
        return 0.5 * leaf_shape(self.policy.action_space)[0] * math.log(2 * math.pi * math.e * 0.15**2)

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
