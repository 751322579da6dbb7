"""Reads Minari data sets, through Minari."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, missing_extra, readable
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular, read_text
from rltrainer.spaces import check_claims
from rltrainer.tools.datasets.claims import check_claim, reading
from rltrainer.tools.datasets.hdf5_file import claimed_nbytes_of, members_of
from rltrainer.tools.datasets.logged_rows import NAMES, LoggedRows, to_buffer
from rltrainer.tools.datasets.parquet_file import claimed_nbytes
from rltrainer.tree import Tree, leaves, map_tree
from rltrainer.validation.field_rules import AnyPath, checked, is_int
from rltrainer.validation.suggestions import explains_arguments


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


def find_folder(name: str, owner: str) -> Path:
    """Return the folder that holds the data of a Minari data set, given by its folder or its name.

    Raises:
        ReplayBufferError: there is none; nothing is downloaded.
        MissingExtraError: Minari is not installed.
    """
    try:
        from minari.storage.datasets_root_dir import get_dataset_path
    except ImportError as error:
        raise missing_extra(owner, "minari", error) from error
    for folder in (Path(name), Path(name) / "data", get_dataset_path(str(name)) / "data"):
        if (folder / "metadata.json").exists():
            return folder.resolve()  # Minari does not find its files from a relative one
    hint = "`minari.download_dataset(name)` downloads one."
    text = f"expected a Minari data set there or in {get_dataset_path()}, found none. {hint}"
    raise ReplayBufferError(f"{owner}: {name}: {text}")


def check_folder(origin: str, folder: Path) -> None:
    """Check what a data set claims before Minari reads it.

    Raises:
        ReplayBufferError, SpaceError: its metadata are damaged or name no spaces; it claims more than its files can
            hold; or they refer to others.
    """
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
        claimed = _claimed_by_hdf5(origin, folder / "main_data.hdf5")
    else:
        claimed = sum(claimed_nbytes(f"{origin}: {file.name}", file) for file in sorted(folder.rglob("*.parquet")))
    check_claim(origin, folder, claimed, length)


def _claimed_by_hdf5(origin: str, path: Path) -> int:
    import h5py

    with (
        reading(f"{origin}: {path.name}", "an HDF5 file"),
        open_regular(path) as stream,
        h5py.File(stream, "r") as file,
    ):
        members = members_of(f"{origin}: {path.name}", file, list(file))
        return sum(claimed_nbytes_of(member) for _, member in members if isinstance(member, h5py.Dataset))


def _named(plain: Any) -> Any:
    """Return Minari's description of a space with the key that `check_claims` looks for."""
    if isinstance(plain, list):
        return [_named(each) for each in plain]
    if not isinstance(plain, dict):
        return None
    return {key: _named(each) for key, each in plain.items()} | {
        "space": plain.get("type"),
        "shape": plain.get("shape"),
    }
