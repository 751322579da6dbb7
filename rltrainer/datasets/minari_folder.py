"""Minari's data sets in their folders: found, and looked at before Minari reads them.

Minari makes an env to ask for spaces that a data set does not tell, which would run what a file names: so it must tell.
"""

from pathlib import Path
from typing import Any

from rltrainer.datasets.claims import check_claim, reading
from rltrainer.datasets.hdf5_file import claimed_nbytes_of, members_of
from rltrainer.datasets.parquet_file import claimed_nbytes
from rltrainer.errors import ReplayBufferError, missing_extra, readable
from rltrainer.field_rules import is_int
from rltrainer.json_text import read_json
from rltrainer.regular_file import open_regular, read_text
from rltrainer.spaces import check_claims


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
