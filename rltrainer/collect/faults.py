"""The first fault of a collection: a number that is not finite, a choice that does not exist, an endless episode.

Steps are counted from 1, as vector envs count them: `step 5` is an env's fifth step since its collector was made, and
an observation, reward or action of step 5 was returned by that step or given to it.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from rltrainer.collect.episode_counter import EpisodeCounter
from rltrainer.data import RolloutBuffer
from rltrainer.data.storage import Array
from rltrainer.envs import EnvAdapter, EnvStep
from rltrainer.envs.adapter.observations import all_finite
from rltrainer.errors import EnvError, NonFiniteError, ParamsError, SpaceError
from rltrainer.nets import Policy
from rltrainer.spaces import ACTION_MASK, ValueRange, num_choices
from rltrainer.tree import Tree, leaves, named_leaves, to_array
from rltrainer.types import Rollout

# A fault in the order of time, and within a row of cause and effect: the row, its turn there (0 for the observation
# acted on, 1 for the action, 2 for the reward, 3 for a final observation), its text and its error.
Fault = tuple[int, int, str, type[Exception]]

# A collection warns of an episode that has taken so many steps and so many seconds.
LONG_EPISODE, LONG_WAIT = 10_000, 10.0
# Rows between two checks for such an episode.
LOOK_EVERY = 100
# Steps that each env has taken: as many of all envs, or [N] int64.
Steps = int | Array
NOTHING_STORED = "; nothing of this collection was stored"


class FaultChecker:
    """Names faults while envs are stepped: env, step, leaf and value.

    Stored data is checked as a whole, at the end of a collection; other rows when they come. `time_limit` is the
    argument that limits an episode, as a user writes it.
    """

    def __init__(
        self, adapter: EnvAdapter, episodes: EpisodeCounter, time_limit: str = "max_episode_steps=..."
    ) -> None:
        self._adapter, self._episodes, self._time_limit = adapter, episodes, time_limit
        self._actions = ValueRange(adapter.action_space)
        self._has_warned, self._began = False, 0.0
        self._num_changes = adapter.num_obs_changes
        sizes = num_choices(adapter.action_space) or [1]
        self._first_flags = np.cumsum([0, *sizes[:-1]])

    def begin(self, num_before: Steps, num_now: Array | None = None) -> None:
        """Start a collection; `num_now` [N] is counted on where envs are stepped each by itself."""
        self._num_before, self._num_now = num_before, num_now

    def check_collected(self, buffer: RolloutBuffer, holds_samples: bool) -> None:
        """Check a collection, its actions too if they are samples."""
        # A replay buffer checks the choices itself, for 3 us a step.
        checks_actions = holds_samples and not self._adapter.to_env.clips_samples
        if not buffer.is_finite() or (checks_actions and not buffer.holds_actions(self._actions)):
            self.name_fault(buffer)

    def check_policy(self, policy: Policy) -> None:
        """Raise a `ParamsError` if the policy has changed observations in place before they were stored."""
        before, self._num_changes = self._num_changes, self._adapter.num_obs_changes
        if self._num_changes > before:
            text = f"{type(policy).__name__}.decide: must leave the observations that it is given as they are, which it"
            hint = "Copy first: obs = obs.clone()."
            raise ParamsError(f"{text}, its encoder or its exploration changed in place{NOTHING_STORED}. {hint}")

    def name_fault(self, buffer: RolloutBuffer) -> None:
        """Raise the first fault of a collection, if it has one."""
        check_rollout(buffer.rollout(), self._num_before, self._actions, NOTHING_STORED)

    def name_cause(self, buffer: RolloutBuffer | None) -> None:
        """Raise the fault that made a policy or env fail, if there is one: a NaN has many effects."""
        if buffer is None:  # each row was checked when it came
            return
        if buffer.num_rows:
            self.name_fault(buffer)
        num_steps = self._num_before + buffer.num_rows if self._num_now is None else self._num_now
        check_obs(self._adapter.obs, self._episodes.open, num_steps, True, NOTHING_STORED)

    def check_row(self, step: EnvStep, env_action: Any, counted: Any, num_steps: Steps) -> None:
        """Check a row that is not stored; its `counted` [N] steps count, and `num_steps` includes this one."""
        clips = self._adapter.to_env.clips_samples
        acts = all_finite(env_action) if clips else self._actions.holds(to_array(env_action))
        if acts and all_finite(step.reward) and all_finite(step.next_obs):
            return
        action, reward = to_array(env_action)[None], to_array(step.reward)[None]
        valid = np.ones(action.shape[:2], np.bool_) if counted is None else counted[None]
        before = np.broadcast_to(num_steps - 1, action.shape[1])
        _raise_first(_action_faults(action, reward, valid, before, self._actions))
        # An env that spent the step on its reset will act on the observation that the reset returned. If envs are
        # stepped one by one, the other rows hold older results.
        still_open = self._episodes.open
        if self._num_now is None:
            counted = None if still_open is None else counted | still_open
        check_obs(step.next_obs, counted, num_steps, False)

    def check_masks(self, num_steps: Steps, acting: Array | None = None) -> None:
        """Raise an `EnvError` if an env that acts next, after so many steps, is allowed nothing by its action mask.

        `acting` are these envs [K]; None are all envs with steps that count.
        """
        mask = to_array(self._adapter.obs[ACTION_MASK])
        # Each number of an action needs a choice of its own: an action of a MultiDiscrete space has several.
        is_stuck = np.asarray(~np.logical_or.reduceat(mask, self._first_flags, axis=-1).all(-1))
        if not is_stuck.any():
            return
        if acting is not None:
            is_stuck &= np.isin(np.arange(len(is_stuck)), acting)
        if self._adapter.resetting is not None:  # these act on final observations, and their actions have no effect
            is_stuck[self._adapter.resetting] = False
        if self._episodes.open is not None:
            is_stuck &= self._episodes.open
        for env in np.flatnonzero(is_stuck)[:1].tolist():
            text = f'env {env}, step {_of_env(num_steps, env) + 1}: obs["{ACTION_MASK}"] allows no action'
            raise EnvError(f"{text}. An episode must end where nothing can be done{NOTHING_STORED}.")

    def warn_of_long_episode(self, num_rows: int) -> None:
        """Warn once of an episode that may never end, in a collection of so many rows, or answers of envs, so far."""
        if num_rows == 1:
            self._began = time.monotonic()
        if num_rows % LOOK_EVERY or self._has_warned:
            return
        env, num_steps = self._episodes.longest()
        seconds = (time.monotonic() - self._began) * num_steps / num_rows  # its share of the collection
        if num_steps >= LONG_EPISODE and seconds >= LONG_WAIT:
            self._has_warned = True
            text = "collect(num_episodes=...): env %d is %d steps and %.0f seconds into an episode and still waits for "
            hint = "its end. Give it a time limit: %s, or gymnasium.wrappers.TimeLimit."
            logging.getLogger("rltrainer").warning(text + hint, env, num_steps, seconds, self._time_limit)


def check_rollout(rollout: Rollout, num_before: Steps, actions: ValueRange, hint: str) -> None:
    """Raise the first fault of a collection [T, N], a `NonFiniteError` or `SpaceError`, with `hint` after its text.

    Actions in a Box, which are samples, need only be finite.
    """
    _raise_first(_faults(rollout, np.broadcast_to(num_before, rollout.reward.shape[1]), actions), hint)


def check_obs(obs: Tree, counts: Array | None, num_steps: Steps, is_first: bool, hint: str = "") -> None:
    """Check one observation of all envs [N, ...], which a reset or a step returned after so many steps.

    `counts` [N] bool says which envs are checked, None all. NaN or infinity is a `NonFiniteError`.
    """
    for name, leaf in named_leaves(obs, "obs"):
        values = to_array(leaf)
        index = _first_bad(values, np.ones(len(values), np.bool_) if counts is None else counts)
        if index is not None:
            number = _of_env(num_steps, index[0])
            when = f"reset after {number} steps" if is_first else f"step {number}"
            raise NonFiniteError(f"env {index[0]}, {when}: {name} = {values[index]}{hint}")


def raise_choice_fault(error: NonFiniteError, policy: Policy, obs: Tree, num_steps: int) -> NoReturn:
    """Raise the `NonFiniteError` of a policy that could not choose after so many steps: `obs` [N, ...], or its own."""
    # A policy that acts on all envs may fail because of one past its quota, which is not counted.
    check_obs(obs, None, num_steps, is_first=False)
    raise NonFiniteError(f"{type(policy).__name__}, step {num_steps + 1}: {error}") from error


def _faults(rollout: Rollout, num_before: Array, actions: ValueRange) -> Iterator[Fault]:
    """Yield the first fault of each leaf."""
    num_envs = rollout.reward.shape[1]
    valid, final_index = to_array(rollout.valid), to_array(rollout.final_index)
    continues = valid.copy()
    continues.reshape(-1)[final_index] = False
    # The successor of a valid step counts, even if nothing acts on it.
    no_row = np.zeros((1, num_envs), np.bool_)
    counts = np.concatenate([valid, no_row]) | np.concatenate([no_row, continues])
    for (name, leaf), last in zip(named_leaves(rollout.obs, "obs"), leaves(rollout.last_obs), strict=True):
        values = np.concatenate([to_array(leaf), to_array(last)[None]])
        index = _first_bad(values, counts)
        if index is not None:
            row, env = index[:2]
            is_first = row == 0 or (row - 1) * num_envs + env in final_index
            num_steps = num_before[env] + row
            when = f"reset after {num_steps} steps" if is_first else f"step {num_steps}"
            yield row, 0, f"env {env}, {when}: {name} = {values[index]}", NonFiniteError
    yield from _action_faults(to_array(rollout.action), to_array(rollout.reward), valid, num_before, actions)
    for name, leaf in named_leaves(rollout.final_obs, "obs"):
        index = _first_bad(values := to_array(leaf), valid.reshape(-1)[final_index])
        if index is not None:
            row, env = divmod(int(final_index[index[0]]), num_envs)
            yield row, 3, f"env {env}, step {num_before[env] + row + 1}: {name} = {values[index]}", NonFiniteError


def _action_faults(
    action: Array, reward: Array, valid: Array, num_before: Array, actions: ValueRange
) -> Iterator[Fault]:
    """Yield the first fault of actions [T, N, ...] and of rewards [T, N] or [T, N, A]."""
    for turn, name, values in ((1, "action", action), (2, "reward", reward)):
        index = _first_bad(values, valid)
        if index is not None:
            text = f"env {index[1]}, step {num_before[index[1]] + index[0] + 1}: {name} = {values[index]}"
            yield index[0], turn, text, NonFiniteError
    if action.dtype.kind == "f" or actions.holds(action):
        return
    index = _first(actions.outside(action) & _expanded(valid, action))
    if index is not None:
        chosen = action[index[: action.ndim - len(actions.space.shape or ())]].tolist()
        where = f"env {index[1]}, step {num_before[index[1]] + index[0] + 1}"
        yield index[0], 1, f"{where}: action = {chosen!r}, which must lie in {actions.space}", SpaceError


def _raise_first(faults: Iterator[Fault], hint: str = "") -> None:
    # Sorted by row, then by turn: the first caused the rest, as a NaN observed makes actions and rewards NaN.
    if (first := min(faults, default=None)) is not None:
        *_, text, error = first
        raise error(text + hint)


def _first_bad(values: Array, counts: Array) -> tuple[int, ...] | None:
    """Return the index of the first number that is not finite where `counts` is True, or None."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return None
    return _first(~np.isfinite(values) & _expanded(counts, values))


def _first(bad: Array) -> tuple[int, ...] | None:
    return tuple(np.argwhere(bad)[0].tolist()) if bad.any() else None


def _of_env(num_steps: Steps, env: int) -> int:
    return num_steps if isinstance(num_steps, int) else int(num_steps[env])


def _expanded(counts: Array, values: Array) -> Array:
    return counts.reshape(*counts.shape, *[1] * (values.ndim - counts.ndim))
