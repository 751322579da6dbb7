"""The eyes of a collector while it steps envs, so that a fault is named where it began."""

import logging
import time
from typing import Any, ClassVar

import numpy as np

from rltrainer.collect.episode_counter import EpisodeCounter
from rltrainer.collect.faults import check_obs, check_rollout, check_step
from rltrainer.data import RolloutBuffer
from rltrainer.data.incoming_cells import to_array
from rltrainer.envs import EnvAdapter, EnvStep
from rltrainer.envs.adapter.observations import all_finite
from rltrainer.errors import EnvError, ParamsError
from rltrainer.nets import Policy
from rltrainer.spaces import ACTION_MASK, ValueRange, num_choices

LONG_EPISODE, LONG_WAIT = 10_000, 10.0
"""Steps and seconds after which an episode that others wait for is worth a word: once it has taken both."""
LOOK_EVERY = 100
"""Rows between two looks at them."""
NOTHING_STORED = "; nothing of this collection was stored"


class Watch:
    """Looks for numbers that are not finite, choices that do not exist, and episodes that do not end.

    What is stored is looked at as a whole, at the end of a collection; other rows when they come. All methods raise a
    `NonFiniteError` or `SpaceError` that names env, step, leaf and value; `faults` says how.
    """

    time_limit: ClassVar[str] = "Collector(..., max_episode_steps=...)"
    """The argument that limits an episode, as a user writes it."""

    def __init__(self, adapter: EnvAdapter, episodes: EpisodeCounter) -> None:
        self._adapter, self._episodes = adapter, episodes
        self._actions = ValueRange(adapter.action_space)
        self._has_warned, self._began = False, 0.0
        self._num_changes = adapter.num_obs_changes
        sizes = num_choices(adapter.action_space) or [1]
        self._first_flags = np.cumsum([0, *sizes[:-1]])

    def check_collected(self, buffer: RolloutBuffer, num_steps_before: int, holds_samples: bool) -> None:
        """Look at a collection, before which each env had taken so many steps; at its actions if they are samples."""
        looks = holds_samples and not self._adapter.to_env.clips_samples  # a replay buffer looks itself, 3 us a step
        if not buffer.is_finite() or (looks and not buffer.holds_choices(self._actions)):
            self.name_fault(buffer, num_steps_before)

    def check_policy(self, policy: Policy) -> None:
        """Raise a `ParamsError` if the policy has changed observations in place that were to be stored."""
        before, self._num_changes = self._num_changes, self._adapter.num_obs_changes
        if self._num_changes > before:
            text = f"{type(policy).__name__}.decide: must leave the observations that it is given as they are, which it"
            hint = "Copy first: obs = obs.clone()."
            raise ParamsError(f"{text}, its encoder or its exploration changed in place{NOTHING_STORED}. {hint}")

    def name_fault(self, buffer: RolloutBuffer, num_steps_before: int) -> None:
        """Raise the first fault of a collection, if it has one."""
        check_rollout(buffer.rollout(), num_steps_before, self._actions, NOTHING_STORED)

    def name_cause(self, buffer: RolloutBuffer | None, num_steps_before: int) -> None:
        """Raise the fault that made a policy or env fail, if there is one: a NaN has many effects."""
        if buffer is None:  # each row was looked at when it came
            return
        if buffer.num_rows:
            self.name_fault(buffer, num_steps_before)
        num_steps = num_steps_before + buffer.num_rows
        check_obs(self._adapter.obs, self._episodes.open, num_steps, True, NOTHING_STORED)

    def name_idle(self, num_steps: int) -> None:
        """Raise the fault of an env that nobody counts, or looks at: a policy that acts on all may fail by it."""
        check_obs(self._adapter.obs, None, num_steps, False, "")

    def check_row(self, step: EnvStep, env_action: Any, counted: Any, num_steps: int) -> None:
        """Look at a row that nobody stores; `num_steps` are the steps each env has taken, this one included."""
        adapter = self._adapter
        acts = all_finite(env_action) if adapter.to_env.clips_samples else self._actions.holds(to_array(env_action))
        if acts and all_finite(step.reward) and all_finite(step.next_obs):
            return
        check_step(step, env_action, counted, num_steps, self._actions)
        # An env that spent the step on its reset will act on what that returned.
        still_open = self._episodes.open
        check_obs(step.next_obs, None if still_open is None else counted | still_open, num_steps, False, "")

    def check_first_obs(self, num_steps: int) -> None:
        """Look at the first observations of episodes that nobody stores."""
        check_obs(self._adapter.obs, self._episodes.open, num_steps, True, "")

    def check_masks(self, num_steps: int) -> None:
        """Raise an `EnvError` if an env that acts next, after so many steps, is allowed nothing by its action mask."""
        is_stuck = self.is_stuck()
        if not is_stuck.any():
            return
        if self._adapter.resetting is not None:  # these act on final observations, and nobody minds
            is_stuck[self._adapter.resetting] = False
        if self._episodes.open is not None:
            is_stuck &= self._episodes.open
        for env in np.flatnonzero(is_stuck)[:1]:
            raise stuck_error(env, num_steps + 1)

    def is_stuck(self) -> Any:
        """Return which envs allow nothing [N] bool."""
        mask = to_array(self._adapter.obs[ACTION_MASK])
        # Each number of an action needs a choice of its own: of a MultiDiscrete space there are several.
        return np.asarray(~np.logical_or.reduceat(mask, self._first_flags, axis=-1).all(-1))

    def warn_of_long_episode(self, num_rows: int) -> None:
        """Warn once of an episode that may never end, in a collection of so many rows, or answers of envs, so far."""
        if num_rows == 1:
            self._began = time.monotonic()
        if num_rows % LOOK_EVERY or self._has_warned:
            return
        env, num_steps = self._episodes.longest()
        seconds = (time.monotonic() - self._began) * num_steps / num_rows  # its share of the collection
        if num_steps < LONG_EPISODE or seconds < LONG_WAIT:
            return
        self._has_warned = True
        text = "collect(num_episodes=...): env %d is %d steps and %.0f seconds into an episode and still waits for its "
        hint = "end. Give it a time limit: %s, or gymnasium.wrappers.TimeLimit."
        logging.getLogger("rltrainer").warning(text + hint, env, num_steps, seconds, self.time_limit)


def stuck_error(env: int, number: int) -> EnvError:
    """Return the error of an env that allows nothing in its step of this number."""
    text = f'env {env}, step {number}: obs["{ACTION_MASK}"] allows no action'
    return EnvError(f"{text}. An episode must end where nothing can be done{NOTHING_STORED}.")
