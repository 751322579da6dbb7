"""Reads columns of Parquet files: numbers, lists of numbers, and structs of these."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, missing_extra, readable
from rltrainer.files.regular_file import open_regular
from rltrainer.tools.datasets.claims import check_claim, numbers, reading
from rltrainer.tools.datasets.logged_rows import is_wanted, rows_of, to_buffer
from rltrainer.validation.field_rules import AnyPath, checked
from rltrainer.validation.suggestions import explains_arguments


@explains_arguments
def from_parquet(
    path: str | Path,
    *,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
) -> ReplayBuffer:
    """Read a buffer from a Parquet file, or from all of a folder in the order of their names (extra `parquet`).

    Its columns are `observations` (a list per row; a struct, or columns `observations/camera` and so on, are a Dict),
    `actions`, `rewards`, `terminations` or `terminals`, `truncations` or `timeouts`, and, if there are,
    `next_observations`. Others are not looked at. Lists are numbers of one length; images may be flat lists where
    `observation_space` says their shape.

    Args:
        path: the file or folder.
        observation_space, action_space, device, seed: see `from_npz`, for what is returned too.

    Raises:
        ReplayBufferError: a file is damaged, claims more than it can hold, lacks a column, or has missing values.
        SpaceError: the values do not fit the spaces.
        MissingExtraError: pyarrow is not installed.
    """
    path = Path(checked("from_parquet", "path", path, AnyPath))
    origin = f"from_parquet: {path}"
    files = parquet_files(origin, path, path)
    arrays = read_columns("from_parquet", files, lambda name: is_wanted(name))
    rows = rows_of(origin, arrays, sum(file.stat().st_size for file in files))
    return to_buffer(origin, rows, observation_space, action_space, device, seed)


def parquet_files(origin: str, path: Path, folder: Path) -> list[Path]:
    """Return a path itself if it is no folder, else the Parquet files anywhere in a folder, sorted.

    Raises:
        ReplayBufferError: there is none.
    """
    files = sorted(folder.rglob("*.parquet")) if folder.is_dir() else [path]
    if not files:
        raise ReplayBufferError(f"{origin}: expected Parquet files, found none in {folder.name}")
    return files


def read_columns(owner: str, files: list[Path], is_wanted: Callable[[str], bool]) -> dict[str, Array]:
    """Return the wanted columns of Parquet files, one file after the other.

    Args:
        owner: the reader, which errors begin with.
        files: in the order of their rows.
        is_wanted: told the name of each column.

    Raises:
        ReplayBufferError: a file is damaged, or has other columns than the first.
    """
    parts = [_read_file(f"{owner}: {file}", file, is_wanted) for file in files]
    for file, part in zip(files, parts, strict=True):
        if shapes(part) != shapes(parts[0]):
            expected, found = readable(shapes(parts[0])), readable(shapes(part))
            text = f"expected columns as in {files[0].name}: {expected}, found {found}"
            raise ReplayBufferError(f"{owner}: {file}: {text}")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def shapes(columns: dict[str, Array]) -> dict[str, tuple[int, ...]]:
    """Return the shape of one row of each column."""
    return {name: tuple(array.shape[1:]) for name, array in sorted(columns.items())}


def _read_file(origin: str, path: Path, is_wanted: Callable[[str], bool]) -> dict[str, Array]:
    with _opened(origin, path) as file:
        names = [name for name in file.schema_arrow.names if is_wanted(name)]
        check_claim(origin, path, _claimed_nbytes(file, names), path.stat().st_size)
        table = file.read(columns=names)
        found: dict[str, Array] = {}
        counts = Counter(table.column_names)
        for name in names:
            if counts[name] != 1:
                raise ReplayBufferError(f"{origin}: column {readable(name)}: expected one, found two")
            found |= dict(_arrays(origin, name, table.column(name).combine_chunks()))
    return found


@contextlib.contextmanager
def _opened(origin: str, path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra(origin.partition(":")[0], "parquet", error) from error
    is_damaged = reading(origin, "a Parquet file", pyarrow.ArrowException)
    with is_damaged, open_regular(path) as stream, parquet.ParquetFile(stream) as file:
        yield file


def claimed_nbytes(origin: str, path: Path) -> int:
    """Return the bytes that a file says all of its columns take."""
    with _opened(origin, path) as file:
        return _claimed_nbytes(file, file.schema_arrow.names)


def _claimed_nbytes(file: Any, names: list[str]) -> int:
    """Return the bytes that the wanted columns of an open file take: as it says packed, or as numbers."""
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    known = set(names)
    wanted = [i for i, path in enumerate(paths) if not known.isdisjoint(_beginnings(path))]
    # Asked of a damaged chunk's metadata, pyarrow ends the process. This goes through all of it in batches, and raises.
    file.scan_contents(columns=names)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    return sum(_chunk_nbytes(group.column(i)) for group in groups for i in wanted)


def _beginnings(path: str) -> Iterator[str]:
    """Yield the path of a leaf, and those of what it may be in; names may hold dots too."""
    yield path
    yield from (path[: dot.start()] for dot in re.finditer(r"\.", path))


def _chunk_nbytes(chunk: Any) -> int:
    width = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}.get(chunk.physical_type, 8)
    return int(max(chunk.total_uncompressed_size, chunk.num_values * width))


def _arrays(origin: str, name: str, column: Any) -> Iterator[tuple[str, Array]]:
    """Yield name and numbers of a column, leaf by leaf: [M], of lists [M, ...]."""
    from pyarrow import types

    if column.null_count:
        raise ReplayBufferError(
            f"{origin}: column {readable(name)}: expected numbers, found {column.null_count} missing"
        )
    if types.is_struct(column.type):
        for field, part in zip(column.type, column.flatten(), strict=True):
            yield from _arrays(origin, f"{name}/{field.name}", part)
        return
    shape = [len(column)]
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        inner = column.flatten()
        if types.is_fixed_size_list(column.type):
            size = column.type.list_size
        else:
            lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) > 1:
                text = f"lists of one length, found {lengths[0]} to {lengths[-1]}"
                raise ReplayBufferError(f"{origin}: column {readable(name)}: expected {text}")
            size = int(lengths[0]) if len(lengths) else 0
        shape.append(size)
        if inner.null_count:
            raise ReplayBufferError(
                f"{origin}: column {readable(name)}: expected numbers, found {inner.null_count} missing"
            )
        column = inner
    is_number = types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)
    if not is_number:
        raise ReplayBufferError(f"{origin}: column {readable(name)}: expected numbers, found {column.type}")
    yield name, numbers(origin, name, column.to_numpy(zero_copy_only=False)).reshape(shape)
