"""Reads a data set of whatever kind its name says."""

import os
from pathlib import Path
from typing import Any

import gymnasium as gym

from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.tools.datasets.array_files import from_hdf5, from_npz
from rltrainer.tools.datasets.minari_data import from_minari
from rltrainer.tools.datasets.parquet_files import from_lerobot, from_parquet
from rltrainer.validation.field_rules import AnyPath, checked

READERS: dict[str, Any] = {".h5": from_hdf5, ".hdf5": from_hdf5, ".npz": from_npz, ".parquet": from_parquet}


def load(
    path: str | os.PathLike[str],
    *,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
) -> ReplayBuffer:
    """Read a buffer from data of any known kind; takes options and raises errors as the kind's own reader does.

    | path | read by |
    |---|---|
    | `*.safetensors` | `ReplayBuffer.load` |
    | `*.hdf5`, `*.h5` | `from_hdf5` |
    | `*.npz` | `from_npz` |
    | `*.parquet` | `from_parquet` |
    | a folder with `meta/info.json` | `from_lerobot` |
    | another folder, or the name of a data set | `from_minari` |

    Args:
        path: the data.
        observation_space, action_space: of one env; None takes what the data say. A saved buffer has its own.
    """
    path = Path(checked("datasets.load", "path", path, AnyPath))
    if path.suffix == ".safetensors":
        return ReplayBuffer.load(path)
    is_lerobot = (path / "meta" / "info.json").is_file()
    read = READERS.get(path.suffix, from_lerobot if is_lerobot else from_minari)
    buffer: ReplayBuffer = read(path, observation_space=observation_space, action_space=action_space)
    return buffer
