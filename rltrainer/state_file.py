"""One state in one file: safetensors for the tensors, JSON in its metadata for everything else. Data, never code.

Knows what a state is (see `types.State`), not whose it is.
"""

import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rltrainer.atomic_write import replaced_file
from rltrainer.errors import readable
from rltrainer.types import State

FORMAT_VERSION = 2
"""2: the files of algorithms and policies say what these are built with."""
MAX_HEADER_SIZE = 100_000_000
"""The longest header, in bytes, that safetensors reads."""
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write_state(path: str | Path, kind: str, state: State) -> None:
    """Write a state; an existing file is replaced in one step, so that a crash leaves the old one or the new one.

    Args:
        path: the file; missing parent folders are made.
        kind: what the state belongs to, such as `"replay_buffer"`; checked when the file is read.
        state: tensors and plain values in dicts and lists.

    Raises:
        TypeError: something in the state is neither a tensor nor plain; the text names it.
        OSError: the file could not be written; what was there is unchanged.
    """
    tensors: dict[str, Tensor] = {}
    plain = _take_tensors(state, kind, tensors)
    metadata = {"rltrainer": kind, "version": str(FORMAT_VERSION), "state": json.dumps(plain)}
    with replaced_file(Path(path)) as file:
        _write_safetensors(file, tensors, metadata)


def _write_safetensors(file: BinaryIO, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write straight from the tensors' memory: safetensors' own writer needs copies of views, and of shared memory."""
    items = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # so each begins at a multiple of its own
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for name, tensor in items:
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, position := position + tensor.numel() * tensor.element_size()],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_SIZE:
        raise OSError(f"the plain values take {len(text)} bytes, more than the {MAX_HEADER_SIZE} that can be read back")
    file.write(struct.pack("<Q", len(text)) + text)
    for _, tensor in items:
        if tensor.numel() == 0:  # NumPy's have no strides that a view as bytes allows
            continue
        file.write(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def read_state(path: str | Path, kind: str, error: type[Exception], mapped: bool = False, or_kind: str = "") -> State:
    """Read a state that `write_state` wrote; the file runs nothing.

    Args:
        path, kind: what `write_state` was told.
        error: what to raise.
        mapped: leave the tensors in the file, for who copies them at once; they change and end with it.
        or_kind: another kind that will do.

    Raises:
        error: the file is missing, damaged, of another kind or of a newer version; the text says which.
    """
    path = Path(path)
    if path.is_dir():
        part = path / f"{kind}.safetensors"
        raise error(f"{path}: is a folder" + (f", a checkpoint. Pass {part}" if part.is_file() else ", no file"))
    if not path.is_file():
        raise error(f"{path}: there is no such file")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            found = metadata.get("rltrainer")
            if found not in (kind, or_kind):
                kinds = " or ".join(repr(each) for each in (kind, or_kind) if each)
                raise error(f"{path}: expected a file of kind {kinds}, found {found or 'no rltrainer file'!r}")
            if int(version := metadata["version"]) > FORMAT_VERSION:
                text = f"written in format {version}, this release reads up to {FORMAT_VERSION}. Upgrade it."
                raise error(f"{path}: {text}")
            names = set(file.keys())
            get_tensor = file.get_tensor if mapped else lambda name: file.get_tensor(name).clone()
            state = _put_tensors(json.loads(metadata["state"]), names, get_tensor)
    except error:
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError, OSError) as cause:
        text = f"damaged or truncated ({type(cause).__name__}: {cause})"
        raise error(f"{path}: not a readable {kind} file, {text}") from cause
    if not isinstance(state, dict):
        raise error(f"{path}: not a readable {kind} file: its state is no mapping")
    return state


def _take_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` with each tensor replaced by a reference; collect the tensors under their path."""
    if isinstance(value, Tensor):
        if value.dtype not in DTYPES or value.layout != torch.strided:
            raise TypeError(f"{name}: a state file holds no tensor of {value.dtype} and {value.layout}")
        while name in tensors:  # {"a": {"b": t}, "a.b": t} would share a name
            name += "'"
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{name}: keys of a state must be strings; got {readable(key)} ({type(key).__name__})")
        return {"dict": {key: _take_tensors(item, f"{name}.{key}", tensors) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{name}: a state holds tensors and plain values; got {readable(value)} ({type(value).__name__})")


def _put_tensors(value: Any, names: set[str], get_tensor: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            if value["tensor"] not in names:
                raise KeyError(f"tensor {value['tensor']!r} is missing")
            names.remove(value["tensor"])  # each is named once: a short file cannot ask for a hundred copies
            return get_tensor(value["tensor"])
        return {key: _put_tensors(item, names, get_tensor) for key, item in value["dict"].items()}
    if isinstance(value, list):
        return [_put_tensors(item, names, get_tensor) for item in value]
    return value
