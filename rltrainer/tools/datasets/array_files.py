"""Reads data sets from `.npz` and HDF5 files: arrays, never pickles, links to other files or loaded plugins."""

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import IO, Any, NoReturn, TypedDict, Unpack

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.errors import ArgumentError, ReplayBufferError, importing_extra, readable
from rltrainer.files.json_text import MAX_DEPTH
from rltrainer.files.regular_file import open_regular
from rltrainer.tools.datasets.logged_rows import check_claim, columns_of, is_wanted, reading, to_buffer
from rltrainer.validation.field_rules import AnyPath, checked
from rltrainer.validation.suggestions import did_you_mean

# Compressions and checksums that HDF5 and h5py bring; HDF5 would load a library for any other number.
BUILT_IN_FILTERS = {1, 2, 3, 4, 5, 6, 32000}
# Bytes of a member to read at once.
CHUNK_SIZE = 1 << 20


class ReadOptions(TypedDict, total=False):
    """The keywords of all readers of files; `from_npz` explains them."""

    observation_space: gym.Space[Any] | None
    action_space: gym.Space[Any] | None
    device: torch.device | str
    seed: int | None


def begin_reading(reader: str, path: str | Path, options: ReadOptions) -> tuple[Path, str]:
    """Return a reader's path, and what its error texts start with; an unknown option is an `ArgumentError`."""
    path = Path(checked(reader, "path", path, AnyPath))
    known = ReadOptions.__annotations__.keys()
    for name in sorted(options.keys() - known):
        raise ArgumentError(f"{reader}: unknown argument {name!r}.{did_you_mean(name, known)}")
    return path, f"{reader}: {path}"


def from_npz(path: str | Path, **options: Unpack[ReadOptions]) -> ReplayBuffer:
    """Read a buffer from a `.npz` file, as `np.savez` and `np.savez_compressed` write it.

    It holds the arrays of `ReplayBuffer.from_arrays`, by name: `observations` (or `observations/camera` and so on, for
    a Dict), `actions`, `rewards`, `terminations` or `terminals`, `truncations` or `timeouts`, and, optionally,
    `next_observations`. Other arrays are ignored.

    Args:
        path: the file.
        observation_space, action_space: of one env; None infers them: floats are a Box (of actions in [-1, 1] with
            these bounds, else without any), single integers a Discrete.
        device, seed: of the buffer.

    Returns:
        the buffer. Without `next_observations`, rows whose successor is unknown are left out, and a warning is logged.

    Raises:
        ReplayBufferError: the file is damaged, claims more than it can hold, or lacks an array.
        SpaceError: the values do not fit the spaces.
    """
    path, origin = begin_reading("from_npz", path, options)
    is_damaged = reading(origin, "a .npz file", zipfile.BadZipFile, zlib.error)
    with is_damaged, open_regular(path) as file, zipfile.ZipFile(file) as members:
        named = [(each.filename.removesuffix(".npy"), each) for each in members.infolist()]
        wanted = [(name, member) for name, member in named if is_wanted(name)]
        check_claim(origin, path, sum(member.file_size for _, member in wanted), path.stat().st_size)
        arrays: dict[str, Array] = {}
        for name, member in wanted:
            if name in arrays:
                raise ReplayBufferError(f"{origin}: member {readable(name)}: expected one, found two")
            with members.open(member) as stream:
                arrays[name] = _read_array(origin, name, stream, member.file_size)
    return to_buffer(origin, columns_of(origin, arrays), path.stat().st_size, **options)


def _read_array(origin: str, name: str, file: IO[bytes], num_bytes: int) -> Array:
    # Read by hand, as `np.load` allocates the claimed shape before it compares it with the data; and in parts, as a
    # member that is read whole takes its memory twice.
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ReplayBufferError(f"{origin}: member {readable(name)}: expected version 1.0 or 2.0, found {version}")
    shape, is_fortran, dtype = readers[version](file)
    if dtype.kind not in "biuf":
        raise ReplayBufferError(f"{origin}: member {readable(name)}: expected numbers, found {dtype}")
    size, found = prod(shape) * dtype.itemsize, num_bytes - file.tell()
    if min(shape, default=0) < 0 or size != found:
        text = f"expected {size:,} bytes for {dtype} of shape {shape}, found {found:,}"
        raise ReplayBufferError(f"{origin}: member {readable(name)}: {text}")
    data = np.empty(size, np.uint8)
    for part in np.split(data, range(CHUNK_SIZE, size, CHUNK_SIZE)):
        if (read := file.readinto(part)) != len(part):  # type: ignore[attr-defined]  # a member has it
            raise ReplayBufferError(f"{origin}: member {readable(name)}: expected {len(part):,} bytes, found {read:,}")
    return data.view(dtype).reshape(shape, order="F" if is_fortran else "C")


def from_hdf5(path: str | Path, **options: Unpack[ReadOptions]) -> ReplayBuffer:
    """Read a buffer from an HDF5 file in D4RL's layout (extra `hdf5`).

    Its members are `observations` (a group of them is a Dict), `actions`, `rewards`, `terminals` or `terminations`,
    `timeouts` or `truncations`, and, optionally, `next_observations`. Others are ignored. A time-out is a
    truncation: its successor is bootstrapped.

    Args:
        path: the file.
        observation_space, action_space, device, seed: see `from_npz`, also for what is returned.

    Raises:
        ReplayBufferError: the file is damaged, claims more than it can hold, lacks a member, or refers to other files.
        SpaceError: the values do not fit the spaces.
        MissingExtraError: h5py is not installed.
    """
    with importing_extra("from_hdf5", "hdf5"):
        import h5py
    path, origin = begin_reading("from_hdf5", path, options)
    with reading(origin, "an HDF5 file"), open_regular(path) as stream, h5py.File(stream, "r") as file:
        wanted = dict(members_of(origin, file, filter(is_wanted, file)))
        for name, member in wanted.items():
            if not isinstance(member, h5py.Dataset) or member.dtype.kind not in "biuf":
                found = member.dtype if isinstance(member, h5py.Dataset) else type(member).__name__
                raise ReplayBufferError(f"{origin}: member {readable(name)}: expected numbers, found {found}")
        check_claim(origin, path, sum(map(claimed_nbytes_of, wanted.values())), path.stat().st_size)
        arrays = {name: member[()] for name, member in wanted.items()}
    return to_buffer(origin, columns_of(origin, arrays), path.stat().st_size, **options)


def claimed_nbytes_of(member: Any) -> int:
    """Return the bytes that an h5py data set claims; an axis of 0 counts as 1, as the other axes make a space."""
    return int(prod(max(n, 1) for n in member.shape or ()) * member.dtype.itemsize)


def members_of(origin: str, file: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and h5py object of members, also in groups; a link to another file is a `ReplayBufferError`."""
    import h5py

    def refuse(name: str, expected: str, found: str) -> NoReturn:
        raise ReplayBufferError(f"{origin}: member {readable(name)}: expected {expected}, found {found}")

    waiting = [(file, key, key, 1) for key in list(names)[::-1]]
    seen = set()
    while waiting:
        group, key, name, depth = waiting.pop()
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            refuse(name, "data", "a link")
        member = group[key]
        place = h5py.h5o.get_info(member.id).addr
        if place in seen:
            refuse(name, "data of its own", "a second name of other")
        seen.add(place)
        if isinstance(member, h5py.Group):
            if depth >= MAX_DEPTH:
                refuse(name, f"groups nested at most {MAX_DEPTH} deep", "more")
            waiting += [(member, part, f"{name}/{part}", depth + 1) for part in member]
            continue
        if isinstance(member, h5py.Dataset):
            if member.shape is None:
                refuse(name, "numbers", "a null set")
            if member.external or member.is_virtual:
                refuse(name, "data in this file", "a reference to other files")
            plan = member.id.get_create_plist()
            filters = {plan.get_filter(i)[0] for i in range(plan.get_nfilters())}
            if filters - BUILT_IN_FILTERS:
                refuse(name, "a compression that HDF5 brings", f"the filters {sorted(filters)}")
        yield name, member
