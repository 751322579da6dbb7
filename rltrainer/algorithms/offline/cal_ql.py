"""Cal-QL (Nakamoto et al. 2023, Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning; 2303.05479)."""

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from rltrainer.algorithms.offline.cql import CQL, CQLNoise, CQLParams
from rltrainer.data import ReplayBuffer
from rltrainer.errors import ParamsError, ReplayBufferError
from rltrainer.nets import SquashedActorCritic
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import Flag


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class CalQLParams(CQLParams):
    """Hyperparameters of Cal-QL. `conservative_coef` is 5 in the paper's AntMaze, and 1 in its Adroit."""

    max_target_backup: Flag = True


class CalQL(CQL):
    """CQL whose critics are not pushed below the returns of the data, for training that continues online.

    It needs data with the ends of trajectories: transitions of a running one have no return yet, and are as in CQL.
    """

    params_class = CalQLParams
    params: CalQLParams
    sampled_columns: ClassVar[dict[str, str]] = {"return_to_go": "returns to go"}

    def __init__(self, policy: SquashedActorCritic, params: CalQLParams | None = None) -> None:
        super().__init__(policy, params)
        if policy.reward_normalizer is not None:
            rule = "must be False: returns of the data are in the rewards' own scale"
            raise ParamsError.about("CalQL.policy", "normalize_reward", rule, True)

    def check_data(self, buffer: ReplayBuffer) -> None:
        """Raise a `ReplayBufferError` if the data has no ends of trajectories."""
        found = buffer.describe()
        # Without ends the data is one long trajectory of each env, or, in another order, as many as transitions.
        if not found.num_episodes and not buffer.num_envs < found.num_unfinished < found.num_transitions:
            hint = "Mark the ends of episodes as terminated or truncated, or take CQL."
            raise ReplayBufferError(f"CalQL.buffer: has no ends of episodes, so no returns are known. {hint}")

    def sample(self, buffer: ReplayBuffer, batch_size: int, num_batches: int | None = None) -> Transitions:
        """Return transitions for `update`: [B] or [K, B], with their returns to go in `extra`."""
        buffer.follow(self.plan.progress, self.plan.ranks)
        n, gamma = self.n_step, self.gamma
        return buffer.sample(batch_size, n_step=n, gamma=gamma, num_batches=num_batches, return_to_go=True)

    def sampled_values(self, batch: Transitions, action: Tensor, noise: CQLNoise) -> Tensor:
        """Return CQL's values, but for actions of the policy no less than the return to go [E, 3 N, B] (eq. 5)."""
        values, num_of_policy = super().sampled_values(batch, action, noise), 2 * self.params.num_sampled_actions
        of_policy = values[:, :num_of_policy].maximum(batch.extra["return_to_go"])
        return torch.cat([of_policy, values[:, num_of_policy:]], 1)
