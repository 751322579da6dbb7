"""The outcome of a sweep: its trials, and the best of them."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rltrainer.errors import CheckpointError, ParamsError, RLTrainerError, readable
from rltrainer.files.json_text import check_depth
from rltrainer.files.regular_file import neighbours_hint
from rltrainer.loggers import RunFolder
from rltrainer.loggers.log_state import read_json_file
from rltrainer.spaces import check_claims
from rltrainer.state.plain import PlainReader
from rltrainer.state.registry import value_named
from rltrainer.tools.recipes import AnyRecipe, OfflineRecipe, Recipe
from rltrainer.tools.sweeps.study import FIELDS, STUDY, FrozenTrial, read_trials, require_optuna
from rltrainer.validation.field_rules import AnyPath, checked

State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class SweepTrial:
    """One trial of a sweep: the values of the fields that vary, and their score."""

    number: int
    state: State
    fields: Mapping[str, Any]
    score: float | None
    """The mean over its seeds of the last test scores; of a pruned trial the last report, of a failed one None."""
    scores: Mapping[int, float]
    """Scores by the number of the test step, from 1, as the pruner saw them."""
    folders: Mapping[int, RunFolder]
    """The folders of its runs by seed."""
    error: str | None = None
    """The traceback of a failed trial, or how its process died."""


@dataclass(frozen=True)
class SweepResult:
    """The outcome of `rl.sweep`; `rl.open_sweep` reads it back."""

    folder: Path
    trials: tuple[SweepTrial, ...]
    swept: AnyRecipe | None = None
    """The recipe that the trials vary; None if a function made the trainers, or the folder only names an env."""

    @property
    def best(self) -> SweepTrial:
        """The complete trial with the highest score; an `RLTrainerError` if there is none yet."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        if not complete:
            text = f"of {len(self.trials)} trials that are over none came to its end"
            raise RLTrainerError(f"SweepResult.best: {text}, in {self.folder}. What failed says why in its error.")
        return max(complete, key=lambda trial: trial.score or 0.0)

    @property
    def recipe(self) -> AnyRecipe:
        """The recipe with the fields of the best trial, to train it for longer; a `ParamsError` without `swept`."""
        if self.swept is None:
            made = "a function made the trainers, or the folder only names an env of your own"
            hint = "Call your function, or your recipe's with_fields, with **result.best.fields."
            raise ParamsError(f"SweepResult.recipe: {made}. {hint}")
        return self.swept.with_fields(**self.best.fields)


# The file that says what a sweep varies, and its seeds.
DESCRIBED = "sweep.json"
# Seeds of a trial that a file may claim.
MAX_SEEDS = 10_000
STATES: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


def open_sweep(folder: str | os.PathLike[str]) -> SweepResult:
    """Read the sweep in a folder, which may still be running; unfinished trials are left out.

    A varying class or function, such as your own, is returned as its name.

    Raises:
        CheckpointError: the folder is missing, no sweep's, or damaged.
        MissingExtraError: Optuna is not installed.
    """
    require_optuna("rl.open_sweep")
    folder = Path(checked("open_sweep", "folder", folder, AnyPath))
    for name in (DESCRIBED, STUDY):
        if not (folder / name).exists():
            missing = f"holds no {name}" if folder.is_dir() else f"is no folder{neighbours_hint(folder)}"
            raise CheckpointError(f"{folder}: expected the folder of a sweep, as rl.sweep makes it; it {missing}")
    described, found = read_json_file(folder / DESCRIBED, "what a sweep varies"), read_trials(folder / STUDY)
    match described:
        case {"make": dict(make), "seed": int(seed), "num_seeds": int(num_seeds)} if 0 < num_seeds <= MAX_SEEDS:
            seeds = range(seed, seed + num_seeds)
        case _:
            raise CheckpointError(f"{folder / DESCRIBED}: expected what a sweep varies, found {readable(described)}")
    trials = [as_trial(each, _fields(folder, each), folder, seeds) for each in found if each.state.is_finished()]
    swept: AnyRecipe | None = None
    with contextlib.suppress(ParamsError):  # a function, or an env that the file only names
        cls = Recipe if "num_env_steps" in make else OfflineRecipe
        swept = cls.from_json(json.dumps({"params": cls.__name__, "fields": make}))
    return SweepResult(folder, tuple(trials), swept)


def as_trial(trial: FrozenTrial, fields: Mapping[str, Any], folder: Path, seeds: range) -> SweepTrial:
    """Return a finished trial of a study."""
    error = trial.user_attrs.get("error")
    return SweepTrial(
        trial.number, STATES[trial.state.name], fields, trial.value, dict(sorted(trial.intermediate_values.items())),
        {seed: RunFolder(path) for seed, path in run_paths(folder, trial.number, seeds).items()},
        error if isinstance(error, str) else None,
    )  # fmt: skip


def run_paths(folder: Path, number: int, seeds: range) -> dict[int, Path]:
    """Return the folders of a trial's runs by seed."""
    return {seed: folder / f"trial-{number:03}" / f"seed-{seed}" for seed in seeds}


def _fields(folder: Path, trial: FrozenTrial) -> dict[str, Any]:
    # A trial that ended before its fields were recorded has its draws alone.
    if (plain := trial.user_attrs.get(FIELDS)) is None:
        return dict(trial.params)
    where = f"{folder / STUDY}: the fields of trial {trial.number}"
    try:
        check_depth(plain)
        check_claims(plain, 0)
        reader = PlainReader({}, lambda place, name: f"{readable(name)} is none of rltrainer's")
        fields = reader.read(_with_names(plain), where)
    except ValueError as error:  # or what is one: a ParamsError, a SpaceError
        raise CheckpointError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{where}: expected values by name, found {readable(plain)}")
    return fields


def _with_names(plain: Any) -> Any:
    # Live objects and unknown classes become their names: no file makes a module be imported.
    match plain:
        case {"live": str(name)} | {"params": str(name), "own": _}:
            return name
        case {"known": str(name)} if value_named(name) is None:
            return name
        case {"built": built}:
            return _with_names(built)
        case dict():
            return {key: _with_names(value) for key, value in plain.items()}
        case list():
            return [_with_names(value) for value in plain]
    return plain
