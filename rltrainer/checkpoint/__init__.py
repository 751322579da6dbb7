"""Saves and restores a whole trainer: one checkpoint by itself, or the checkpoints of a run one after another."""

from rltrainer.checkpoint.checkpoint_params import CheckpointParams
from rltrainer.checkpoint.folder import Checkpoint, open_checkpoint, read_checkpoint, write_checkpoint
from rltrainer.checkpoint.report import Report, verify
from rltrainer.checkpoint.store import CheckpointStore

__all__ = [
    "Checkpoint", "CheckpointParams", "CheckpointStore", "Report", "open_checkpoint", "read_checkpoint", "verify",
    "write_checkpoint",
]  # fmt: skip
