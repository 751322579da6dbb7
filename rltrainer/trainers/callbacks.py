"""The user's callbacks: called so that an error names the field, and checked in what they return."""

from typing import Any

from rltrainer.algorithms import Algorithm
from rltrainer.collect import CollectStats
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.field_rules import as_python, is_int
from rltrainer.hooks.lent import lent
from rltrainer.trainers.run_state import RunState
from rltrainer.trainers.run_stats import Best
from rltrainer.trainers.trainer_params import TrainerParams


def call(params: TrainerParams, field: str, *args: Any) -> Any:
    """Call the callback in this field, if there is one. What it raises goes on, with a note that names the field."""
    callback = getattr(params, field)
    if callback is None:
        return None
    try:
        return callback(*args)
    except Exception as error:
        error.add_note(f"{type(params).__name__}.{field} raised this.")
        raise


def compute_score(params: TrainerParams, stats: CollectStats) -> float:
    """Return what a collection is worth: by `compute_score_fn`, or its mean return.

    Raises:
        ParamsError: `compute_score_fn` returned no number.
    """
    if params.compute_score_fn is None:
        return float(stats.returns.mean())
    score = _plain(call(params, "compute_score_fn", lent(stats)))
    if isinstance(score, float) or is_int(score):
        return float(score)
    raise _wrong_return(params, "compute_score_fn", "must return a number", score, "Return a float.")


def take_score(params: TrainerParams, state: RunState, algorithm: Algorithm, stats: CollectStats) -> float:
    """Return the score of a test step; if it is the best so far, take it for that, and call `save_best_fn`."""
    score, before = compute_score(params, stats), state.best
    if not before.is_beaten_by(score):
        return score
    state.best = Best(score, float(stats.returns.mean()), float(stats.returns.std()), state.counters.epoch)
    try:
        call(params, "save_best_fn", algorithm)
    except BaseException:
        state.best = before  # what was not saved is not the best that there is
        raise
    return score


def wants_to_stop(params: TrainerParams, score: float) -> bool:
    """Return what `stop_fn` says of a score; without one, a run goes on.

    Raises:
        ParamsError: it returned neither True nor False.
    """
    if params.stop_fn is None:
        return False
    answer = _plain(call(params, "stop_fn", score))
    if isinstance(answer, bool):
        return answer
    raise _wrong_return(params, "stop_fn", "must return True or False", answer, "Compare: lambda score: score >= 475.")


def _plain(value: Any) -> Any:
    """Return a number of NumPy, or what a tensor or array without axes holds, as Python's."""
    return as_python(value.item() if getattr(value, "shape", None) == () else value)


def _wrong_return(params: TrainerParams, field: str, rule: str, value: object, hint: str) -> ParamsError:
    hint = "Does it lack a return?" if value is None else hint
    return ParamsError(field_error_text(type(params).__name__, field, rule, value, hint))
