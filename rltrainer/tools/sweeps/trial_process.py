"""The job of a trial, in its own process: its seeds in turn, each in a run folder, with a report of each test."""

import dataclasses
import errno
import math
import statistics
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltrainer.checkpoint.folder_lock import FolderLock
from rltrainer.collect import CollectStats
from rltrainer.errors import ParamsError, at_the_end, readable
from rltrainer.hooks import TrainerContext, TrainerHook
from rltrainer.loggers import RunFolder
from rltrainer.seeding import seed as seed_everything
from rltrainer.tools.recipes import AnyRecipe
from rltrainer.tools.recipes.cookbook import write_recipe
from rltrainer.tools.runs.processes import OVER, Parent
from rltrainer.tools.sweeps.search_space import Make
from rltrainer.trainers import Trainer
from rltrainer.validation.field_rules import as_python, is_int

PRUNED = "pruned by the sweep"
# Errors of a disk that is full, over quota, read-only by now, or broken.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@dataclass(frozen=True)
class ScoreReport:
    """The report of a trial about a test step, or about a seed that makes none."""

    step: int  # from 1, over all seeds
    score: float  # the mean over the seeds so far
    num_tests: int  # of one run


@dataclass(frozen=True)
class DiskRefusal:
    """The result of a trial that the disk ended: it says nothing about the trial's fields."""

    cause: str
    traceback: str


@dataclass(frozen=True)
class TrialJob:
    """A trial: `make` with its fields, for each seed."""

    make: Make
    fields: Mapping[str, Any]
    folders: Mapping[int, Path]

    def __call__(self, parent: Parent) -> float | DiskRefusal | None:
        """Return the score, the mean over the seeds; None if it was pruned."""
        scores: list[float] = []
        try:
            folder = next(iter(self.folders.values())).parent
            folder.mkdir(parents=True, exist_ok=True)
            with at_the_end(FolderLock(folder).wait().release):
                for seed, path in self.folders.items():
                    seed_everything(seed)
                    score = self._run(seed, RunFolder(path), scores, parent)
                    if score is None:
                        return None
                    scores.append(score)
        except Exception as error:
            if (cause := _of_the_disk(error)) is None:
                raise
            return DiskRefusal(str(cause), traceback.format_exc())
        return statistics.fmean(scores)

    def _run(self, seed: int, folder: RunFolder, earlier: list[float], parent: Parent) -> float | None:
        made = self._make(seed, folder, _Pruning(parent, earlier))
        if not isinstance(made, Trainer):
            scores = [*earlier, made]
            is_last = len(scores) == len(self.folders)
            report = ScoreReport(len(scores), statistics.fmean(scores), 1)
            return None if not is_last and parent.ask(report) else made
        try:
            info = parent.run(made)
        finally:
            for collector in made.params.collectors().values():
                collector.close()
        return None if info.stop_reason == f"hook: {PRUNED}" else _checked_score(made.state.score)

    def _make(self, seed: int, folder: RunFolder, pruning: "_Pruning") -> Trainer[Any, Any] | float:
        live: dict[str, Any] = {"run_folder": folder, "show_progress": False, "verbose": False}
        if isinstance(self.make, AnyRecipe):
            recipe = self.make.with_fields(**self.fields, seed=seed)
            write_recipe(recipe, folder)
            return recipe.make_trainer(hooks=(pruning,), **live)
        made = self.make(seed, **self.fields)
        if not isinstance(made, Trainer):
            return _checked_score(made)
        params = made.params
        if params.test_collector is None:
            rule, hint = "that make test steps", "Pass TrainerParams.test_collector: a trial is valued by test steps."
            raise ParamsError.about("sweep", "make", f"must make trainers {rule}", made, hint)
        if params.run_folder is not None:
            rule, hint = "must make trainers without a run_folder", "A sweep gives each run a folder of its own."
            raise ParamsError.about("sweep", "make", rule, params.run_folder, hint)
        return type(made)(made.algorithm, dataclasses.replace(params, hooks=(*params.hooks, pruning), **live))


class _Pruning(TrainerHook):
    """Reports each test step of a run to the sweep, which may end the run."""

    def __init__(self, parent: Parent, earlier: list[float]) -> None:
        self._parent, self._earlier = parent, earlier

    def test_log(self, ctx: TrainerContext, stats: CollectStats) -> None:
        """Report a test step, except the initial one."""
        if ctx.epoch == 0 or ctx.score is None or math.isnan(ctx.score):
            return
        num_tests = ctx.params.max_epochs
        step = len(self._earlier) * num_tests + ctx.epoch
        answer = self._parent.ask(ScoreReport(step, statistics.fmean([*self._earlier, ctx.score]), num_tests))
        if answer is OVER:  # the score was not noted, so it must not be saved: a resumed run repeats this epoch
            raise SystemExit("the sweep is over")
        if answer:
            ctx.request_stop(PRUNED)


def _of_the_disk(error: BaseException) -> OSError | None:
    # An error of the disk may stand anywhere in the chain of causes, and the chain may be a ring.
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, OSError) and link.errno in DISK_ERRORS:
            return link
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return None


def _checked_score(score: Any) -> float:
    value = as_python(score)
    if not is_int(value) and not isinstance(value, float):
        raise ParamsError.about("sweep", "make", "must return a trainer, or a score", score)
    if not math.isfinite(value):
        raise ParamsError(f"sweep: the score is {readable(value)}")
    return float(value)
