"""Saves and restores a whole trainer."""

from rltrainer.checkpoint.directory import read_checkpoint, write_checkpoint
from rltrainer.checkpoint.store import CheckpointStore, live_state

__all__ = ["CheckpointStore", "live_state", "read_checkpoint", "write_checkpoint"]
