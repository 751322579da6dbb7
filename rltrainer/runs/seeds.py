"""One program for several seeds: a process of one thread for each, as many at a time as there are cores."""

import contextlib
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Annotated, Any, Generic, TypeVar, overload

from tqdm import tqdm  # type: ignore[import-untyped]  # tqdm ships no types

from rltrainer.envs.workers.by_value import dumps, loads
from rltrainer.envs.workers.start_methods import make_context
from rltrainer.errors import EnvError, ParamsError, RLTrainerError, field_error_text
from rltrainer.field_rules import Flag, PositiveInt, Rule, a_callable, checked, is_int
from rltrainer.runs.seed_process import Report, run_seed
from rltrainer.trainers import InfoStats, Trainer

T = TypeVar("T")
Seeds = Annotated[
    Sequence[int], Rule("one or more non-negative integers, none twice", lambda v: _are_seeds(v), "Such as range(5).")
]
MakeFn = Annotated[Callable[[int], Any], a_callable("(seed) -> trainer")]
SECONDS_TO_SAVE = 60.0
"""For what ended runs save, before they are killed."""
_TRAVEL = "must travel to another process"
_TRAVEL_HINT = "Define it at the top level of a module or script; functools.partial takes more arguments along."


@dataclass(frozen=True)
class SeedRun(Generic[T]):
    """The outcome of one seed.

    Args:
        seed: which.
        result: what its run returned; None if it failed.
        error: the traceback if it failed, or how its process died; else None.
    """

    seed: int
    result: T | None
    error: str | None = None


@overload
def run_seeds(
    make: Callable[[int], Trainer[Any, Any]], seeds: Iterable[int] = ..., *, num_processes: int | None = ...,
    show_progress: bool = ...,
) -> list[SeedRun[InfoStats]]: ...  # fmt: skip
@overload
def run_seeds(
    make: Callable[[int], T], seeds: Iterable[int] = ..., *, num_processes: int | None = ..., show_progress: bool = ...
) -> list[SeedRun[T]]: ...
def run_seeds(
    make: Callable[[int], Any],
    seeds: Iterable[int] = range(5),
    *,
    num_processes: int | None = None,
    show_progress: bool = True,
) -> list[SeedRun[Any]]:
    """Run a program once for each seed, in processes of one thread, and return what came of each.

    A seed that fails is shown with its traceback when it does, and leaves the others alone. Ctrl-C ends all: runs with
    checkpoints are saved. The call belongs under `if __name__ == "__main__":`.

    Args:
        make: given a seed, returns a trainer, which is run without display; or does all by itself, and returns what it
            likes. Before it, `rl.seed` is called with the seed.
        seeds: which.
        num_processes: how many at a time; None takes as many as this process may use cores.
        show_progress: show one bar for all.

    Returns:
        the outcomes in the order of the seeds; results are `InfoStats` where `make` returns trainers.

    Raises:
        ParamsError: an argument breaks its rule, or `make` cannot travel to another process.
        RLTrainerError: all seeds failed; the text has the first one's traceback.
    """
    make = checked("run_seeds", "make", make, MakeFn)
    numbers: list[int] = checked("run_seeds", "seeds", list(seeds) if isinstance(seeds, Iterable) else seeds, Seeds)
    limit = checked("run_seeds", "num_processes", num_processes, PositiveInt | None) or _num_cores()
    is_shown = checked("run_seeds", "show_progress", show_progress, Flag)
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        hint = 'Call it under `if __name__ == "__main__":`.'
        raise ParamsError(f"run_seeds: was called while one of its processes imports the program. {hint}")
    try:
        payload = dumps(make)
    except Exception as error:
        raise ParamsError(field_error_text("run_seeds", "make", _TRAVEL, make, _TRAVEL_HINT)) from error
    with _Display(len(numbers), is_shown) as display:
        runs = _Processes(payload, limit, display).run(numbers)
    if all(run.error is not None for run in runs):
        raise RLTrainerError(f"run_seeds: all {len(runs)} seeds failed; seed {runs[0].seed}:\n{runs[0].error}")
    return runs


class _Processes:
    """The processes that run at a time, each with its seed."""

    def __init__(self, make: bytes, limit: int, display: "_Display") -> None:
        self._make, self._limit, self._display = make, limit, display
        self._context: Any = make_context(None, "run_seeds")
        self._running: dict[Any, tuple[int, Any]] = {}  # by connection
        self._ended: dict[int, SeedRun[Any]] = {}

    def run(self, seeds: list[int]) -> list[SeedRun[Any]]:
        """Run them all, in their order."""
        waiting = seeds[::-1]
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._limit:
                    self._start(waiting.pop())
                for pipe in wait(list(self._running)):
                    self._hear(pipe)
        except BaseException:
            self._end()
            raise
        return [self._ended[seed] for seed in seeds]

    def _start(self, seed: int) -> None:
        pipe, theirs = self._context.Pipe()
        process = self._context.Process(target=run_seed, args=(theirs, self._make, seed))
        try:
            process.start()
        except (OSError, EOFError) as error:
            hint = 'A script calls it under `if __name__ == "__main__":`.'
            raise EnvError(f"run_seeds: the process of seed {seed} cannot be started ({error!r}). {hint}") from error
        finally:
            theirs.close()
        self._running[pipe] = seed, process

    def _hear(self, pipe: Any) -> None:
        """Take in what a process tells."""
        seed, process = self._running[pipe]
        try:
            report: Report = loads(pipe.recv_bytes())
        except (EOFError, OSError):
            process.join()
            report = Report("failed", f"its process died with exit code {process.exitcode}")
        if report.kind == "progress":
            self._display.progress(seed, *report.value)
            return
        if report.kind == "no travel":
            hint = f"{_TRAVEL_HINT}\n{report.value}"
            raise ParamsError(f"run_seeds.make: {_TRAVEL}; the process of seed {seed} cannot import it. {hint}")
        del self._running[pipe]
        pipe.close()
        process.join()
        is_done = report.kind == "done"
        self._ended[seed] = SeedRun(seed, *((report.value, None) if is_done else (None, report.value)))
        self._display.ended(self._ended[seed])

    def _end(self) -> None:
        """End all; a second interrupt does so at once."""
        processes = [process for _, process in self._running.values()]
        try:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(SECONDS_TO_SAVE)
        finally:
            for pipe, (_, process) in self._running.items():
                process.kill()
                with contextlib.suppress(OSError):
                    pipe.close()


class _Display:
    """One bar for all seeds, and a word on each that fails."""

    def __init__(self, num_seeds: int, is_shown: bool) -> None:
        self._num_seeds, self._is_shown = num_seeds, is_shown
        self._shares: dict[int, float] = {}
        self._scores: dict[int, float] = {}

    def __enter__(self) -> "_Display":
        layout = "{l_bar}{bar}| {n:.2f}/{total} [{elapsed}<{remaining}{postfix}]"
        self._bar = tqdm(total=self._num_seeds, desc="seeds", bar_format=layout, disable=not self._is_shown)
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def progress(self, seed: int, share: float, score: float | None) -> None:
        """Move the bar, and show the mean of the best scores so far."""
        self._shares[seed] = share
        if score is not None:
            self._scores[seed] = score
            self._bar.set_postfix({"mean best score": f"{statistics.mean(self._scores.values()):.4g}"}, refresh=False)
        self._bar.update(sum(self._shares.values()) - self._bar.n)

    def ended(self, run: SeedRun[Any]) -> None:
        """Count a seed as done, and say so if it failed."""
        if run.error is not None:
            print(f"run_seeds: seed {run.seed} failed:\n{run.error}", file=sys.stderr)
        score = run.result.best_score if isinstance(run.result, InfoStats) else None
        self.progress(run.seed, 1.0, score)


def _are_seeds(value: Any) -> bool:
    is_list = isinstance(value, list) and bool(value) and all(is_int(seed) and seed >= 0 for seed in value)
    return is_list and len(set(value)) == len(value)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
