"""The study of a sweep: Optuna's, in a file of its own, `study.log`, with one writer at a time.

Optuna's journal has a line of JSON for each event: data, of which nothing is run. A killed sweep leaves trials in the
state "running", which the next call resumes.
"""

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from rltrainer.checkpoint.folder_lock import FolderLock
from rltrainer.errors import CheckpointError, ParamsError, importing_extra, readable
from rltrainer.files.atomic_write import refuse_links, write_errors
from rltrainer.files.regular_file import open_regular, read_errors
from rltrainer.seeding import derive_seed
from rltrainer.validation.field_rules import is_int

if TYPE_CHECKING:
    import optuna

# Texts, as Optuna is imported when a sweep needs it.
AnyTrial: TypeAlias = "optuna.trial.BaseTrial"
FrozenTrial: TypeAlias = "optuna.trial.FrozenTrial"
Sampler = Callable[..., Any]
# Trials that end before any is pruned.
NUM_STARTUP_TRIALS = 5
NAME = "sweep"
# The file of a study in the folder of its sweep.
STUDY = "study.log"
# Attribute of a trial: the values of its varying fields, as plain data, which may differ from the draws.
FIELDS = "fields"


class Study:
    """The trials of a sweep so far, in a study of Optuna's; an unfit sampler or pruner raises a `ParamsError`."""

    def __init__(self, folder: Path, sampler: Sampler | None, pruner: Any, seed: int) -> None:
        self._optuna = optuna = require_optuna()
        self.path = folder / STUDY
        self._make_sampler: Sampler = sampler or optuna.samplers.TPESampler
        self._pruner, self._seed = pruner, seed
        if pruner is not None and not isinstance(pruner, optuna.pruners.BasePruner):
            raise ParamsError.about("sweep", "pruner", "must be a pruner of Optuna's or None", pruner)
        # Each trial's sampler is seeded by its number: draws depend on the finished trials alone, also after a kill.
        first = self._sampler(0)
        if self.path.exists():
            with read_errors(self.path, CheckpointError), open_regular(self.path) as file:
                text = file.read()
            # A kill may leave an unfinished last line, to which Optuna would append.
            if (whole := text.rfind(b"\n") + 1) < len(text):
                os.truncate(self.path, whole)
        options: dict[str, Any] = {"direction": "maximize", "load_if_exists": True, "sampler": first}
        self._study = _load(self.path, functools.partial(optuna.create_study, **options))

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials, by number."""
        trials: list[FrozenTrial] = self._study.get_trials(deepcopy=False)
        return trials

    def begin(self, number: int) -> "optuna.trial.Trial":
        """Return a running trial: the interrupted one of this number, or the next one."""
        self._study.sampler = self._sampler(number)
        if number < len(trials := self.trials) and trials[number].state == self._optuna.trial.TrialState.RUNNING:
            return self._optuna.trial.Trial(self._study, trials[number]._trial_id)
        return self._study.ask()  # the first that was enqueued by Optuna's own means, or a new one

    def is_pruned(self, trial: "optuna.trial.Trial", step: int, score: float, num_tests: int) -> bool:
        """Note the score of a test step, and return whether the trial must end."""
        # The median pruner waits for a third of a run: early scores say little.
        self._study.pruner = self._pruner or self._optuna.pruners.MedianPruner(NUM_STARTUP_TRIALS, num_tests // 3)
        if step not in self.trials[trial.number].intermediate_values:  # else the step was reported before a kill
            trial.report(score, step)
        return bool(trial.should_prune())

    def end(self, trial: "optuna.trial.Trial", score: float | None, error: str | None) -> None:
        """Note the outcome of a trial: a score, or an error, or neither if it was pruned."""
        states = self._optuna.trial.TrialState
        if error is not None:
            trial.set_user_attr("error", error)
        state = states.FAIL if error is not None else states.PRUNED if score is None else None
        self._study.tell(trial, score if state is None else None, state)

    def _sampler(self, number: int) -> Any:
        text = "must be a class of Optuna's samplers, or a function that makes one given seed="
        try:
            sampler = self._make_sampler(seed=derive_seed(self._seed, "sampler", number))
        except TypeError as error:
            text, hint = f"{text}: {error}", "functools.partial takes further arguments along."
            raise ParamsError.about("sweep", "sampler", text, self._make_sampler, hint) from None
        if not isinstance(sampler, self._optuna.samplers.BaseSampler):
            raise ParamsError.about("sweep", "sampler", text, self._make_sampler)
        for each in (sampler, *vars(sampler).values()):
            if isinstance(each, self._optuna.samplers.CmaEsSampler):
                hint = "Take TPESampler, GPSampler or RandomSampler."
                rule = "must be none that reads pickles from the study's file, which could run anything"
                raise ParamsError.about("sweep", "sampler", rule, self._make_sampler, hint)
        return sampler


@contextlib.contextmanager
def open_study(folder: Path, sampler: Sampler | None, pruner: Any, seed: int) -> Iterator[Study]:
    """Open the study in a folder, alone, and without a word of Optuna's."""
    optuna = require_optuna()
    written = [folder / name for name in (STUDY, "sweep.json", "sweep.png")]
    refuse_links([*written, *folder.glob("trial-*")], CheckpointError)
    lock, verbosity = FolderLock(folder), optuna.logging.get_verbosity()
    with write_errors(folder, CheckpointError):
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with write_errors(folder / STUDY, CheckpointError):
            study = Study(folder, sampler, pruner, seed)
        yield study
    finally:
        optuna.logging.set_verbosity(verbosity)
        lock.release()


def read_trials(path: Path) -> list[FrozenTrial]:
    """Return the trials of a study by number. Its file is only read, and a sweep may be writing to it."""
    with read_errors(path, CheckpointError):
        open_regular(path).close()
    trials: list[FrozenTrial] = _load(path, require_optuna().load_study).get_trials(deepcopy=False)
    return trials


def require_optuna(owner: str = "rl.sweep") -> Any:
    """Return Optuna, or raise a `MissingExtraError`; `owner` needs it."""
    with importing_extra(owner, "sweep"):
        import optuna
    return optuna


def _load(path: Path, load: Callable[..., Any]) -> Any:
    optuna = require_optuna()
    try:
        # Optuna's own lock for each line is a file, which a kill leaves behind; the folder has one already.
        backend: Any = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=cast(Any, threading.Lock()))
        backend.append_logs = write_errors(path, CheckpointError)(backend.append_logs)
        with read_errors(path, CheckpointError):
            study = load(storage=optuna.storages.JournalStorage(backend), study_name=NAME)
            trials = study.get_trials(deepcopy=False)
        directions = [direction.name for direction in study.directions]
    except CheckpointError:
        raise
    except Exception as error:  # the code expects what it wrote itself
        found = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path}: expected a study of Optuna's; reading it failed ({found})") from error
    if directions != ["MAXIMIZE"]:
        raise CheckpointError(f"{path}: expected a study that maximizes one score, found {readable(directions)}")
    for trial in trials:
        if problem := _problem_of(trial):
            raise CheckpointError(f"{path}: trial {trial.number}: {problem}")
    return study


def _problem_of(trial: FrozenTrial) -> str | None:
    # Optuna believes its file; a sweep and its pictures need scores that are numbers.
    values, noted = trial.values, trial.intermediate_values
    if values is None and trial.state.name == "COMPLETE":
        return "expected a score, found none"
    if values is not None and (len(values) != 1 or not _is_score(values[0])):
        return f"expected one score, found {readable(values)}"
    wrong = {step: score for step, score in noted.items() if not is_int(step) or not _is_score(score)}
    return f"expected scores of test steps by their numbers, found {readable(wrong)}" if wrong else None


def _is_score(value: object) -> bool:
    return is_int(value) or (isinstance(value, float) and not math.isnan(value))
