"""Writes buffers as Minari data sets, through Minari."""

import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.incoming_cells import to_array
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.data.stored_episodes import stored_episodes
from rltrainer.errors import ParamsError, ReplayBufferError, field_error_text, missing_extra
from rltrainer.spaces import leaf_spaces
from rltrainer.tree import Tree, map_tree
from rltrainer.validation.field_rules import AnyText, checked
from rltrainer.validation.suggestions import explains_arguments


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


@explains_arguments
def to_minari(
    buffer: ReplayBuffer,
    name: str,
    *,
    env: str | None = None,
    algorithm_name: str | None = None,
    author: str | None = None,
    author_email: str | None = None,
    code_permalink: str | None = None,
    description: str | None = None,
) -> Path:
    """Write a buffer as a Minari data set, which `from_minari` reads back as it was (extra `minari`).

    A trace that is not finished becomes an episode that is truncated, as with Minari's own collector. Episodes whose
    beginning was overwritten are left out, and a warning is logged that says how many transitions they have. Columns
    of `extra` are not written. Images are stored as they are, not as JPEG.

    Args:
        buffer: what is written.
        name: with its version, such as `"pendulum/medium-v0"`; Minari writes below `MINARI_DATASETS_PATH`.
        env: the env's id, from which Minari makes it again.
        algorithm_name, author, author_email, code_permalink, description: what others want to know.

    Returns:
        the folder of the data set.

    Raises:
        ParamsError: the name is none of a data set.
        ReplayBufferError: there is one of that name, the buffer holds no episode, or it could not be written; what was
            written of it is removed.
        MissingExtraError: Minari is not installed.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage.datasets_root_dir import get_dataset_path
    except ImportError as error:
        raise missing_extra("to_minari", "minari", error) from error
    if not isinstance(buffer, ReplayBuffer):
        raise ReplayBufferError(field_error_text("to_minari", "buffer", "must be a ReplayBuffer", buffer))
    name = checked("to_minari", "name", name, AnyText)
    try:
        parse_dataset_id(name)
    except (ValueError, TypeError) as error:
        rule = "must be the name of a data set with its version, such as 'pendulum/medium-v0'"
        raise ParamsError(field_error_text("to_minari", "name", rule, name)) from error
    folder = Path(get_dataset_path(name))
    if not folder.is_absolute():  # Minari would write into a folder of this name in itself
        text = f"the environment variable MINARI_DATASETS_PATH: expected an absolute path, found {folder}"
        raise ReplayBufferError(f"to_minari: {text}")
    if folder.exists():
        raise ReplayBufferError(f"to_minari: {folder}: expected nothing there, found a data set. Raise the version.")
    spaces = {"observation_space": buffer.observation_space, "action_space": buffer.action_space}
    episodes = [
        EpisodeBuffer(**_arrays(episode, spaces), infos={})
        for episode in episode_arrays(buffer, f"to_minari: {folder}")
    ]
    if not episodes:
        raise ReplayBufferError("to_minari.buffer: must hold an episode from its beginning; got none")
    texts = {
        "algorithm_name": algorithm_name,
        "author": author,
        "author_email": author_email,
        "code_permalink": code_permalink,
        "description": description,
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of each text that is not given
            minari.create_dataset_from_buffers(name, episodes, env, **texts, **spaces, jpeg_encoding=False)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        raise ReplayBufferError(
            f"to_minari: {folder}: could not be written ({type(error).__name__}: {error})"
        ) from error
    return folder


def _arrays(episode: EpisodeArrays, spaces: dict[str, gym.Space[Any]]) -> dict[str, Any]:
    """Return the columns of an episode in the dtypes of its spaces."""
    truncations = episode.truncations.copy()
    truncations[-1] |= not episode.terminations[-1]
    return {
        "observations": map_tree(_cast, episode.observations, leaf_spaces(spaces["observation_space"])),
        "actions": _cast(episode.actions, spaces["action_space"]),
        "rewards": episode.rewards.astype(np.float64),
        "terminations": episode.terminations,
        "truncations": truncations,
    }


def _cast(values: Any, space: gym.Space[Any]) -> Any:
    return values.astype(space.dtype)
