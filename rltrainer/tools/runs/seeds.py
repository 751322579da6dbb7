"""One program for several seeds: each in a process of one thread, as many at a time as there are cores."""

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, TypeVar, overload

from tqdm import tqdm  # type: ignore[import-untyped]  # tqdm ships no types

from rltrainer.errors import RLTrainerError
from rltrainer.seeding import seed as seed_everything
from rltrainer.tools.runs.processes import Bar, Listener, Parent, Processes, check_program
from rltrainer.trainers import InfoStats, Trainer
from rltrainer.validation.field_rules import Flag, PositiveInt, Rule, a_callable, checked, is_int

T = TypeVar("T")
Seeds = Annotated[
    Sequence[int],
    Rule(
        "one or more non-negative integers, none twice",
        lambda v: isinstance(v, list) and 0 < len(v) == len({n for n in v if is_int(n) and n >= 0}),
        "Such as range(5).",
    ),
]
MakeFn = Annotated[Callable[[int], Any], a_callable("(seed) -> trainer")]


@dataclass(frozen=True)
class SeedRun(Generic[T]):
    """The outcome of one seed; `result` is None if it failed."""

    seed: int
    result: T | None
    error: str | None = None
    """The traceback of a failed run, or how its process died."""


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
    make: Callable[[int], Any], seeds: Iterable[int] = range(5), *, num_processes: int | None = None,
    show_progress: bool = True,
) -> list[SeedRun[Any]]:  # fmt: skip
    """Run a program once for each seed, in processes of one thread.

    A failing seed prints its traceback and leaves the others alone. Ctrl-C ends all; runs with checkpoints are saved.
    Write the call under `if __name__ == "__main__":`.

    Args:
        make: a function of a seed that returns a trainer, to be run without display, or any other result; `rl.seed`
            is called before it.
        num_processes: seeds at a time; None takes one per core.

    Returns:
        the outcomes in the order of the seeds; results are `InfoStats` if `make` returns trainers.

    Raises:
        ParamsError: an argument breaks its rule, or `make` cannot be sent to another process.
        RLTrainerError: all seeds failed; the text has the first one's traceback.
    """
    make = checked("run_seeds", "make", make, MakeFn)
    numbers: list[int] = checked("run_seeds", "seeds", list(seeds) if isinstance(seeds, Iterable) else seeds, Seeds)
    limit = checked("run_seeds", "num_processes", num_processes, PositiveInt | None)
    is_shown = checked("run_seeds", "show_progress", show_progress, Flag)
    check_program("run_seeds", make)
    with Bar("seeds", len(numbers), is_shown) as bar:
        outcomes = _Outcomes(bar)
        Processes("run_seeds", "seed", limit, outcomes).run((seed, partial(_run_seed, make, seed)) for seed in numbers)
    runs = [outcomes.runs[seed] for seed in numbers]
    if all(run.error is not None for run in runs):
        raise RLTrainerError(f"run_seeds: all {len(runs)} seeds failed; seed {runs[0].seed}:\n{runs[0].error}")
    return runs


def _run_seed(make: Callable[[int], Any], seed: int, parent: Parent) -> Any:
    seed_everything(seed)
    made = make(seed)
    if not isinstance(made, Trainer):
        return made
    # The trainer's log holds these params: a changed copy of them would not reach it.
    for field in ("show_progress", "verbose"):
        object.__setattr__(made.params, field, False)
    return parent.run(made)


class _Outcomes(Listener):
    """Outcomes of the seeds so far, shown on one bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._scores: dict[int, float] = {}
        self.runs: dict[int, SeedRun[Any]] = {}

    def progress(self, number: int, share: float, score: float | None) -> None:
        """Move the bar and show the mean of the best scores so far."""
        if score is not None:
            self._scores[number] = score
        mean = statistics.mean(self._scores.values()) if self._scores else None
        self._bar.move(number, share, **({} if mean is None else {"mean_best_score": f"{mean:.4g}"}))

    def ended(self, number: int, result: Any, error: str | None) -> None:
        """Record a finished seed."""
        self.runs[number] = SeedRun(number, result, error)
        if error is not None:
            tqdm.write(f"run_seeds: seed {number} failed:\n{error}", file=sys.stderr)  # above the bar
        self.progress(number, 1.0, result.best_score if isinstance(result, InfoStats) else None)
