"""Small runs that save themselves."""

from pathlib import Path
from typing import Any

import rltrainer as rl
from tests.resume.runs import build


def trained(name: str, folder: Path, max_epochs: int = 3, fields: Any = None, **options: Any) -> Any:
    """Return a trainer that saves to a folder: 2 training steps an epoch online, 4 offline."""
    checkpoint = rl.CheckpointParams(folder, **options)
    return build(name, max_epochs, checkpoint=checkpoint, **(fields or {}))


def checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("checkpoint-*") if path.is_dir())
