"""JSON that comes from elsewhere: each name once, numbers are numbers, and no endless nesting."""

import json
import math
from collections import Counter
from typing import Any

MAX_DEPTH = 100  # of lists and objects in each other: files of rltrainer stay below 50, and readers are recursive
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH}"


def read_json(text: str | bytes, *, allows_nan: bool = False) -> Any:
    """Return the value of JSON text, in which `allows_nan` lets Python's `NaN` and `Infinity` be numbers.

    Raises:
        ValueError: it is no JSON, names a key twice in one object, is nested deeper than `MAX_DEPTH`, or holds NaN.
    """
    # Python's parser reads 1e999 as infinity, so that each float is looked at.
    strict: dict[str, Any] = {} if allows_nan else {"parse_constant": _finite, "parse_float": _finite}
    try:
        value = json.loads(text, object_pairs_hook=_object, **strict)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Raise a `ValueError` if lists and dicts are nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [each for each in level if isinstance(each, dict | list)]
        if not containers:
            return
        level = [item for each in containers for item in (each.values() if isinstance(each, dict) else each)]
    raise ValueError(_TOO_DEEP)


def to_strict_json(value: Any) -> str:
    """Return plain data as JSON text, with infinity and NaN as objects, which `read_strict_json` reads."""
    return json.dumps(_encoded(value), indent=2, allow_nan=False)


def read_strict_json(text: str | bytes) -> Any:
    """Return the data that `to_strict_json` was given; raises as `read_json` does."""
    return _decoded(read_json(text))


def _encoded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return {"not finite": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _decoded(value: Any) -> Any:
    match value:
        case {"not finite": "inf" | "-inf" | "nan" as name} if len(value) == 1:
            return float(name)
        case dict():
            return {key: _decoded(item) for key, item in value.items()}
        case list():
            return [_decoded(item) for item in value]
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Readers take the first or the last of two equal names: two programs would see two files.
    if len(found) < len(pairs):
        name = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"names {name[:100]!r} twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"holds {text[:100]}, which is no number")
    return number
