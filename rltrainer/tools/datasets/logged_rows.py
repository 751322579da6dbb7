"""Logged rows on their way into a replay buffer: damage, claims of size, missing successors, inferred spaces."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.memory_forecast import check_fits
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, RLTrainerError, SpaceError, readable
from rltrainer.files.json_text import MAX_DEPTH
from rltrainer.files.regular_file import neighbours_hint
from rltrainer.spaces import check_claims, leaf_spaces
from rltrainer.tree import Tree, leaves, map_tree, named_leaves
from rltrainer.validation.field_rules import checked, instance_of

AnySpace = Annotated[
    gym.Space[Any], instance_of(gym.Space, hint="Write gymnasium.spaces.Box(...), or take that of an env.")
]

# Columns by their names in files: the names of `from_arrays`, or D4RL's.
NAMES = {
    "observations": ("observations",),
    "actions": ("actions",),
    "rewards": ("rewards",),
    "terminations": ("terminations", "terminals"),
    "truncations": ("truncations", "timeouts"),
    "next_observations": ("next_observations",),
}

# Deflate makes at most 1032 bytes of one, other compressions fewer: a short file cannot claim much.
MAX_RATIO = 1032
# Bytes that a file of any length may claim.
FREE_NBYTES = 1 << 20
# Errors that packages raise about damaged files, besides classes of their own.
USUAL_ERRORS: tuple[type[Exception], ...] = (
    OSError, ValueError, LookupError, TypeError, RuntimeError, MemoryError, EOFError,
)  # fmt: skip


def check_claim(origin: str, path: Path, claimed: int, length: int) -> None:
    """Raise a `ReplayBufferError` for columns larger than the file could hold compressed, or than the free memory."""
    limit = max(FREE_NBYTES, MAX_RATIO * length)
    if claimed > limit:
        text = f"expected columns of at most {limit:,} bytes in a file of {length:,}, found {claimed:,}"
        raise ReplayBufferError(f"{origin}: {text}")
    check_fits(origin.partition(":")[0], "path", str(path), 2 * claimed, torch.device("cpu"))  # type: ignore[arg-type]  # only printed


@contextlib.contextmanager
def telling(origin: str) -> Iterator[None]:
    """Raise our errors again with their origin: the reader and its path."""
    try:
        yield
    except RLTrainerError as error:
        if str(error).startswith(origin):
            raise
        raise type(error)(f"{origin}: {error}") from error


@contextlib.contextmanager
def reading(origin: str, expected: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise a `ReplayBufferError` for a package's errors about a damaged file."""
    try:
        with telling(origin):
            yield
    except RLTrainerError:
        raise
    except FileNotFoundError as error:
        path = Path(origin.partition(": ")[2])  # or with the member of a folder behind it
        hint = neighbours_hint(path) if ": " not in str(path) else ""
        raise ReplayBufferError(f"{origin}: there is no such file{hint}") from error
    except (*USUAL_ERRORS, *errors) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        text = f"expected {expected}, found {type(error).__name__}: {readable(reason)}"
        raise ReplayBufferError(f"{origin}: {text}") from error


def is_wanted(member: str) -> bool:
    """Return whether a member of a file, such as `observations/camera`, belongs to a column."""
    return member.partition("/")[0] in {name for names in NAMES.values() for name in names}


def columns_of(origin: str, members: Mapping[str, Array]) -> dict[str, Any]:
    """Arrange a file's members as columns; a missing one, or unequal numbers of rows, are a `ReplayBufferError`."""
    trees = _trees(origin, members)
    found: dict[str, Any] = {
        column: next((trees[name] for name in names if name in trees), None) for column, names in NAMES.items()
    }
    has_successors = found["next_observations"] is not None
    for column, names in NAMES.items():
        # With successors, they say what follows a row: time limits may be missing.
        is_optional = column == "next_observations" or (column == "truncations" and has_successors)
        if found[column] is None and not is_optional:
            hint = " Where no episode has a time limit, it is an array of zeros." if column == "truncations" else ""
            there = readable(sorted(members)) if members else "none that is known"
            text = f"expected the member {' or '.join(map(repr, names))}, found {there}.{hint}"
            raise ReplayBufferError(f"{origin}: {text}")
    num_rows = next((len(leaf) for leaf in leaves(found["observations"]) if leaf.ndim), 0)
    for column, tree in found.items():
        for path, array in named_leaves(tree) if tree is not None else ():
            if array.ndim == 0 or len(array) != num_rows:
                text = f"expected {num_rows} rows, as observations have, found shape {array.shape}"
                raise ReplayBufferError(f"{origin}: {column}{path}: {text}")
    if found["truncations"] is None:
        found["truncations"] = np.zeros(num_rows, np.bool_)
    return found


def to_buffer(
    origin: str,
    columns: Mapping[str, Any],
    num_bytes: int,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
) -> ReplayBuffer:
    """Make a buffer of the columns [M, ...] of `from_arrays`, in time order; raises as `from_npz` does."""
    # Spaces that are None are inferred, and bounded by the length of the files, `num_bytes`.
    with telling(origin):
        checked("dataset", "observation_space", observation_space, AnySpace | None)
        checked("dataset", "action_space", action_space, AnySpace | None)
        rows = dict(columns) | {name: _flags(name, columns[name]) for name in ("terminations", "truncations")}
        rows["rewards"] = _flat(np.asarray(rows["rewards"]))
        obs_space = observation_space or infer_space("observation", rows["observations"], num_bytes)
        action_space = action_space or infer_space("action", rows["actions"], num_bytes)
        rows["actions"] = _fit(rows["actions"], leaf_spaces(action_space))
        for name in ("observations", "next_observations"):
            rows[name] = None if rows.get(name) is None else _fit(rows[name], leaf_spaces(obs_space))
        if rows["next_observations"] is None:
            rows = with_successors(origin, rows)
        spaces: Any = {"observation_space": obs_space, "action_space": action_space}
        return ReplayBuffer.from_arrays(**rows, **spaces, device=device, seed=seed)


def with_successors(origin: str, rows: dict[str, Any]) -> dict[str, Any]:
    """Take the next row as each row's successor, and leave out rows without one; a `ReplayBufferError` if all are."""
    # Truncated rows, and a last row that is not terminated, have no known successor.
    terminated, truncated = rows["terminations"], rows["truncations"].copy()
    num_rows = len(terminated)
    is_unknown = ~terminated & (truncated | (np.arange(num_rows) == num_rows - 1))
    kept = np.flatnonzero(~is_unknown)
    if not len(kept):
        text = f"expected rows that others follow, or next_observations; found {num_rows} rows without a successor"
        raise ReplayBufferError(f"{origin}: {text}")
    if len(kept) < num_rows:
        text = "%s: %d of %d transitions have no known successor and are left out; their episodes end before them"
        logging.getLogger("rltrainer").warning(text, origin, num_rows - len(kept), num_rows)
    # Their episodes end one transition earlier, by truncation, with a known observation.
    before = np.flatnonzero(is_unknown & truncated) - 1
    before = before[before >= 0]
    truncated[before[~terminated[before]]] = True
    after = np.minimum(kept + 1, num_rows - 1)  # any observation serves a terminated last row
    next_observations = map_tree(lambda x: x[after], rows["observations"])
    rows = {name: map_tree(lambda x: x[kept], rows[name]) for name in NAMES if name != "next_observations"}
    return rows | {"truncations": truncated[kept], "next_observations": next_observations}


def _trees(origin: str, members: Mapping[str, Array]) -> dict[str, Tree]:
    # `observations/camera` is the leaf `camera` of `observations`.
    trees: dict[str, Any] = {}
    for name, array in members.items():
        *groups, key = name.split("/")
        if len(groups) > MAX_DEPTH:
            text = f"expected names nested at most {MAX_DEPTH} deep, found {readable(name)}"
            raise ReplayBufferError(f"{origin}: {text}")
        place = trees
        for group in groups:
            place = place.setdefault(group, {})
            if not isinstance(place, dict):
                break
        if not isinstance(place, dict) or key in place:
            raise ReplayBufferError(f"{origin}: member {readable(name)}: expected an array or a group, found both")
        place[key] = np.asarray(array, array.dtype.newbyteorder("="))  # this machine's
    return trees


def _fit(values: Tree, parts: Tree) -> Tree:
    """Reshape rows that are stored flat, [M, numbers], to their leaf spaces; drop keys without one."""
    if isinstance(values, dict) and isinstance(parts, dict):  # `from_arrays` names a missing key
        return {key: _fit(values[key], part) for key, part in parts.items() if key in values}
    if isinstance(values, dict | tuple) or isinstance(parts, dict | tuple):
        return values
    array, shape = np.asarray(values), parts.shape
    is_flat = array.ndim == 2 and shape != array.shape[1:] and array.shape[1] == np.prod(shape, dtype=int)
    return array.reshape(len(array), *shape) if is_flat else array


def _flat(array: Array) -> Array:
    return array.reshape(len(array)) if array.ndim == 2 and array.shape[1] == 1 else array


def _flags(name: str, values: Any) -> Array:
    array = _flat(np.asarray(values))
    if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        found = f"type {array.dtype}" if array.dtype.kind not in "biuf" else f"{array[~np.isin(array, (0, 1))][0]}"
        raise ReplayBufferError(f"{name}: expected True or False, or 0 and 1; found {found}")
    return array.astype(np.bool_)


def infer_space(name: str, values: Tree, num_bytes: int) -> gym.Space[Any]:
    """Return a space of the observations or actions [M, ...] in files of `num_bytes`; a `SpaceError` if none fits."""
    # A Box takes memory for a row even without rows: a damaged file could claim any shape.
    check_claims([{"space": "Box", "shape": list(np.shape(leaf)[1:])} for leaf in leaves(values)], num_bytes)
    if name == "observation" and isinstance(values, dict):
        return gym.spaces.Dict([(key, infer_space(name, part, num_bytes)) for key, part in values.items()])
    array = np.asarray(values)
    # Floats: a Box without bounds; actions within [-1, 1] get these bounds. Bytes: an image. Integers: choices.
    if array.dtype.kind == "f":
        is_unit = name == "action" and array.size > 0 and bool((np.abs(array) <= 1).all())
        bound = np.float32(1 if is_unit else np.inf)
        return gym.spaces.Box(-bound, bound, array.shape[1:], np.float32)
    if name == "observation" and array.dtype == np.uint8 and array.ndim > 1:
        return gym.spaces.Box(0, 255, array.shape[1:], np.uint8)
    is_one = array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)
    if array.dtype.kind not in "iu" or not is_one or not array.size or array.min() < 0:
        text = f"expected floats or single integers from 0 on, found {array.dtype} of shape {array.shape}"
        raise SpaceError(f"{name}s: {text}. Pass {name}_space.")
    if int(array.max()) >= 2**63 - 1:  # no Discrete holds it
        raise SpaceError(f"{name}s: expected integers below 2**63 - 1, found {array.max()}")
    return gym.spaces.Discrete(int(array.max()) + 1)
