"""The eyes of a batched collector: its envs are not at the same step."""

from typing import Any

import numpy as np

from rltrainer.collect.episode_counter import EpisodeCounter
from rltrainer.collect.faults import check_obs, check_rollout, check_step
from rltrainer.collect.watch import NOTHING_STORED, Watch, stuck_error
from rltrainer.data import RolloutBuffer
from rltrainer.data.storage import Array
from rltrainer.envs import EnvStep
from rltrainer.envs.adapter.episode_seeds import Rows
from rltrainer.envs.adapter.observation_memory import all_finite
from rltrainer.envs.streams.stream_adapter import StreamAdapter
from rltrainer.errors import EnvError

MAX_SHORT_EPISODES = 1000
"""Episodes that a collection by episodes drops before it gives up, if there is no other."""


class StreamWatch(Watch):
    """Names faults by the steps that each env has taken; see `Watch`."""

    time_limit = "BatchedCollector(..., max_trajectory_length=...)"
    _adapter: StreamAdapter

    def __init__(self, adapter: StreamAdapter, episodes: EpisodeCounter) -> None:
        super().__init__(adapter, episodes)
        self._steps_before: Any = 0

    def begin(self, held: list[int]) -> None:
        """Note where a collection begins: each env's first cells are those that were held."""
        self._steps_before = self._adapter.num_steps - np.array(held)

    def name_fault(self, buffer: RolloutBuffer, num_steps_before: int) -> None:
        """Raise the first fault of a collection, if it has one."""
        check_rollout(buffer.rollout(), self._steps_before, self._actions, NOTHING_STORED)

    def name_cause(self, buffer: RolloutBuffer | None, num_steps_before: int) -> None:
        """Raise the fault that made a policy or env fail, if there is one."""
        if buffer is None:
            return
        if buffer.num_rows:
            self.name_fault(buffer, num_steps_before)
        self.check_begun(np.arange(self._adapter.num_envs), NOTHING_STORED)

    def check_begun(self, envs: Rows, hint: str = "") -> None:
        """Look at the observations that envs [K] act on next."""
        if not all_finite(self._adapter.obs):
            for env in envs.tolist():
                check_obs(self._adapter.obs, self._only(env), int(self._adapter.num_steps[env]), True, hint)

    def check_arrived(self, step: EnvStep, env_action: Array, counted: Array) -> None:
        """Look at cells that nobody stores; `counted` [N] says whose."""
        acts = all_finite(env_action) if self._adapter.to_env.clips_samples else self._actions.holds(env_action)
        if acts and all_finite(step.reward) and all_finite(step.next_obs):
            return
        for env in np.flatnonzero(counted).tolist():
            num_steps = int(self._adapter.num_steps[env])
            check_step(step, env_action, self._only(env), num_steps, self._actions)
            check_obs(step.next_obs, self._only(env), num_steps, False, "")

    def check_masks_of(self, envs: Rows) -> None:
        """Raise an `EnvError` if one of the envs [K] that act now is allowed nothing by its action mask."""
        for env in envs[self.is_stuck()[envs]][:1].tolist():
            raise stuck_error(env, int(self._adapter.num_steps[env]) + 1)

    def check_progress(self, num_dropped: int) -> None:
        """Raise an `EnvError` where a collection by episodes finds only such as are too short."""
        if num_dropped >= MAX_SHORT_EPISODES and not len(self._episodes.lengths):
            limit = self._episodes.min_length
            text = f"{num_dropped} episodes, and no other, were shorter than min_trajectory_length={limit}"
            raise EnvError(f"BatchedCollector.collect: {text}")

    def _only(self, env: int) -> Array:
        return np.isin(np.arange(self._adapter.num_envs), env)
