"""The data of pictures as arrays: curves of runs, several runs on common steps, the scores they ended with.

NumPy only; knows the rows of a run, and no picture.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.tools.recipes import recipe_of
from rltrainer.tools.runs import Run, open_run
from rltrainer.tools.runs.opened_run import runs_in

Array: TypeAlias = NDArray[np.float64]
# An opened run, or its folder.
AnyRun: TypeAlias = Run | str | os.PathLike[str]
# Runs, which are grouped by their params, or groups of them by name.
Runs: TypeAlias = AnyRun | Sequence[AnyRun] | Mapping[str, AnyRun | Sequence[AnyRun]]

# Larger numbers may have an infinite difference or square; no return and no loss is so large.
LARGEST = 1e150
# Points of a curve of several runs; more would not be seen.
MAX_POINTS = 300
# Fields of a trainer in which two runs of one algorithm may differ.
OF_ONE_RUN = frozenset({"seed", "logger", "checkpoint", "verbose", "show_progress", "resume_from_log"})


@dataclass(frozen=True)
class Curve:
    """The finite values of one number in a log, over increasing steps."""

    step: Array
    value: Array


def as_run(run: AnyRun) -> Run:
    """Return the run, opened."""
    return run if isinstance(run, Run) else open_run(run)


def as_runs(runs: AnyRun | Sequence[AnyRun]) -> list[Run]:
    """Return one run or several, opened; a folder of runs, as several seeds have it, stands for all of them."""
    given: Sequence[AnyRun] = [runs] if isinstance(runs, str | os.PathLike | Run) else runs
    found: list[Sequence[AnyRun]] = [[run] if isinstance(run, Run) else runs_in(Path(run)) or [run] for run in given]
    return [as_run(run) for of_folder in found for run in of_folder]


def curve(run: Run, value: str) -> Curve | None:
    """Return the curve of a number, such as "test/return"; None if the log lacks it."""
    kind, _, name = value.partition("/")
    return curves(run, kind, name).get(name)


def curves(run: Run, kind: str, only: str | None = None) -> dict[str, Curve]:
    """Return the curves of all numbers of a kind of row, or of one, by name, without numbers that were never finite."""
    rows, found = run.rows(kind), dict[str, Curve]()  # once: a log may have a million
    for name in [each for each in rows if each != "step"] if only is None else {only} & rows.keys():
        is_finite = np.abs(rows[name]) <= LARGEST
        # The last row of a step counts: it is the first in reverse.
        step, last = np.unique(rows["step"][is_finite][::-1], return_index=True)
        if len(step):
            found[name] = Curve(step.astype(np.float64), rows[name][is_finite][::-1][last])
    return found


def needed_curve(owner: str, run: Run, value: str) -> Curve:
    """Return the curve of a number; a `ParamsError` if the log lacks it."""
    found = curve(run, value)
    if found is None:
        names = [f"{kind}/{name}" for kind in run.kinds for name in run.rows(kind) if name != "step"]
        rule = f"must be a number in the log of {run.folder.path}, one of {', '.join(names) or 'none, as it is empty'}"
        raise ParamsError.about(owner, "value", rule, value)
    return found


def on_common_steps(curves: Sequence[Curve]) -> tuple[Array, Array]:
    """Return several runs' curves at the same steps: step [K] and value [K, R], where all of them have data."""
    # A run that ended sooner ends all: its later values are not guessed. Without a common step K is 0.
    first, last = max(each.step[0] for each in curves), min(each.step[-1] for each in curves)
    steps = np.unique(np.concatenate([each.step for each in curves]))
    steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) > MAX_POINTS:
        steps = steps[np.linspace(0, len(steps) - 1, MAX_POINTS).round().astype(int)]
    return steps, np.stack([np.interp(steps, each.step, each.value) for each in curves], axis=-1)


def step_unit(run: Run) -> str:
    """Return what the steps of a log count."""
    is_offline = "buffer" in run.trainer and "training_collector" not in run.trainer
    return "gradient steps" if is_offline else "env steps"


def grouped(owner: str, runs: Runs) -> dict[str, list[Run]]:
    """Return opened runs by group: as named, or by algorithm, env and params without the seed; none: `ParamsError`."""
    if isinstance(runs, Mapping):
        groups = {str(name): as_runs(of_name) for name, of_name in runs.items()}
    else:
        groups = _by_params(as_runs(runs))
    if not groups or not all(groups.values()):
        rule = "must be runs or their folders, or lists of them by name, and not be empty"
        raise ParamsError.about(owner, "runs", rule, runs)
    return groups


def grouped_by_env(owner: str, runs: Runs) -> dict[str, dict[str, list[Run]]]:
    """Return opened runs by env, and by the name of their group in it; see `grouped`."""
    groups = grouped(owner, runs)
    every = [run for of_name in groups.values() for run in of_name]
    envs = {run.folder.path: env_name(run) for run in every}
    names = list(dict.fromkeys(envs.values()))
    # Named groups stay together; so do runs if one does not know its env, which is then the only known one, or "".
    if isinstance(runs, Mapping) or len(names) < 2 or None in names:
        return {(names[0] or "") if len(names) == 1 else "": groups}
    return {str(env): grouped(owner, [run for run in every if envs[run.folder.path] == env]) for env in names}


def _by_params(runs: list[Run]) -> dict[str, list[Run]]:
    # A group's name is its algorithm's, with the fields that tell it from the algorithm's other groups.
    settings = [_settings(run) for run in runs]
    found: dict[str, list[Run]] = {}
    for run, own in zip(runs, settings, strict=True):
        kin = [other for other in settings if other["algorithm"] == own["algorithm"]]
        names = dict.fromkeys(name for each in kin for name in each)
        differing = [name for name in names if any(each.get(name) != own.get(name) for each in kin)]
        parts = [own["algorithm"], *(f"{name.rpartition('.')[2]} {own.get(name)}" for name in differing)]
        found.setdefault(", ".join(parts), []).append(run)
    return found


def _settings(run: Run) -> dict[str, str]:
    # The settings that the runs of a group share, as texts by name.
    found: dict[str, Any] = {f"trainer.{name}": value for name, value in run.trainer.items() if name not in OF_ONE_RUN}
    found |= {f"algorithm.{name}": value for name, value in run.algorithm.items()}
    found = {name: value for name, value in found.items() if not (isinstance(value, dict) and "live" in value)}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}
    env = {} if (name := env_name(run)) is None else {"env": name}
    return {"algorithm": algorithm_name(run) or run.name, **env, **texts}


def env_name(run: Run) -> str | None:
    """Return the name of a run's env, in its recipe or params; None for a factory or wrappers."""
    try:
        return recipe_of(run.folder).env_name
    except CheckpointError:  # there is no recipe, or it names a factory
        return run.env_id


def algorithm_name(run: Run) -> str | None:
    """Return the name of a run's algorithm, if its params hold it."""
    match run.params.get("algorithm"):
        case {"params": str(name)} if run.algorithm_class is None:  # folders from before the class was written there
            return name.removesuffix("Params")
    return run.algorithm_class


def title_of(run: Run) -> str:
    """Return a title for pictures, `PPO on CartPole-v1, seed 0`, or the folder's name if the params lack these."""
    if (algorithm := algorithm_name(run)) is None:
        return run.name
    env, seed = env_name(run), run.trainer.get("seed")
    return algorithm + (f" on {env}" if env else "") + (f", seed {seed}" if isinstance(seed, int) else "")


def run_scores(
    tasks: Mapping[str, AnyRun | Sequence[AnyRun]],
    ranges: Mapping[str, tuple[float, float]] | None = None,
    value: str = "test/score",
) -> Array:
    """Return the last scores [R, M] of an algorithm: R runs (seeds) on each of M tasks.

    `rl.scores` and the pictures of several tasks take this array.

    Args:
        tasks: the runs of each task, by its name, equally many for each.
        ranges: by task, the scores that become 0 and 1, such as a random agent's and an expert's. None leaves all
            scores as they are.
        value: which number of the log; its last value counts.

    Raises:
        ParamsError: tasks have different numbers of runs, a range is missing or empty, or a log lacks the number.
        CheckpointError: a run cannot be read.
    """
    owner = "run_scores"
    opened = {name: as_runs(runs) for name, runs in tasks.items()}
    numbers = {name: len(runs) for name, runs in opened.items()}
    if len(set(numbers.values())) != 1 or 0 in numbers.values():
        raise ParamsError.about(owner, "tasks", "must have equally many runs of each task, one at least", numbers)
    columns = []
    for name, runs in opened.items():
        last = np.array([needed_curve(owner, run, value).value[-1] for run in runs])
        low, high = (0.0, 1.0) if ranges is None else ranges.get(name, (0.0, 0.0))
        if low == high:
            rule = f"must have two different scores for {name!r}, those that become 0 and 1"
            raise ParamsError.about(owner, "ranges", rule, ranges)
        columns.append((last - low) / (high - low))
    return np.column_stack(columns)
