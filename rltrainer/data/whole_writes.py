"""Writes into a replay buffer that an interrupt does not leave half done."""

import contextlib
from collections.abc import Callable
from typing import Any

from rltrainer.data.ring import Ring
from rltrainer.errors import RLTrainerError


def write_whole(ring: Ring, write: Callable[..., None], *values: Any) -> None:
    """Make a write; one that an interrupt tears is made again, and then the interrupt goes on its way.

    Who catches it and goes on would train on rows of which one half is of another transition, in silence.

    Args:
        ring: what is written into; it notes with the last operation of a write how much was written.
        write: `ring.add` or `ring.add_rollout`: made twice, it is as if made once.
        values: its arguments.
    """
    written = ring.written
    try:
        write(*values)
    except RLTrainerError:
        raise  # a value does not fit, and nothing was stored
    except BaseException:
        if ring.written is written:
            ring.final.repair(ring.heads())
            with contextlib.suppress(Exception):
                write(*values)
        raise
