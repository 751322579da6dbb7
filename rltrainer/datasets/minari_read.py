"""Reads Minari data sets, through Minari."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.datasets.claims import reading
from rltrainer.datasets.logged_rows import NAMES, LoggedRows, to_buffer
from rltrainer.datasets.minari_folder import check_folder, find_folder
from rltrainer.errors import ReplayBufferError
from rltrainer.field_rules import AnyPath, checked
from rltrainer.names import explains_arguments
from rltrainer.tree import Tree, leaves, map_tree


@explains_arguments
def from_minari(
    name: str | Path,
    *,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
) -> ReplayBuffer:
    """Read a buffer from a Minari data set on this machine (extra `minari`); nothing is downloaded, no env is made.

    Minari keeps the final observation of each episode, so that no transition is left out. An episode that ends by
    neither flag ends by truncation: it was recorded no further.

    Args:
        name: its name, such as `"D4RL/pen/human-v2"`, as Minari finds it (`MINARI_DATASETS_PATH`), or its folder.
        observation_space: of one env; None takes the data set's. One with fewer keys leaves the others out, such as
            texts, which no buffer holds.
        action_space: of one env; None takes the data set's.
        device, seed: of the buffer.

    Raises:
        ReplayBufferError: there is no such data set; it is damaged, claims more than its files can hold, tells no
            spaces, or refers to other files.
        SpaceError: the values do not fit the spaces, or these cannot be stored.
        MissingExtraError: Minari is not installed.
    """
    name = str(checked("from_minari", "name", name, AnyPath))
    folder = find_folder(name, "from_minari")
    origin = f"from_minari: {folder}"
    check_folder(origin, folder)
    from minari import MinariDataset

    with reading(origin, "a Minari data set", AssertionError):
        dataset = MinariDataset(folder)
        episodes = [_episode(origin, episode, observation_space) for episode in dataset.iterate_episodes()]
    columns = (map_tree(lambda *parts: np.concatenate(parts), *column) for column in zip(*episodes, strict=True))
    spaces: Any = {"observation_space": dataset.observation_space, "action_space": dataset.action_space}
    rows = LoggedRows(**dict(zip(NAMES, columns, strict=True)), **spaces)
    return to_buffer(origin, rows, observation_space, action_space, device, seed)


def _episode(origin: str, episode: Any, space: gym.Space[Any] | None) -> tuple[Tree, Any, Array, Array, Array, Tree]:
    """Return the columns `NAMES` of an episode of T steps, [T, ...]; of observations only what a given space has."""
    num_steps, seen = len(episode.rewards), _of_space(episode.observations, space)
    if num_steps == 0 or any(len(leaf) != num_steps + 1 for leaf in leaves(seen)):
        found = [len(leaf) for leaf in leaves(seen)]
        text = f"expected steps, and one observation more than these; found {num_steps} and {found}"
        raise ReplayBufferError(f"{origin}: episode {episode.id}: {text}")
    truncations = np.array(episode.truncations, np.bool_)
    truncations[-1] |= not episode.terminations[-1]
    before, after = map_tree(lambda x: x[:-1], seen), map_tree(lambda x: x[1:], seen)
    return before, episode.actions, episode.rewards, episode.terminations, truncations, after


def _of_space(values: Tree, space: gym.Space[Any] | None) -> Tree:
    if isinstance(values, dict) and isinstance(space, gym.spaces.Dict):
        return {key: _of_space(part, space[key]) for key, part in values.items() if key in space.spaces}
    return values
