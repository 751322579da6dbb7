"""The outcome of a sweep: its trials, and the best of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rltrainer.errors import ParamsError, RLTrainerError
from rltrainer.loggers import RunFolder
from rltrainer.tools.recipes import AnyRecipe

State = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class SweepTrial:
    """One choice of what a sweep varies, and what came of it.

    Args:
        number: from 0.
        state: "complete", "pruned", or "failed".
        fields: what it had of the fields that vary, by name.
        score: the mean over its seeds of the scores of the last test steps; of a pruned trial what it had come to,
            None of a failed one.
        scores: the scores of its test steps, by their number from 1, as the pruner saw them.
        folders: of its runs, by seed.
        error: the traceback if it failed, or how its process died; else None.
    """

    number: int
    state: State
    fields: Mapping[str, Any]
    score: float | None
    scores: Mapping[int, float]
    folders: Mapping[int, RunFolder]
    error: str | None = None


@dataclass(frozen=True)
class SweepResult:
    """The outcome of `rl.sweep`; `rl.open_sweep` reads it back.

    Args:
        path: the folder of the sweep.
        trials: by number.
        swept: the recipe, without what varies; None if a function made the trainers, or if the folder holds only the
            name of what is in it, such as an env of yours.
    """

    path: Path
    trials: tuple[SweepTrial, ...]
    swept: AnyRecipe | None = None

    @property
    def best(self) -> SweepTrial:
        """The trial with the highest score of those that came to their end; of equal ones the first.

        Raises:
            RLTrainerError: none came to its end, so far.
        """
        complete = [trial for trial in self.trials if trial.state == "complete"]
        if not complete:
            text = f"of {len(self.trials)} trials that are over none came to its end"
            raise RLTrainerError(f"SweepResult.best: {text}, in {self.path}. What failed says why in its error.")
        return max(complete, key=lambda trial: trial.score or 0.0)

    @property
    def recipe(self) -> AnyRecipe:
        """The recipe with the fields of the best trial, to train it for longer.

        Raises:
            ParamsError: there is no recipe; see `swept`.
            RLTrainerError: no trial came to its end, so far.
        """
        if self.swept is None:
            made = "a function made the trainers, or the folder only names an env of yours"
            hint = "Call your function, or your recipe's with_fields, with **result.best.fields."
            raise ParamsError(f"SweepResult.recipe: {made}. {hint}")
        return self.swept.with_fields(**self.best.fields)
