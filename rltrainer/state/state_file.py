"""One state in one file: safetensors for the tensors, JSON in its metadata for everything else. Data, never code.

The last tensor is the SHA-256 of all bytes before it, so a file shows by itself that it changed after it was written.
"""

import contextlib
import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor

from rltrainer.errors import readable
from rltrainer.files.atomic_write import replaced_file
from rltrainer.files.json_text import check_depth, read_json
from rltrainer.files.regular_file import neighbours_hint, open_regular
from rltrainer.types import State

# 4: the rows of a replay buffer are numbered. No release wrote 1 to 3, and they are refused.
FORMAT_VERSION = 4
# Name of the checksum among the tensors, and its bytes; other tensors' names start with the file's kind.
CHECKSUM, CHECKSUM_SIZE = "sha256", hashlib.sha256().digest_size
# Bytes that are read, or copied from a device, at once.
CHUNK_SIZE = 1 << 24
# The longest header, in bytes, that safetensors reads.
MAX_HEADER_SIZE = 100_000_000
_READERS = {"algorithm": "rl.load", "policy": "rl.load_policy", "replay_buffer": "rl.ReplayBuffer.load"}
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def write_state(path: str | Path, kind: str, state: State) -> str:
    """Write the state of an owner, such as `"replay_buffer"`, and return the file's SHA-256 in hex.

    Raises:
        TypeError: a value in the state is neither a tensor nor plain, or is nested too deep; the text names it.
        OSError: the file could not be written; an earlier one is unchanged.
    """
    packed = pack_state(kind, state)
    with replaced_file(Path(path)) as file:
        return packed.write(file)


@dataclass(frozen=True)
class PackedState:
    """A state as a file holds it, before it is written."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def write(self, file: BinaryIO) -> str:
        """Write the file, and return its SHA-256 in hex; an `OSError` if the plain values are too large to be read."""
        # Straight from the tensors' memory: the writer of safetensors would copy all into bytes first, a buffer's too.
        items = sorted(self.tensors.items(), key=lambda item: -item[1].element_size())  # which aligns them all
        header: dict[str, Any] = {"__metadata__": self.metadata}
        position = 0
        for name, tensor in [*items, (CHECKSUM, torch.empty(CHECKSUM_SIZE, dtype=torch.uint8))]:
            place = [position, position := position + tensor.nbytes]
            header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > MAX_HEADER_SIZE:
            raise OSError(f"the plain values take {len(text)} bytes, more than the {MAX_HEADER_SIZE} that can be read")
        checksum = hashlib.sha256()

        def put(data: Any) -> None:
            file.write(data)
            checksum.update(data)

        put(struct.pack("<Q", len(text)) + text)
        for _, tensor in items:
            if tensor.numel() == 0:  # NumPy's have no strides that a view as bytes allows
                continue
            if tensor.numel() == 1:
                tensor = tensor.as_strided((1,), (1,))  # any stride of one number is contiguous, but not to a view
            # In chunks: a GPU's tensor is not copied whole, and no second copy of a buffer is made.
            for part in torch.split(tensor.contiguous().reshape(-1).view(torch.uint8), CHUNK_SIZE):
                put(part.cpu().numpy().data)
        put(checksum.digest())
        return checksum.hexdigest()


def pack_state(kind: str, state: State) -> PackedState:
    """Return a state as a file holds it; the tensors share its memory. For errors see `write_state`."""
    tensors: dict[str, Tensor] = {}
    plain = _take_tensors(state, kind, tensors)
    try:
        check_depth(plain)
    except ValueError as error:
        raise TypeError(f"{kind}: the state {error}") from None
    return PackedState(tensors, {"rltrainer": kind, "version": str(FORMAT_VERSION), "state": json.dumps(plain)})


def read_state(
    path: str | Path,
    kind: str,
    error: type[Exception],
    mapped: bool = False,
    or_kind: str = "",
    is_checked: bool = False,
) -> State:
    """Read a state that `write_state` wrote; the file runs nothing.

    Args:
        path: the file.
        kind: as it was written.
        error: the class to raise if the file is missing, damaged, or of another kind or version.
        mapped: leave the tensors in the file, for a caller that copies them at once; they change with it.
        or_kind: another kind that is accepted.
        is_checked: whether the caller compared the file with a checksum already.
    """
    path = Path(path)
    if path.is_dir():
        part = path / f"{kind}.safetensors"
        raise error(f"{path}: is a folder" + (f", a checkpoint. Pass {part}" if part.is_file() else ", no file"))
    try:
        with open_regular(path) as stream, safe_open(str(path), framework="pt") as file:
            metadata, names = file.metadata() or {}, set(file.keys())
            found = metadata.get("rltrainer")
            if found not in (kind, or_kind):
                kinds = " or ".join(repr(each) for each in (kind, or_kind) if each)
                hint = f". {_READERS[found]} reads it." if found in _READERS else ""
                found = readable(found or "no rltrainer file")
                raise error(f"{path}: expected a file of kind {kinds}, found {found}{hint}")
            refuse_version(path, int(metadata["version"]), FORMAT_VERSION, error)
            names.discard(CHECKSUM)
            if not is_checked:
                _check_bytes(stream)

            def read_tensor(name: str) -> Tensor:
                if name not in names:
                    raise KeyError(f"tensor {name!r} is missing")
                names.remove(name)  # each is named once: a short file cannot ask for a hundred copies
                tensor: Tensor = file.get_tensor(name)
                # Any byte is a valid bool to safetensors; PyTorch computes with such a byte in undefined ways.
                if tensor.dtype is torch.bool and (tensor.view(torch.uint8) > 1).any():
                    raise ValueError(f"tensor {name!r} holds flags other than 0 and 1")
                return tensor if mapped else tensor.clone()

            state = _put_tensors(read_json(metadata["state"], allows_nan=True), read_tensor)
    except error:
        raise
    except FileNotFoundError:
        raise error(f"{path}: there is no such file{neighbours_hint(path)}") from None
    except OSError as cause:
        raise error(f"{path}: {cause.strerror or cause}") from cause
    except Exception as cause:  # a file may say anything
        text = f"damaged or truncated ({type(cause).__name__}: {cause})"
        with contextlib.suppress(OSError), open_regular(path) as stream:
            text += ". It is a zip file, as torch.save and Stable-Baselines3 write" if stream.read(2) == b"PK" else ""
        raise error(f"{path}: not a readable {kind} file, {text}") from cause
    if not isinstance(state, dict) or names:
        problem = f"nothing names its tensor {min(names)!r}" if names else "its state is no mapping"
        raise error(f"{path}: not a readable {kind} file: {problem}")
    return state


def refuse_version(path: Path, found: int, own: int, error: type[Exception]) -> None:
    """Raise `error` if a file was written in another format than this release's own."""
    if found > own:
        raise error(f"{path}: written in format {found}, this release reads format {own}. Upgrade it.")
    if found < own:
        text = f"written in format {found} by a version before 0.1.0, this release reads format {own}"
        raise error(f"{path}: {text}. Load it with the version that wrote it.")


def _check_bytes(stream: BinaryIO) -> None:
    """Raise a `ValueError` unless a file ends with the checksum of what it holds before."""
    rest, checksum = max(os.fstat(stream.fileno()).st_size - CHECKSUM_SIZE, 0), hashlib.sha256()
    chunk = memoryview(bytearray(min(rest, CHUNK_SIZE)))
    while rest and (size := stream.readinto(chunk[:rest])):  # type: ignore[attr-defined]  # what `open` returns has it
        checksum.update(chunk[:size])
        rest -= size
    if stream.read() != checksum.digest():
        raise ValueError("its contents changed after it was written: SHA-256 differs")


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


def _put_tensors(value: Any, read_tensor: Callable[[Any], Tensor]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"tensor"}:
            return read_tensor(value["tensor"])
        return {key: _put_tensors(item, read_tensor) for key, item in value["dict"].items()}
    if isinstance(value, list):
        return [_put_tensors(item, read_tensor) for item in value]
    return value
