"""One state in one file: safetensors for the tensors, JSON in its metadata for everything else. Data, never code.

Knows what a state is (see `types.State`), not whose it is.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rltrainer.types import State

FORMAT_VERSION = 1


def write_state(path: str | Path, kind: str, state: State) -> None:
    """Write a state; an existing file is replaced in one step, so that a crash leaves the old one or the new one.

    Args:
        path: the file; missing parent folders are made.
        kind: what the state belongs to, such as `"replay_buffer"`; checked when the file is read.
        state: tensors and plain values in dicts and lists.

    Raises:
        TypeError: something in the state is neither a tensor nor plain; the text names it.
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    plain = _take_tensors(state, kind, tensors)
    metadata = {"rltrainer": kind, "version": str(FORMAT_VERSION), "state": json.dumps(plain)}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, str(temporary), metadata)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_state(path: str | Path, kind: str, error: type[Exception], device: torch.device | str = "cpu") -> State:
    """Read a state that `write_state` wrote; the file is opened by memory map and runs nothing.

    Raises:
        error: the file is missing, damaged, of another kind or of a newer version; the text says which.
    """
    path = Path(path)
    if not path.is_file():
        raise error(f"{path}: there is no such file")
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            found = metadata.get("rltrainer")
            if found != kind:
                raise error(f"{path}: expected a file of kind {kind!r}, found {found or 'no rltrainer file'!r}")
            if int(metadata["version"]) > FORMAT_VERSION:
                version = metadata["version"]
                raise error(
                    f"{path}: written in format {version}, this release reads up to {FORMAT_VERSION}. Upgrade it."
                )
            names = set(file.keys())
            state = _put_tensors(json.loads(metadata["state"]), names, file.get_tensor)
    except error:
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError, OSError) as cause:
        raise error(
            f"{path}: not a readable {kind} file, damaged or cut short ({type(cause).__name__}: {cause})"
        ) from cause
    if not isinstance(state, dict):
        raise error(f"{path}: not a readable {kind} file: its state is no mapping")
    return state


def _take_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` with each tensor replaced by a reference; collect the tensors under their path."""
    if isinstance(value, Tensor):
        # safetensors refuses shared memory: views of one storage (tied weights) are written one by one.
        while name in tensors:  # {"a": {"b": t}, "a.b": t} would share a name
            name += "'"
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{name}: keys of a state must be strings; got {key!r} ({type(key).__name__})")
        return {"dict": {key: _take_tensors(item, f"{name}.{key}", tensors) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name}: a state holds tensors and plain values; got {value!r} ({type(value).__name__})")


def _put_tensors(value: Any, names: set[str], get_tensor: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            if value["tensor"] not in names:
                raise KeyError(f"tensor {value['tensor']!r} is missing")
            return get_tensor(value["tensor"])
        return {key: _put_tensors(item, names, get_tensor) for key, item in value["dict"].items()}
    if isinstance(value, list):
        return [_put_tensors(item, names, get_tensor) for item in value]
    return value
