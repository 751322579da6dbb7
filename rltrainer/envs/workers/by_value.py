"""Pickles that travel between our own processes, with tensors in them by value."""

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

loads = ForkingPickler.loads


class _ByValue(ForkingPickler):
    """Knows none of the ways that torch registers, which move a tensor into /dev/shm, where containers are short."""

    _extra_reducers: ClassVar[dict[Any, Any]] = {}


def dumps(value: Any) -> bytes:
    """Return a value as bytes that `loads` in another process of this program turns back into it."""
    file = io.BytesIO()
    _ByValue(file).dump(value)
    return file.getvalue()
