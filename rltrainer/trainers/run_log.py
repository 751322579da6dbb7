"""The log of a run: rows for its logger, a progress bar and lines for the terminal. It changes nothing of the run."""

import platform
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, Literal

import torch

from rltrainer.algorithms import Algorithm, OnPolicyAlgorithm
from rltrainer.collect import CollectStats
from rltrainer.errors import ParamsError, call_all
from rltrainer.functional.means import floats
from rltrainer.interval import Every
from rltrainer.loggers.logger import Kind
from rltrainer.loggers.terminal import make_bar
from rltrainer.state.plain import to_plain
from rltrainer.trainers.run_state import Best, EpochStats, RunState, StepUnit
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.types import UpdateResult

PACKAGES = ("rltrainer", "torch", "gymnasium", "numpy")
Values = Mapping[str, Any]


class RunLog:
    """Hands the numbers of a run to the logger and the progress bar, if there are any, over steps of a unit.

    `settings` returns further values of rows of training; it is called only when such a row is due.
    """

    def __init__(
        self,
        params: TrainerParams,
        algorithm: Algorithm,
        unit: StepUnit,
        settings: Callable[[], Mapping[str, float]] = dict,
        prefix: str = "",
    ) -> None:
        self._params, self._algorithm, self.unit, self._settings = params, algorithm, unit, settings
        self._prefix = prefix  # of the line that says how the run trains
        self._logger = params.logger
        self._bar = ProgressBar(None, unit, params.verbose)
        has_gpu = self._logger is not None and algorithm.device.type == "cuda"
        self._gpu = GpuUse(algorithm.device) if has_gpu else None
        self.updating: AbstractContextManager[Any] = self._gpu or nullcontext()
        """A context of each update step."""
        # A hook's numbers under these names would be mixed with the run's own.
        training, test = {"return", "length", "env_steps_per_second"}, {"score", "return", "length"}
        self._own_names = {"training": training, "update": set[str](), "test": test}
        # The kinds of rows that this training step adds to, and their values beside means.
        self._to_write: dict[Kind, Callable[[], Mapping[str, float]]] = {}

    def begin(self, is_new: bool) -> None:
        """Start the log of a run, or continue the log of a resumed run."""
        self._to_write.clear()  # of a run that failed
        if self._logger is None:
            return
        is_on_policy = isinstance(self._algorithm, OnPolicyAlgorithm)
        self._logger.begin_run(Every(1, "update_step") if is_on_policy else Every(1000, "gradient_step"), is_new=is_new)
        # The plan's runtime has a value for each "auto", which depends on the machine.
        parts = {"trainer": self._params, "algorithm": self._algorithm.params, "runtime": self._algorithm.plan.runtime}
        for wrapped in self._algorithm.all_algorithms()[1:]:
            parts["wrapped_algorithm"] = wrapped.params
        versions = {name: str(sys.modules[name].__version__) for name in PACKAGES}
        described: dict[str, Any] = {
            **{name: part.to_plain() for name, part in parts.items()},
            "algorithm_class": type(self._algorithm).__name__,
            "versions": {"python": platform.python_version(), **versions},
            "command": shlex.join(sys.orig_argv),
        }
        collectors = self._params.collectors().values()
        specs = [spec for each in collectors if (spec := getattr(getattr(each, "envs", None), "spec", None))]
        described["devices"] = {"networks": str(self._algorithm.device)}
        if (buffer := getattr(self._params, "buffer", None)) is not None:
            described["devices"]["buffer"] = str(buffer.device)
        if specs:  # `make_vec` made the envs of an id
            described["env"] = {"id": specs[0].id, "kwargs": to_plain(dict(specs[0].kwargs))}
        self._logger.log_params(described)

    def open_bar(self, state: RunState) -> None:
        """Show the bar, and above it the run's own choices."""
        total = self._params.planned_num_steps if self._params.show_progress else None
        self._bar = ProgressBar(total, self.unit, self._params.verbose, self._counts(state)[0])
        if state.runtime.compile:
            self._bar.watch_compiler()
        how = "compiled" if state.runtime.compile else "uncompiled"
        how += ", as CUDA graphs" if state.runtime.cuda_graph is True else ""
        name = f"{type(self._algorithm).__name__}: {self._prefix}"
        self.say(f"{name}gradient steps {how}, torch threads {state.runtime.num_threads}")

    def say(self, line: str) -> None:
        """Print a line, if lines are wanted."""
        self._bar.say(line)

    def close_bar(self) -> None:
        """Leave the bar as it is; epochs that follow by hand have their lines only."""
        bar, self._bar = self._bar, ProgressBar(None, self.unit, self._params.verbose)
        call_all([bar.close] if self._logger is None else [bar.close, self._logger.flush])

    def close(self) -> None:
        """Release the files of the log; later rows open them again."""
        if self._logger is not None:
            self._logger.close()

    def end_training_step(self, state: RunState) -> None:
        """Write the rows that are due, with the hooks' numbers, and move the bar."""
        for kind, values in self._to_write.items():
            self._write(kind, state, values)
        self._to_write.clear()
        self._bar.advance_to(self._counts(state)[0])

    def collected(self, state: RunState, stats: CollectStats) -> None:
        """Take in a collection step."""
        if stats.num_collected_episodes:
            state.log.add(stats)
            self._own_names["training"].update(stats.infos)
        if self._logger is not None:
            if stats.collect_time > 0:
                self._logger.gather("training", {"env_steps_per_second": stats.collect_speed}, stats.collect_time)
            self._to_write["training"] = partial(self._training_values, state)
        if self._bar.wants_values():
            self._bar.show(state.log.means())

    def updated(self, result: UpdateResult) -> None:
        """Take in an update step."""
        if self._logger is not None and result.num_gradient_steps:
            self._logger.gather("update", result.metrics, result.num_gradient_steps, result.counts)
            self._own_names["update"].update(result.metrics)
            self._to_write["update"] = self._algorithm.logged_values
        if self._bar.wants_values():
            self._bar.show(_losses(result.floats()))

    def take_in(self, kind: Literal["training", "update"], values: Values, shown: Values) -> None:
        """Take a hook's numbers into the means of the next row of this kind, and show some on the bar.

        A run without env steps has no rows of training: they go into rows of updates.
        """
        if self._logger is not None and values:
            kind = kind if self.unit == "env_step" else "update"
            self._check_names(kind, values)
            self._logger.gather(kind, values)
        if shown and self._bar.wants_values():
            self._bar.show(floats(shown))

    def tested(self, state: RunState, stats: CollectStats, score: float, more: Values, shown: Values) -> None:
        """Take in a test step, with the hooks' numbers: all, and the ones for the bar."""
        self._own_names["test"].update(stats.infos)
        self._check_names("test", more)
        self._bar.show({"score": score, "best": state.best.score, **floats(shown)})
        values = {"score": score, "return": float(stats.returns.mean()), "length": float(stats.lengths.mean())}
        values |= stats.info_means
        self._write("test", state, lambda: {**values, **floats(more)})

    def ended_epoch(self, state: RunState, stats: EpochStats, score: float | None) -> None:
        """Take in the end of an epoch."""
        self.end_training_step(state)  # one that a test step has cut short
        recent = state.log.means()
        self._bar.show({**recent, **_losses(stats.update.floats())})
        self._bar.end_epoch(stats, score, state.best, recent.get("return"), self._counts(state)[0])
        if self._logger is None:
            return
        if self._gpu is not None:
            self._logger.log("gpu", self._gpu.values(), *self._counts(state))
        self._logger.log_epoch(state.to_progress())

    def ended_run(self, state: RunState) -> None:
        """Write the numbers that no row holds yet; again, if hooks have logged more since.

        The last checkpoint was written before these rows, so an extended run logs them again as part of a longer run.
        """
        if self._logger is None:
            return
        if self.unit == "env_step":
            self._logger.log_rest("training", self._training_values(state), *self._counts(state))
        self._logger.log_rest("update", self._algorithm.logged_values(), *self._counts(state))
        self._logger.flush()

    def _training_values(self, state: RunState) -> Mapping[str, float]:
        return {**state.log.means(), **self._settings()}

    def _check_names(self, kind: Literal["training", "update", "test"], values: Values) -> None:
        for name in values.keys() & self._own_names[kind]:
            rule = f"must log it under another name, as {kind} rows have one of their own"
            raise ParamsError.about("TrainerParams", "hooks", rule, name)

    def _write(self, kind: Kind, state: RunState, values: Callable[[], Mapping[str, float]]) -> None:
        """Write a row of means and these values, which are asked for only when it is due."""
        if self._logger is not None and self._logger.is_due(kind, *self._counts(state)):
            self._logger.log(kind, values(), *self._counts(state))

    def _counts(self, state: RunState) -> tuple[int, int, int]:
        """Return the x axis, update steps and gradient steps."""
        counters = state.counters
        return getattr(counters, self.unit), counters.update_step, counters.gradient_step


def _losses(metrics: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Return the losses, if there are any: a bar has no room for all metrics."""
    return {name: value for name, value in metrics.items() if "loss" in name} or metrics


MIB = 2**20


class GpuUse:
    """Measures update steps, each in this object's context, and the memory of its process on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin: Any = None
        self._under_way: deque[tuple[Any, Any]] = deque()  # as many as the device lags behind, which has a limit
        self._milliseconds, self._num_update_steps = 0.0, 0

    def __enter__(self) -> None:
        self._begin = self._mark()

    def __exit__(self, *exception: object) -> None:
        self._under_way.append((self._begin, self._mark()))
        self._take_ended()

    def values(self) -> dict[str, float]:
        """Return memory in MiB, and the mean time of the update steps that ended since the last call.

        `memory` is held by tensors, `memory_peak` was the most, `memory_reserved` is taken from the device.
        """
        self._take_ended()
        memory = {
            "memory": torch.cuda.memory_allocated(self._device) / MIB,
            "memory_peak": torch.cuda.max_memory_allocated(self._device) / MIB,
            "memory_reserved": torch.cuda.memory_reserved(self._device) / MIB,
        }
        milliseconds, count = self._milliseconds, self._num_update_steps
        self._milliseconds, self._num_update_steps = 0.0, 0
        return memory | ({"update_seconds": milliseconds / 1000 / count} if count else {})

    def _mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch ships no type of it
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _take_ended(self) -> None:
        # An event is asked, never waited for: a wait would hold the program up until the device has caught up.
        while self._under_way and self._under_way[0][1].query():
            begin, end = self._under_way.popleft()
            self._milliseconds += begin.elapsed_time(end)
            self._num_update_steps += 1


# Values that go before others: a narrow terminal cuts off the last ones.
SHOWN_FIRST = ("score", "best", "return", "length")


class ProgressBar:
    """One bar over `total` steps of the run from step `initial`, none if `total` is None; and lines, if `verbose`."""

    def __init__(self, total: int | None, unit: str, verbose: bool, initial: int = 0) -> None:
        self._bar: Any = None
        self._unit = f" {unit.replace('_', ' ')}s"
        if total is not None:
            self._bar = make_bar(total=total, initial=initial, unit=self._unit, unit_scale=True, dynamic_ncols=True)
        self._verbose = verbose
        self._values: dict[str, str] = {}
        self._close = ExitStack()

    def watch_compiler(self) -> None:
        """Say beside the bar, until it is closed, that nothing moves because a step is compiled."""
        if self._bar is not None:
            compiler = torch._dynamo.callback.callback_handler  # imported by what compiles
            starts = compiler.register_start_callback(lambda _: self._bar.set_description("compiling, about a minute"))
            ends = compiler.register_end_callback(lambda _: self._bar.set_description(refresh=False))
            self._close.callback(compiler.remove_start_callback, starts)
            self._close.callback(compiler.remove_end_callback, ends)

    def advance_to(self, step: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def show(self, values: Mapping[str, float | None]) -> None:
        """Show these values beside the bar; earlier ones stay."""
        if self._bar is not None:
            self._values |= {name: f"{value:.4g}" for name, value in values.items() if value is not None}
            first = {name: self._values[name] for name in SHOWN_FIRST if name in self._values}
            self._bar.set_postfix({**first, **self._values}, refresh=False)

    def wants_values(self) -> bool:
        """Return whether the bar is about to be drawn, so that numbers are worth fetching from the device."""
        bar = self._bar
        return bar is not None and time.time() - bar.last_print_t >= bar.mininterval

    def say(self, line: str) -> None:
        """Print a line."""
        if self._verbose and self._bar is not None:
            self._bar.write(line)
        elif self._verbose:
            print(line)

    def end_epoch(self, stats: EpochStats, score: float | None, best: Best, recent: float | None, step: int) -> None:
        """Print the epoch's line, with the `recent` return and the number of the `step`."""
        parts = [f"epoch {stats.epoch}"]
        parts += [] if score is None else [f"score {score:.4g}"]
        parts += [] if best.score is None else [f"best {best.score:.4g} (epoch {best.epoch})"]
        parts += [] if stats.collect_stats is None else [f"{stats.collect_stats.num_env_steps:,} env steps"]
        parts.append(f"{stats.update.num_gradient_steps:,} gradient steps in {stats.timing.total:.1f} s")
        parts += [f"{step:,}{self._unit} so far"]
        parts += [] if recent is None else [f"return {recent:.4g}"]
        self.say(", ".join(parts))

    def close(self) -> None:
        """Leave the bar as it is."""
        self._close.close()
        if self._bar is not None:
            self._bar.close()
