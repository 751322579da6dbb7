"""Reads and writes Minari data sets, through Minari."""

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.buffer_description import StoredEpisodes
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.errors import ParamsError, ReplayBufferError, importing_extra, readable
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular, read_text
from rltrainer.spaces import check_claims, leaf_spaces
from rltrainer.tools.datasets.array_files import claimed_nbytes_of, members_of
from rltrainer.tools.datasets.chosen_episodes import episodes_of
from rltrainer.tools.datasets.logged_rows import NAMES, check_claim, reading, to_buffer
from rltrainer.tools.datasets.parquet_files import claimed_nbytes, opened
from rltrainer.tree import Tree, leaves, map_tree, to_array
from rltrainer.validation.field_rules import AnyPath, AnyText, checked, is_int


def from_minari(
    name: str | Path,
    *,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
) -> ReplayBuffer:
    """Read a buffer from a Minari data set on this machine (extra `minari`); nothing is downloaded, no env is made.

    Minari keeps the final observation of each episode, so no transition is left out. An episode without a flag at its
    end is truncated: its recording stopped there.

    Args:
        name: its name, such as `"D4RL/pen/human-v2"`, as Minari finds it (`MINARI_DATASETS_PATH`), or its folder.
        observation_space: of one env; None takes the data set's. A space with fewer keys leaves out the others, such
            as texts, which no buffer holds.
        action_space: of one env; None takes the data set's.
        device, seed: of the buffer.

    Raises:
        ReplayBufferError: there is no such data set; it is damaged, claims more than its files can hold, tells no
            spaces, or refers to other files.
        SpaceError: the values do not fit the spaces, or these cannot be stored.
        MissingExtraError: Minari is not installed.
    """
    name = str(checked("from_minari", "name", name, AnyPath))
    with importing_extra("from_minari", "minari"):
        from minari import MinariDataset
        from minari.storage.datasets_root_dir import get_dataset_path
    places = (Path(name), Path(name) / "data", get_dataset_path(name) / "data")
    # Minari does not find its files from a relative path.
    folder = next((each.resolve() for each in places if (each / "metadata.json").exists()), None)
    if folder is None:
        text = f"expected a Minari data set there or in {get_dataset_path()}, found none"
        raise ReplayBufferError(f"from_minari: {name}: {text}. `minari.download_dataset(name)` downloads one.")
    origin = f"from_minari: {folder}"
    _check_folder(origin, folder)

    with reading(origin, "a Minari data set", AssertionError):
        dataset = MinariDataset(folder)
        episodes = [_episode(origin, episode, observation_space) for episode in dataset.iterate_episodes()]
    parts = {column: [episode[column] for episode in episodes] for column in NAMES}
    columns = {column: map_tree(lambda *each: np.concatenate(each), *trees) for column, trees in parts.items()}
    observation_space = dataset.observation_space if observation_space is None else observation_space
    action_space = dataset.action_space if action_space is None else action_space
    return to_buffer(origin, columns, 0, observation_space, action_space, device, seed)


def _episode(origin: str, episode: Any, space: gym.Space[Any] | None) -> dict[str, Tree]:
    num_steps, seen = len(episode.rewards), _of_space(episode.observations, space)
    if num_steps == 0 or any(len(leaf) != num_steps + 1 for leaf in leaves(seen)):
        found = [len(leaf) for leaf in leaves(seen)]
        text = f"expected steps, and one observation more than these; found {num_steps} and {found}"
        raise ReplayBufferError(f"{origin}: episode {episode.id}: {text}")
    truncations = np.array(episode.truncations, np.bool_)
    truncations[-1] |= not episode.terminations[-1]
    return {
        "observations": map_tree(lambda x: x[:-1], seen),
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminations": episode.terminations,
        "truncations": truncations,
        "next_observations": map_tree(lambda x: x[1:], seen),
    }


def _of_space(values: Tree, space: gym.Space[Any] | None) -> Tree:
    if isinstance(values, dict) and isinstance(space, gym.spaces.Dict):
        return {key: _of_space(part, space[key]) for key, part in values.items() if key in space.spaces}
    return values


def _check_folder(origin: str, folder: Path) -> None:
    # Minari trusts metadata and claimed sizes: they are checked before it reads them.
    with reading(origin, "metadata of Minari"), open_regular(folder / "metadata.json") as file:
        metadata: Any = read_json(read_text(file), allows_nan=True)
        if not isinstance(metadata, dict):
            raise ReplayBufferError(f"{origin}: metadata.json: expected an object, found {readable(metadata)}")
        spaces: list[Any] = [metadata.get("observation_space"), metadata.get("action_space")]
        if not all(isinstance(text, str) for text in spaces):
            text = f"expected observation_space and action_space as texts, found {readable(spaces)}"
            raise ReplayBufferError(f"{origin}: metadata.json: {text}")
        length = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
        check_claims([_named(read_json(text, allows_nan=True)) for text in spaces], length)
    for name in ("total_episodes", "total_steps"):
        if not is_int(found := metadata.get(name)) or not 0 < found <= max(length, 1):
            text = f"{name}: expected a number of what {length:,} bytes hold, found {readable(found)}"
            raise ReplayBufferError(f"{origin}: metadata.json: {text}")
    if metadata.get("data_format", "hdf5") == "hdf5":
        import h5py

        path = folder / "main_data.hdf5"
        place = f"{origin}: {path.name}"
        with reading(place, "an HDF5 file"), open_regular(path) as stream, h5py.File(stream, "r") as hdf5:
            members = [member for _, member in members_of(place, hdf5, hdf5)]
            claimed = sum(claimed_nbytes_of(member) for member in members if isinstance(member, h5py.Dataset))
    else:
        claimed = 0
        for path in sorted(folder.rglob("*.parquet")):
            with opened(f"{origin}: {path.name}", path) as parquet:
                claimed += claimed_nbytes(parquet)
    check_claim(origin, folder, claimed, length)


def _named(plain: Any) -> Any:
    # `check_claims` looks for the key "space"; Minari writes "type".
    if isinstance(plain, list):
        return [_named(each) for each in plain]
    if not isinstance(plain, dict):
        return None
    parts = {key: _named(each) for key, each in plain.items()}
    return parts | {"space": plain.get("type"), "shape": plain.get("shape")}


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

    An unfinished episode becomes a truncated one, as with Minari's own collector. Episodes with an overwritten
    start are left out, and a warning counts their transitions. Columns of `extra` are not written. Images are
    stored as they are, not as JPEG.

    Args:
        name: with its version, such as `"pendulum/medium-v0"`; Minari writes below `MINARI_DATASETS_PATH`.
        env: the env's id, from which Minari makes it again.
        algorithm_name, author, author_email, code_permalink, description: kept in the metadata.

    Returns:
        the folder of the data set.

    Raises:
        ParamsError: the name is no data set's.
        ReplayBufferError: a data set has this name, the buffer holds no episode, or writing failed, which leaves
            nothing behind.
        MissingExtraError: Minari is not installed.
    """
    with importing_extra("to_minari", "minari"):
        import minari
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage.datasets_root_dir import get_dataset_path
    stored = episodes_of("to_minari", buffer)
    name = checked("to_minari", "name", name, AnyText)
    try:
        parse_dataset_id(name)
    except (ValueError, TypeError) as error:
        rule = "must be the name of a data set with its version, such as 'pendulum/medium-v0'"
        raise ParamsError.about("to_minari", "name", rule, name) from error
    folder = Path(get_dataset_path(name))
    if not folder.is_absolute():  # Minari would write into a folder of this name in itself
        text = f"the environment variable MINARI_DATASETS_PATH: expected an absolute path, found {folder}"
        raise ReplayBufferError(f"to_minari: {text}")
    if folder.exists():
        raise ReplayBufferError(f"to_minari: {folder}: expected nothing there, found a data set. Raise the version.")
    spaces = {"observation_space": buffer.observation_space, "action_space": buffer.action_space}
    stored.warn_of_lost_beginnings(f"to_minari: {folder}")
    episodes = [EpisodeBuffer(**columns, infos={}) for columns in _episodes(buffer, stored)]
    if not episodes:
        raise ReplayBufferError("to_minari.buffer: must hold an episode from its beginning; got none")
    texts = {
        "algorithm_name": algorithm_name, "author": author, "author_email": author_email,
        "code_permalink": code_permalink, "description": description,
    }  # fmt: skip
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of each text that is not given
            minari.create_dataset_from_buffers(name, episodes, env, **texts, **spaces, jpeg_encoding=False)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        text = f"could not be written ({type(error).__name__}: {error})"
        raise ReplayBufferError(f"to_minari: {folder}: {text}") from error
    return folder


def _episodes(buffer: ReplayBuffer, episodes: StoredEpisodes) -> Iterator[dict[str, Any]]:
    # In the order of storage; episodes with an overwritten start are left out.
    ring, names = buffer._ring, ("action", "reward", "terminated", "truncated")
    obs_spaces = leaf_spaces(buffer.observation_space)
    trajectories = np.split(episodes.slots, np.cumsum(episodes.length)[:-1])
    for i in np.flatnonzero(episodes.is_whole):
        slots = torch.from_numpy(trajectories[i]).to(ring.device)
        # [T + 1, ...]: the last observation follows the last step.
        obs = map_tree(lambda x, y: torch.cat([x, y]), ring.observations(slots), ring.successors(slots[-1:]))
        action, reward, terminated, truncated = (to_array(ring.columns[name].gather(slots)) for name in names)
        truncated[-1] |= not terminated[-1]
        yield {
            "observations": map_tree(lambda x, space: to_array(x).astype(space.dtype), obs, obs_spaces),
            "actions": action.astype(buffer.action_space.dtype),
            "rewards": reward.astype(np.float64),
            "terminations": terminated,
            "truncations": truncated,
        }
