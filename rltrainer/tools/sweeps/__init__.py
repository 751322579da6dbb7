"""Sweeps: many trials of a training with other values of some fields, on Optuna."""

from rltrainer.tools.sweeps.opened_sweep import open_sweep
from rltrainer.tools.sweeps.ranges import LogUniform, Uniform
from rltrainer.tools.sweeps.result import SweepResult, SweepTrial
from rltrainer.tools.sweeps.sweep import sweep

__all__ = ["LogUniform", "SweepResult", "SweepTrial", "Uniform", "open_sweep", "sweep"]
