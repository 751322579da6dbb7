"""Runs as they lie on disk: what one was told, what it came to, and several of them at once."""

from rltrainer.tools.runs.opened_run import Run, open_run
from rltrainer.tools.runs.seeds import SeedRun, run_seeds

__all__ = ["Run", "SeedRun", "open_run", "run_seeds"]
