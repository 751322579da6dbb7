"""Runs on disk: the params and results of one run, and several runs at once."""

from rltrainer.tools.runs.opened_run import Run, open_run
from rltrainer.tools.runs.seeds import SeedRun, run_seeds

__all__ = ["Run", "SeedRun", "open_run", "run_seeds"]
