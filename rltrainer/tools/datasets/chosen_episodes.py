"""Some episodes of a buffer as a buffer of their own: the best, all above a return, two parts of all."""

from typing import Any

import numpy as np

from rltrainer.data.buffer_description import StoredEpisodes, stored_episodes
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.data.transition_sources import copy_transitions
from rltrainer.errors import ParamsError, ReplayBufferError
from rltrainer.validation.field_rules import FiniteFloat, NonNegativeInt, PositiveInt, UnitFloat, checked


def best_episodes(buffer: ReplayBuffer, *, share: float | None = None, num_episodes: int | None = None) -> ReplayBuffer:
    """Return the episodes with the highest returns, in the order in which they are stored.

    Only whole episodes are compared. The new buffer samples uniformly. A buffer without them is a `ReplayBufferError`.

    Args:
        buffer: stays as it is.
        share: of the episodes, in [0, 1]; rounded up.
        num_episodes: how many (at most all), in place of a share; both, or none, are a `ParamsError`.
    """
    owner = "best_episodes"
    episodes = episodes_of(owner, buffer)
    share = checked(owner, "share", share, UnitFloat | None)
    num_episodes = checked(owner, "num_episodes", num_episodes, PositiveInt | None)
    if (share is None) == (num_episodes is None):
        raise ParamsError.about(owner, "share", "must be given, or num_episodes, but not both", share)
    finished = np.flatnonzero(episodes.is_finished)
    # 0.07 * 100 is 7.000000000000001, and must not be rounded up to 8.
    count = num_episodes if share is None else int(np.ceil(round(share * len(finished), 9)))
    best = finished[np.argsort(-episodes.return_[finished], kind="stable")[:count]]
    return _with(owner, buffer, episodes, best)


def episodes_with_return(buffer: ReplayBuffer, *, at_least: float) -> ReplayBuffer:
    """Return the episodes with at least this return; see `best_episodes`, also for what it raises."""
    owner = "episodes_with_return"
    episodes = episodes_of(owner, buffer)
    at_least = checked(owner, "at_least", at_least, FiniteFloat)
    return _with(owner, buffer, episodes, np.flatnonzero(episodes.is_finished & (episodes.return_ >= at_least)))


def split_episodes(buffer: ReplayBuffer, share: float, *, seed: int = 0) -> tuple[ReplayBuffer, ReplayBuffer]:
    """Split the episodes between two buffers, such as one to train on and one to test with.

    Unfinished trajectories are included. A warning counts the transitions of trajectories with an overwritten start.
    Fewer than two trajectories are a `ReplayBufferError`.

    Args:
        buffer: stays as it is.
        share: of the episodes for the first buffer, in [0, 1]; rounded, but each buffer gets at least one.
        seed: of the draw.
    """
    owner = "split_episodes"
    episodes = episodes_of(owner, buffer)
    share, seed = checked(owner, "share", share, UnitFloat), checked(owner, "seed", seed, NonNegativeInt)
    whole = np.flatnonzero(episodes.is_whole)
    if len(whole) < 2:
        rule = "must hold at least two episodes with their beginnings"
        raise ReplayBufferError(f"{owner}.buffer: {rule}; got {len(whole)}")
    episodes.warn_of_lost_beginnings(owner)
    order = np.random.default_rng(seed).permutation(whole)
    first = min(max(round(share * len(whole)), 1), len(whole) - 1)
    return _with(owner, buffer, episodes, order[:first]), _with(owner, buffer, episodes, order[first:])


def episodes_of(owner: str, buffer: Any) -> StoredEpisodes:
    """Return the episodes of a buffer; a `ReplayBufferError` with the owner's name if it is none."""
    if not isinstance(buffer, ReplayBuffer):
        raise ReplayBufferError.about(owner, "buffer", "must be a ReplayBuffer", buffer)
    return stored_episodes(buffer._ring)


def _with(owner: str, buffer: ReplayBuffer, episodes: StoredEpisodes, chosen: Array) -> ReplayBuffer:
    """Return a buffer of the chosen episodes, given by their numbers, in the order in which they are stored."""
    if not len(chosen):
        found = f"got {episodes.is_finished.sum()} episodes, none of which is chosen"
        hint = "`buffer.describe()` shows their returns."
        raise ReplayBufferError(f"{owner}.buffer: must hold an episode that is chosen; {found}. {hint}")
    is_kept = np.repeat(np.isin(np.arange(len(episodes.length)), chosen), episodes.length)
    slots = episodes.slots[is_kept]
    layout = buffer._layout
    made = ReplayBuffer(max(len(slots), layout.frame_stack or 1), **layout.arguments(), device=buffer.device)
    env = np.zeros(len(slots), np.int64)
    copy_transitions(buffer._ring, made._ring, slots, env, episodes.last[is_kept])
    return made
