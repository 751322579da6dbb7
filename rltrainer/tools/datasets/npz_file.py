"""Reads data sets from NumPy's `.npz` files: arrays in a zip file, never pickles."""

import io
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, readable
from rltrainer.files.regular_file import open_regular
from rltrainer.tools.datasets.claims import check_claim, numbers, reading
from rltrainer.tools.datasets.logged_rows import is_wanted, rows_of, to_buffer
from rltrainer.validation.field_rules import AnyPath, checked
from rltrainer.validation.suggestions import explains_arguments


@explains_arguments
def from_npz(
    path: str | Path,
    *,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
) -> ReplayBuffer:
    """Read a buffer from a `.npz` file, as `np.savez` and `np.savez_compressed` write it.

    Its arrays are those of `ReplayBuffer.from_arrays`, by name: `observations` (or `observations/camera` and so on, for
    a Dict), `actions`, `rewards`, `terminations` or `terminals`, `truncations` or `timeouts`, and, if there are,
    `next_observations`. Other arrays are not looked at.

    Args:
        path: the file.
        observation_space, action_space: of one env; None takes what dtype, shape and range let one believe: floats are
            a Box (of actions in [-1, 1] with these bounds, else without any), single integers a Discrete.
        device, seed: of the buffer.

    Returns:
        the buffer. Without `next_observations`, rows whose successor is unknown are left out, and a warning is logged.

    Raises:
        ReplayBufferError: the file is damaged, claims more than it can hold, or lacks an array.
        SpaceError: the values do not fit the spaces.
    """
    path = Path(checked("from_npz", "path", path, AnyPath))
    origin = f"from_npz: {path}"
    is_damaged = reading(origin, "a .npz file", zipfile.BadZipFile, zlib.error)
    with is_damaged, open_regular(path) as file, zipfile.ZipFile(file) as members:
        wanted = [each for each in members.infolist() if is_wanted(each.filename.removesuffix(".npy"))]
        claimed = sum(each.file_size for each in wanted)
        check_claim(origin, path, claimed, path.stat().st_size)
        arrays: dict[str, Array] = {}
        for member in wanted:
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ReplayBufferError(f"{origin}: member {readable(name)}: expected one, found two")
            arrays[name] = _read_array(origin, name, members.read(member))
    return to_buffer(
        origin, rows_of(origin, arrays, path.stat().st_size), observation_space, action_space, device, seed
    )


def _read_array(origin: str, name: str, data: bytes) -> Array:
    """Return the array of a member: a header with shape and dtype, and as many bytes as these say."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ReplayBufferError(f"{origin}: member {readable(name)}: expected version 1.0 or 2.0, found {version}")
    shape, is_fortran, dtype = readers[version](file)
    if dtype.kind not in "biuf":
        raise ReplayBufferError(f"{origin}: member {readable(name)}: expected numbers, found {dtype}")
    size, found = prod(shape) * dtype.itemsize, len(data) - file.tell()
    if min(shape, default=0) < 0 or size != found:
        text = f"expected {size:,} bytes for {dtype} of shape {shape}, found {found:,}"
        raise ReplayBufferError(f"{origin}: member {readable(name)}: {text}")
    array = np.frombuffer(data, dtype, prod(shape), file.tell()).reshape(shape, order="F" if is_fortran else "C")
    return numbers(origin, name, array)
