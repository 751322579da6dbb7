"""Saves and restores a whole trainer."""

from rltrainer.checkpoint.directory import read_checkpoint, write_checkpoint

__all__ = ["read_checkpoint", "write_checkpoint"]
