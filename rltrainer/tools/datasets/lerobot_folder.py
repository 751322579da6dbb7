"""Reads LeRobot's data sets: Parquet files of frames, and what `meta/info.json` says of their columns."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, readable
from rltrainer.files.json_text import read_json
from rltrainer.files.regular_file import open_regular, read_text
from rltrainer.tools.datasets.claims import reading
from rltrainer.tools.datasets.logged_rows import LoggedRows, to_buffer
from rltrainer.tools.datasets.parquet_file import parquet_files, read_columns
from rltrainer.validation.field_rules import AnyPath, Rule, checked
from rltrainer.validation.suggestions import explains_arguments

STATE = "observation.state"
Keys = Annotated[
    Sequence[str],
    Rule(
        "a sequence of names of features, such as ('observation.state',)",
        lambda v: isinstance(v, Sequence) and not isinstance(v, str) and len(v) > 0 and all(type(k) is str for k in v),
    ),
]


@explains_arguments
def from_lerobot(
    path: str | Path,
    *,
    keys: Sequence[str] = (STATE,),
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    device: torch.device | str = "cpu",
    seed: int | None = None,
) -> ReplayBuffer:
    """Read a buffer from the folder of a LeRobot data set, version 2 or 3 (extra `parquet`).

    A frame is a transition: `action`, `next.reward` (0 without it, and a warning is logged) and `next.done`. A done
    frame is terminal; but if frames have `next.success`, only that of a success is. An episode that ends otherwise ends
    by truncation. What came after the last frame is not in the data: see `from_npz` for what becomes of such rows.

    Args:
        path: the folder, with `meta/info.json` and Parquet files in `data`. Videos and images are not read.
        keys: the features that are observed; one is a Box, several are a Dict with these keys.
        observation_space, action_space: of one env; None takes Boxes without bounds, of actions with [-1, 1] if they
            lie there.
        device, seed: of the buffer.

    Raises:
        ReplayBufferError: a file is damaged, claims more than it can hold, or lacks a column.
        SpaceError: the values do not fit the spaces.
        MissingExtraError: pyarrow is not installed.
    """
    path = Path(checked("from_lerobot", "path", path, AnyPath))
    keys = list(checked("from_lerobot", "keys", keys, Keys))
    origin = f"from_lerobot: {path}"
    shapes = _shapes(origin, path, [*keys, "action"])
    wanted = {*keys, "action", "episode_index", "frame_index", "next.reward", "next.done", "next.success"}
    files = parquet_files(origin, path, path / "data")
    found = read_columns("from_lerobot", files, lambda name: name in wanted)
    for name in [*keys, "action", "episode_index", "frame_index"]:
        if name not in found:
            raise ReplayBufferError(f"{origin}: expected the column {readable(name)}, found {readable(sorted(found))}")
    order = np.lexsort((found["frame_index"].reshape(-1), found["episode_index"].reshape(-1)))
    with reading(origin, "columns of the shapes in meta/info.json"):
        columns = {name: array[order].reshape(len(order), *shapes.get(name, ())) for name, array in found.items()}
    if "next.reward" not in columns:
        logging.getLogger("rltrainer").warning("%s: there is no column 'next.reward': rewards are 0", origin)
    terminations, truncations = _ends(columns)
    rows = LoggedRows(
        observations=columns[keys[0]] if len(keys) == 1 else {key: columns[key] for key in keys},
        actions=columns["action"],
        rewards=columns.get("next.reward", np.zeros(len(order), np.float32)),
        terminations=terminations,
        truncations=truncations,
        num_bytes=sum(file.stat().st_size for file in files),
    )
    return to_buffer(origin, rows, observation_space, action_space, device, seed)


def _ends(columns: dict[str, Array]) -> tuple[Array, Array]:
    """Return which frames are terminal, and after which others nothing follows."""
    episode, frame = columns["episode_index"], columns["frame_index"]
    is_last = np.ones(len(frame), np.bool_)
    is_last[:-1] = (episode[1:] != episode[:-1]) | (frame[1:] != frame[:-1] + 1)
    done = columns.get("next.done", np.zeros(len(frame))) != 0
    terminations = done & (columns["next.success"] != 0) if "next.success" in columns else done
    return terminations, (is_last | done) & ~terminations


def _shapes(origin: str, folder: Path, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of features.

    Raises:
        ReplayBufferError: `meta/info.json` is damaged, or a feature is missing or no numbers.
    """
    with reading(f"{origin}: meta/info.json", "JSON"), open_regular(folder / "meta" / "info.json") as file:
        info: Any = read_json(read_text(file), allows_nan=True)
    features = info.get("features") if isinstance(info, dict) else None
    if not isinstance(features, dict):
        raise ReplayBufferError(f"{origin}: meta/info.json: expected an object with features, found {readable(info)}")
    found = {}
    for name in names:
        match features.get(name):
            case {"dtype": str(dtype), "shape": list(shape)} if all(type(n) is int and n > 0 for n in shape):
                found[name] = tuple(shape)
                if dtype in ("video", "image", "string"):
                    text = f"expected numbers, found {dtype}; keys that are numbers: {readable(_numbers(features))}"
                    raise ReplayBufferError(f"{origin}: feature {name!r}: {text}")
            case other:
                text = f"expected a dtype and a shape, found {readable(other)}; there are {readable(sorted(features))}"
                raise ReplayBufferError(f"{origin}: feature {name!r}: {text}")
    return found


def _numbers(features: dict[str, Any]) -> list[str]:
    kinds = {name: each.get("dtype") for name, each in features.items() if isinstance(each, dict)}
    return sorted(name for name, kind in kinds.items() if kind not in ("video", "image", "string"))
