"""Reads data sets from Parquet files and from LeRobot's folders, which are Parquet files and `meta/info.json`."""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, Unpack

import numpy as np

from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, importing_extra, readable
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular, read_text
from rltrainer.tools.datasets.array_files import ReadOptions, begin_reading
from rltrainer.tools.datasets.logged_rows import check_claim, columns_of, is_wanted, reading, to_buffer
from rltrainer.validation.field_rules import Rule, checked

STATE = "observation.state"
Wanted = Callable[[str], bool]
Keys = Annotated[
    Sequence[str],
    Rule(
        "a sequence of names of features, such as ('observation.state',)",
        lambda v: isinstance(v, Sequence) and not isinstance(v, str) and len(v) > 0 and all(type(k) is str for k in v),
    ),
]


def from_parquet(path: str | Path, **options: Unpack[ReadOptions]) -> ReplayBuffer:
    """Read a buffer from a Parquet file, or from all in a folder in the order of their names (extra `parquet`).

    Its columns are `observations` (a list per row; a struct, or columns `observations/camera` and so on, are a Dict),
    `actions`, `rewards`, `terminations` or `terminals`, `truncations` or `timeouts`, and, optionally,
    `next_observations`. Others are ignored. Lists are numbers of one length; images may be flat lists if
    `observation_space` has their shape.

    Args:
        path: the file or folder.
        observation_space, action_space, device, seed: see `from_npz`, also for what is returned.

    Raises:
        ReplayBufferError: a file is damaged, claims more than it can hold, lacks a column, or has missing values.
        SpaceError: the values do not fit the spaces.
        MissingExtraError: pyarrow is not installed.
    """
    path, origin = begin_reading("from_parquet", path, options)
    arrays, num_bytes = _read_files(origin, path, path, is_wanted)
    return to_buffer(origin, columns_of(origin, arrays), num_bytes, **options)


def from_lerobot(path: str | Path, *, keys: Sequence[str] = (STATE,), **options: Unpack[ReadOptions]) -> ReplayBuffer:
    """Read a buffer from the folder of a LeRobot data set, version 2 or 3 (extra `parquet`).

    A frame is a transition: `action`, `next.reward` (0 without it, and a warning is logged) and `next.done`. A done
    frame is terminal; but if frames have `next.success`, only a successful one is. All other ends are truncations. The
    data lack what came after the last frame: `from_npz` explains what happens to such rows.

    Args:
        path: the folder, with `meta/info.json` and Parquet files in `data`. Videos and images are not read.
        keys: the observed features; one is a Box, several are a Dict with these keys.
        observation_space, action_space: of one env; None takes Boxes without bounds, and [-1, 1] for actions within.
        device, seed: of the buffer.

    Raises:
        ReplayBufferError: a file is damaged, claims more than it can hold, or lacks a column.
        SpaceError: the values do not fit the spaces.
        MissingExtraError: pyarrow is not installed.
    """
    path, origin = begin_reading("from_lerobot", path, options)
    keys = list(checked("from_lerobot", "keys", keys, Keys))
    shapes = _shapes(origin, path, [*keys, "action"])
    wanted = {*keys, "action", "episode_index", "frame_index", "next.reward", "next.done", "next.success"}
    found, num_bytes = _read_files(origin, path, path / "data", wanted.__contains__)
    for name in [*keys, "action", "episode_index", "frame_index"]:
        if name not in found:
            raise ReplayBufferError(f"{origin}: expected the column {readable(name)}, found {readable(sorted(found))}")
    order = np.lexsort((found["frame_index"].reshape(-1), found["episode_index"].reshape(-1)))
    with reading(origin, "columns of the shapes in meta/info.json"):
        frames = {name: array[order].reshape(len(order), *shapes.get(name, ())) for name, array in found.items()}
    if "next.reward" not in frames:
        logging.getLogger("rltrainer").warning("%s: there is no column 'next.reward': rewards are 0", origin)
    episode, frame = frames["episode_index"], frames["frame_index"]
    for row in np.flatnonzero((episode[1:] == episode[:-1]) & (frame[1:] == frame[:-1]))[:1]:
        text = f"expected each frame once, found episode_index {episode[row]} with frame_index {frame[row]} twice"
        raise ReplayBufferError(f"{origin}: {text}. Read each data set by itself, and join them by `buffer.extend`.")
    is_last = np.ones(len(frame), np.bool_)
    is_last[:-1] = (episode[1:] != episode[:-1]) | (frame[1:] != frame[:-1] + 1)
    done = frames.get("next.done", np.zeros(len(frame))) != 0
    terminations = done & (frames["next.success"] != 0) if "next.success" in frames else done
    columns = {
        "observations": frames[keys[0]] if len(keys) == 1 else {key: frames[key] for key in keys},
        "actions": frames["action"],
        "rewards": frames.get("next.reward", np.zeros(len(order), np.float32)),
        "terminations": terminations,
        "truncations": (is_last | done) & ~terminations,  # an episode that ends without being done is truncated
    }
    return to_buffer(origin, columns, num_bytes, **options)


def _read_files(origin: str, path: Path, folder: Path, is_wanted: Wanted) -> tuple[dict[str, Array], int]:
    # All files of a folder count, in the order of their names; the second value is their length.
    files = sorted(folder.rglob("*.parquet")) if folder.is_dir() else [path]
    if not files:
        raise ReplayBufferError(f"{origin}: expected Parquet files, found none in {folder.name}")
    parts, shapes = [], []
    for each in files:
        own = f"{origin.partition(':')[0]}: {each}"
        parts.append(_read_file(own, each, is_wanted))
        shapes.append({name: tuple(array.shape[1:]) for name, array in sorted(parts[-1].items())})
        if shapes[-1] != shapes[0]:
            text = f"expected columns as in {files[0].name}: {readable(shapes[0])}, found {readable(shapes[-1])}"
            raise ReplayBufferError(f"{own}: {text}")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return columns, sum(file.stat().st_size for file in files)


def _read_file(origin: str, path: Path, is_wanted: Wanted) -> dict[str, Array]:
    with opened(origin, path) as file:
        names = [name for name in file.schema_arrow.names if is_wanted(name)]
        check_claim(origin, path, claimed_nbytes(file, names), path.stat().st_size)
        table = file.read(columns=names)
        counts, found = Counter(table.column_names), dict[str, Array]()
        for name in names:
            if counts[name] != 1:
                raise ReplayBufferError(f"{origin}: column {readable(name)}: expected one, found two")
            found |= dict(_arrays(origin, name, table.column(name).combine_chunks()))
    return found


@contextlib.contextmanager
def opened(origin: str, path: Path) -> Iterator[Any]:
    """Open a file with pyarrow; errors start with `origin`."""
    with importing_extra(origin.partition(":")[0], "parquet"):
        import pyarrow
        from pyarrow import parquet
    is_damaged = reading(origin, "a Parquet file", pyarrow.ArrowException)
    with is_damaged, open_regular(path) as stream, parquet.ParquetFile(stream) as file:
        yield file


def claimed_nbytes(file: Any, names: list[str] | None = None) -> int:
    """Return the bytes that an open file claims for some columns; None for all."""
    names = file.schema_arrow.names if names is None else names
    paths = [file.schema.column(i).path for i in range(len(file.schema))]
    known, parts = set(names), [path.split(".") for path in paths]
    # A leaf's path starts with its column's name and a dot; names may hold dots too.
    wanted = [i for i, each in enumerate(parts) if any(".".join(each[: n + 1]) in known for n in range(len(each)))]
    # pyarrow ends the process if asked for a damaged chunk's metadata. This scan reads all in batches, and raises.
    file.scan_contents(columns=names)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    widths, total = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}, 0
    for chunk in (group.column(i) for group in groups for i in wanted):
        total += max(chunk.total_uncompressed_size, chunk.num_values * widths.get(chunk.physical_type, 8))
    return total


def _arrays(origin: str, name: str, column: Any) -> Iterator[tuple[str, Array]]:
    # Leaf by leaf: numbers are [M], lists [M, ...].
    from pyarrow import types

    def fail(found: object, expected: str = "numbers") -> NoReturn:
        raise ReplayBufferError(f"{origin}: column {readable(name)}: expected {expected}, found {found}")

    if column.null_count:
        fail(f"{column.null_count} missing")
    if types.is_struct(column.type):
        for field, part in zip(column.type, column.flatten(), strict=True):
            yield from _arrays(origin, f"{name}/{field.name}", part)
        return
    shape = [len(column)]
    while types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type):
        if types.is_fixed_size_list(column.type):
            shape.append(column.type.list_size)
        else:
            lengths = np.unique(column.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) > 1:
                fail(f"{lengths[0]} to {lengths[-1]}", "lists of one length")
            shape.append(int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()
        if column.null_count:
            fail(f"{column.null_count} missing")
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_boolean(column.type)):
        fail(column.type)
    yield name, column.to_numpy(zero_copy_only=False).reshape(shape)


def _shapes(origin: str, folder: Path, names: list[str]) -> dict[str, tuple[int, ...]]:
    with reading(f"{origin}: meta/info.json", "JSON"), open_regular(folder / "meta" / "info.json") as file:
        info: Any = read_json(read_text(file), allows_nan=True)
    features = info.get("features") if isinstance(info, dict) else None
    if not isinstance(features, dict):
        raise ReplayBufferError(f"{origin}: meta/info.json: expected an object with features, found {readable(info)}")
    unread, found = ("video", "image", "string"), {}
    for name in names:
        match features.get(name):
            case {"dtype": str(dtype), "shape": list(shape)} if all(type(n) is int and n > 0 for n in shape):
                if dtype not in unread:
                    found[name] = tuple(shape)
                    continue
                kinds = {name: each.get("dtype") for name, each in features.items() if isinstance(each, dict)}
                there = readable(sorted(name for name, kind in kinds.items() if kind not in unread))
                text = f"expected numbers, found {dtype}; keys that are numbers: {there}"
            case other:
                text = f"expected a dtype and a shape, found {readable(other)}; there are {readable(sorted(features))}"
        raise ReplayBufferError(f"{origin}: feature {name!r}: {text}")
    return found
