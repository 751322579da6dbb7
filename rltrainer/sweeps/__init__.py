"""Sweeps: many trials of a training with other values of some fields, on Optuna."""

from rltrainer.sweeps.opened_sweep import open_sweep
from rltrainer.sweeps.ranges import LogUniform, Uniform
from rltrainer.sweeps.result import SweepResult, SweepTrial
from rltrainer.sweeps.sweep import sweep

__all__ = ["LogUniform", "SweepResult", "SweepTrial", "Uniform", "open_sweep", "sweep"]
