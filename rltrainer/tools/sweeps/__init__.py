"""Sweeps: many trials of a run with other values of some fields, on Optuna."""

from rltrainer.tools.sweeps.result import SweepResult, SweepTrial, open_sweep
from rltrainer.tools.sweeps.search_space import LogUniform, Uniform
from rltrainer.tools.sweeps.sweep import sweep

__all__ = ["LogUniform", "SweepResult", "SweepTrial", "Uniform", "open_sweep", "sweep"]
