"""The checkpoints of a run that are kept."""

import math
from collections.abc import Collection
from pathlib import Path

from rltrainer.checkpoint.manifest import Manifest


def kept(saved: Collection[tuple[Path, Manifest]], keep_last: int | None, keep_best: int | None) -> set[Path]:
    """Return which checkpoints stay.

    Args:
        saved: all of them.
        keep_last: how many of the newest; None keeps all.
        keep_best: how many of those with the highest scores, of equal ones the oldest; None keeps all with a score.
    """
    newest = sorted(saved, key=lambda each: -each[1].serial)[:keep_last]
    scored = [each for each in saved if each[1].score is not None and not math.isnan(each[1].score)]
    best = sorted(scored, key=lambda each: (-(each[1].score or 0.0), each[1].serial))[:keep_best]
    return {path for path, _ in (*newest, *best)}
