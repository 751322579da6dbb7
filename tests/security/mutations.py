"""Damage to files: bits, pieces, and what a text says; seeded, and shared by the fast and the slow fuzz."""

import hashlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null')
WORDS = [
    b"-1", b"0", b"1", b"3", b"255", b"65536", b"1000003", b"4611686018427387904", b"9223372036854775808",
    b"1e308", b"1e999", b"-0.0", b"0.5", b"NaN", b"Infinity", b"null", b"true", b"false", b'""', b'"x"', b'"../x"',
    b'"/etc/passwd"', b'"os.system"', b'"__class__"', b"[]", b"{}", b"[[]]", b'{"dict": {}}', b'{"tensor": "x"}',
    b'{"live": "eval"}', b'{"known": "PPO"}', b'{"built": {"known": "BC"}, "args": [], "options": {}}',
    b'{"space": "Box", "low": 0, "high": 1, "shape": [1000000, 1000000], "dtype": "float32"}', b'"float64"',
    b'"object"',
    b"[" * 300 + b"]" * 300, b"9" * 400, b'"' + b"x" * 1000 + b'"', b'"a": 1, "a": 2',
]  # fmt: skip


def mutated(random: Random, data: bytes) -> bytes:
    """Return damaged bytes: one to three changes of any kind."""
    for _ in range(random.choice((1, 1, 2, 3))):
        data = random.choice(_CHANGES)(random, data)
    return data


def signed(data: bytes) -> bytes:
    """Return a state file whose last bytes are the right checksum of the others."""
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def in_place_of(files: dict[Path, bytes]) -> Callable[[dict[Path, bytes]], None]:
    """Return what puts some files in the place of these, and those back that it put there the last time."""
    written: set[Path] = set()

    def put(changed: dict[Path, bytes]) -> None:
        for path in written - set(changed):
            if path in files:
                path.write_bytes(files[path])
            else:
                path.unlink()
        for path, data in changed.items():
            path.write_bytes(data)
        written.clear()
        written.update(changed)

    return put


def with_other_text(random: Random, data: bytes) -> bytes:
    """Return a state file in which header or plain values say something else, and lengths are right."""
    try:
        length = struct.unpack("<Q", data[:8])[0]
        header, rest = data[8 : 8 + length], data[8 + length :]
        if random.random() < 0.7:
            found = json.loads(header)
            metadata = found["__metadata__"]
            metadata["state"] = other_word(random, metadata["state"].encode()).decode()
            header = json.dumps(found).encode()
        else:
            header = other_word(random, header)
    except (ValueError, struct.error, LookupError, TypeError, AttributeError, RecursionError):
        return data
    return struct.pack("<Q", len(header)) + header + rest


def other_word(random: Random, text: bytes) -> bytes:
    """Return a text with another number, name, word or piece of JSON in the place of one."""
    tokens = list(TOKENS.finditer(text))
    if not tokens:
        return text
    place = random.choice(tokens)
    word = random.choice(tokens)[0] if random.random() < 0.3 else random.choice(WORDS)
    return text[: place.start()] + word + text[place.end() :]


def _flip(random: Random, data: bytes) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]


def _stretch(random: Random, data: bytes) -> tuple[int, int]:
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + random.choice((1, 4, 8, 64, 1024)))


def _remove(random: Random, data: bytes) -> bytes:
    start, stop = _stretch(random, data)
    return data[:start] + data[stop:]


def _repeat(random: Random, data: bytes) -> bytes:
    start, stop = _stretch(random, data)
    return data[:stop] + data[start:stop] * random.choice((1, 2, 50)) + data[stop:]


def _fill(random: Random, data: bytes) -> bytes:
    start, stop = _stretch(random, data)
    fill = random.choice((b"\x00", b"\xff", b"\x7f", b"[", b'"', b"\n"))
    return data[:start] + fill * (stop - start) + data[stop:]


def _swap(random: Random, data: bytes) -> bytes:
    (a, b), (c, d) = sorted((_stretch(random, data), _stretch(random, data)))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:] if b <= c else data


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _length(random: Random, data: bytes) -> bytes:
    return struct.pack("<Q", random.choice((0, 1, 8, len(data), 2**20, 10**8, 2**63, 2**64 - 1))) + data[8:]


_CHANGES: list[Callable[[Random, bytes], bytes]] = [
    _flip, _flip, _remove, _repeat, _fill, _swap, _truncate, _length, other_word, with_other_text, with_other_text,
]  # fmt: skip


def with_other_value(random: Random, state: Any) -> Any:
    """Return a state in which one value, whatever it is, is replaced, left out or doubled."""
    if not isinstance(state, dict | list) or not state or random.random() < 0.1:
        return _other_value(random, state)
    keys: list[Any] = list(state) if isinstance(state, dict) else list(range(len(state)))
    key, result = random.choice(keys), state.copy()
    if random.random() < 0.05:
        del result[key]
    elif random.random() < 0.05 and isinstance(result, dict):
        result[random.choice(("x", "__class__", "algorithm", key + "2"))] = result[key]
    else:
        result[key] = with_other_value(random, state[key])
    return result


def _other_value(random: Random, value: Any) -> Any:
    if isinstance(value, torch.Tensor) and random.random() < 0.8:
        return _other_tensor(random, value.clone())
    if type(value) in (int, float) and random.random() < 0.5:
        return random.choice((-value, value + 1, value * 2, value - 1, float(value)))
    choices = [None, True, -1, 0, 1, 3, 0.5, 2**61, 2**80, -1e300, float("nan"), float("inf"), "", "text", [], {}, [3]]
    return random.choice([*choices, torch.zeros(2), torch.tensor(-1.0), torch.zeros(0), {"x": 1}, [[]]])


def _other_tensor(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    kinds = ["shape", "longer", "dtype", "value", "value", "value", "order"]
    kind = random.choice(kinds)
    if kind == "shape":
        return tensor.unsqueeze(0)
    if kind == "longer":
        return torch.cat([tensor.reshape(-1), tensor.reshape(-1)[:1]])
    if kind == "dtype":
        return tensor.to(random.choice((torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)))
    if kind == "order":
        return tensor.flip(0) if tensor.ndim else -tensor.double()
    flat = tensor.reshape(-1)
    if len(flat):
        numbers = [float("nan"), float("inf"), -1.0, 0.0, 1e30, -1e30]
        number = random.choice(numbers if tensor.is_floating_point() else [-1, 0, 1, 7, 255, 2**31, 2**62, -(2**62)])
        limits = None if tensor.is_floating_point() or tensor.dtype == torch.bool else torch.iinfo(tensor.dtype)
        flat[random.randrange(len(flat))] = number if limits is None else max(min(number, limits.max), limits.min)
    return flat.reshape(tensor.shape)
