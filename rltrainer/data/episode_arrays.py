"""The episodes of a buffer one after the other, as arrays: what other projects' formats are written from."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from rltrainer.data.incoming_cells import to_array
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.data.stored_episodes import stored_episodes
from rltrainer.tree import Tree, map_tree


@dataclass(frozen=True, slots=True)
class EpisodeArrays:
    """One episode of T steps, or a trace that goes no further.

    Attributes:
        observations: tree of arrays [T + 1, ...]: what was acted on, and what came last.
        actions, rewards, terminations, truncations: [T, ...].
    """

    observations: Tree
    actions: Array
    rewards: Array
    terminations: Array
    truncations: Array


def episode_arrays(buffer: ReplayBuffer, caller: str) -> Iterator[EpisodeArrays]:
    """Yield the episodes of a buffer, and its traces that are not finished, as they are stored.

    Those whose beginning was overwritten are left out, and a warning is logged that begins with the caller and says how
    many transitions they have.
    """
    ring, episodes = buffer._ring, stored_episodes(buffer._ring)
    episodes.warn_of_lost_beginnings(caller)
    traces = np.split(episodes.cells, np.cumsum(episodes.length)[:-1])
    for cells in (traces[i] for i in np.flatnonzero(episodes.is_whole)):
        episode = torch.from_numpy(cells).to(ring.device)
        obs, last = ring.observations(episode), ring.successors(episode[-1:])
        columns = (
            to_array(ring.columns[name].gather(episode)) for name in ("action", "reward", "terminated", "truncated")
        )
        yield EpisodeArrays(map_tree(lambda x, y: to_array(torch.cat([x, y])), obs, last), *columns)
