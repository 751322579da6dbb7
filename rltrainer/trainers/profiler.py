"""The profiler of a run: records some of its training steps and writes what they did."""

import logging
import warnings
from pathlib import Path
from typing import Any, Self

import torch

from rltrainer.loggers.run_path import RunPath
from rltrainer.profiler_params import ProfilerParams

NUM_OPERATORS = 50
"""Rows of the table."""
_LOG = logging.getLogger("rltrainer")


class RunProfiler:
    """Counts training steps and records those that are asked for, within one epoch.

    A context of an epoch; `step` ends a training step. A recording that an exception breaks off is written too.

    Args:
        params: which steps, and where to; None records nothing.
    """

    def __init__(self, params: ProfilerParams | None) -> None:
        self._params = params or ProfilerParams()
        self._num_waited = self._num_steps = 0
        self._is_done = params is None
        self._profile: Any = None

    def __enter__(self) -> Self:
        self._start_if_due()
        return self

    def step(self) -> None:
        """Note the end of a training step."""
        if self._profile is None:
            self._num_waited += 1
            self._start_if_due()
            return
        self._num_steps += 1
        if self._num_steps == self._params.warmup + self._params.active:
            self._stop()
        else:
            self._profile.step()

    def __exit__(self, *exception: object) -> None:
        if self._profile is not None:
            self._stop()

    def _start_if_due(self) -> None:
        if self._is_done or self._num_waited < self._params.wait:
            return
        from torch.profiler import profile, schedule  # tenths of a second, which most runs need not take

        steps = schedule(wait=0, warmup=self._params.warmup, active=self._params.active, repeat=1)
        self._profile, self._num_steps = profile(schedule=steps), 0
        self._profile.start()

    def _stop(self) -> None:
        profile, self._profile = self._profile, None
        profile.stop()
        self._is_done = self._num_steps > self._params.warmup
        if self._is_done:
            try:
                self._write(profile)
            except OSError as error:  # a full disk: training goes on
                warnings.warn(f"RuntimeParams.profiler: could not write ({error})", RuntimeWarning, stacklevel=3)
        elif self._num_steps:
            text = "the epoch ended within the %d training steps of warm-up; they begin anew with the next"
            _LOG.warning(f"RuntimeParams.profiler: {text}", self._params.warmup)

    def _write(self, profile: Any) -> None:
        folder = RunPath(Path(self._params.folder), "").claim()
        profile.export_chrome_trace(str(folder / "trace.json"))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        table = profile.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=NUM_OPERATORS)
        (folder / "operators.txt").write_text(table + "\n")
        _LOG.info("RuntimeParams.profiler: wrote %s", folder)
