"""Runs as they lie on disk: what one was told, what it came to, and several of them at once."""

from rltrainer.runs.opened_run import Run, open_run

__all__ = ["Run", "open_run"]
