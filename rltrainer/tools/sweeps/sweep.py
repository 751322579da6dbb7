"""Many trials of a run, each with other values of some fields: which are the best?

A trial gets its values from Optuna, runs in its own process and reports the score of each test step; Optuna decides
whether it continues. Everything is in one folder, from which the same call continues after a kill.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch

from rltrainer.device import require_device
from rltrainer.errors import CheckpointError, ParamsError, RLTrainerError, escaped, readable
from rltrainer.files.atomic_write import remove, replaced_file, write_errors
from rltrainer.files.json_text import read_json, to_strict_json
from rltrainer.loggers import RunFolder
from rltrainer.loggers.log_state import read_json_file
from rltrainer.state.plain import to_plain
from rltrainer.tools.recipes import AnyRecipe, for_env, get
from rltrainer.tools.recipes.algorithms import ALGORITHMS
from rltrainer.tools.runs.processes import Bar, Job, Listener, Processes, check_program
from rltrainer.tools.runs.ray_processes import RayProcesses
from rltrainer.tools.sweeps.result import DESCRIBED, SweepResult, SweepTrial, as_trial, run_paths
from rltrainer.tools.sweeps.search_space import OWNER, LogUniform, Make, Range, SearchSpace, Space, Uniform
from rltrainer.tools.sweeps.study import FIELDS, FrozenTrial, Study, open_study, require_optuna
from rltrainer.tools.sweeps.trial_process import DiskRefusal, ScoreReport, TrialJob
from rltrainer.validation.field_rules import AnyPath, Flag, NonNegativeInt, PositiveInt, Rule, checked
from rltrainer.validation.suggestions import explains_arguments

if TYPE_CHECKING:
    import optuna

AnySampler = Annotated[
    Callable[..., Any], Rule("a class of Optuna's samplers, or a function that makes one given seed=", callable)
]


@explains_arguments
def sweep(
    make: str | AnyRecipe | Callable[..., Any],
    space: Space | None = None,
    *,
    folder: str | os.PathLike[str],
    num_trials: int = 20,
    num_seeds: int = 1,
    seed: int = 0,
    pruner: "optuna.pruners.BasePruner | None" = None,
    sampler: "Callable[..., optuna.samplers.BaseSampler] | None" = None,
    num_processes: int | None = None,
    executor: Literal["processes", "ray"] = "processes",
    device: str | None = None,
    show_progress: bool = True,
) -> SweepResult:
    """Train with many choices of some fields, and return the best.

    Trials run in processes of one thread. After each test step Optuna gets the score and may prune the trial. The same
    call on the same folder resumes interrupted trials from their checkpoints and starts the rest; checkpoints of
    finished trials are removed. Write the call under `if __name__ == "__main__":`.

    Args:
        make: the name of a recipe, an env's id (for its best recipe), a recipe, or a function of a seed and, by name,
            the varying values, which returns a trainer with a test collector, or a score; `rl.seed` is called before.
        space: a range for each varying field (of `rl.train`) or argument of the function: `rl.Uniform`,
            `rl.LogUniform`, Python's `range` for integers, or a list of values. Or a function of an Optuna trial that
            returns values by name. None: the usual ranges of the recipe's algorithm.
        folder: of this sweep alone.
        num_trials: in all, including earlier calls.
        num_seeds: runs of each trial, one after the other, with `seed`, `seed + 1`, ...; their mean counts.
        seed: of the first run of each trial, and of Optuna's draws.
        pruner: None takes Optuna's median pruner, after five trials and a third of a run;
            `optuna.pruners.NopPruner()` prunes none.
        sampler: called with `seed=`, such as `optuna.samplers.GPSampler`; None takes `TPESampler`.
        num_processes: trials at a time; None takes one per core. With 1 the trials are reproducible, even after a kill.
        executor: "processes" of this machine, or "ray": each trial is a task in the Ray cluster that the program is
            connected to, with one CPU and, if its recipe trains on CUDA, one GPU. All nodes need the folder.
        device: of a recipe's trials, in place of its own; a later call on the folder may name another.

    Raises:
        ParamsError: an argument breaks its rule, a name is no field, or a field refuses a value of its range.
        CheckpointError: the folder holds another sweep, is damaged, cannot be written, or is in use by another
            process. A trial that a full disk ended is resumed by the same call.
        RLTrainerError: no trial finished; the text has the first one's traceback.
        MissingExtraError: Optuna, or Ray for its executor, is not installed.
    """
    require_optuna()
    folder = Path(checked(OWNER, "folder", folder, AnyPath))
    limit = checked(OWNER, "num_processes", num_processes, PositiveInt | None)
    num_trials = checked(OWNER, "num_trials", num_trials, PositiveInt)
    num_seeds = checked(OWNER, "num_seeds", num_seeds, PositiveInt)
    seed = checked(OWNER, "seed", seed, NonNegativeInt)
    if checked(OWNER, "executor", executor, Literal["processes", "ray"]) == "ray":
        folder = folder.absolute()  # tasks have another working directory
    is_shown = checked(OWNER, "show_progress", show_progress, Flag)
    checked(OWNER, "sampler", sampler, AnySampler | None)
    made = _as_make(make)
    if device is not None:
        if not isinstance(made, AnyRecipe):
            hint = "Let the function move its policy."
            raise ParamsError.about(OWNER, "device", "must be None with a function", device, hint)
        made = made.with_fields(device=device)
    gpu = torch.device(made.device) if isinstance(made, AnyRecipe) and made.device.startswith("cuda") else None
    # Each trial would fail, and count. A GPU that exists is not tried, as a try would take its memory.
    if executor == "processes" and gpu is not None and (gpu.index or 0) >= torch.cuda.device_count():
        require_device(OWNER, str(gpu))
    searched = SearchSpace(made, default_ranges(made) if space is None else space)
    check_program(OWNER, made)
    with open_study(folder, sampler, pruner, seed) as study:
        trained = made.to_plain()["fields"] if isinstance(made, AnyRecipe) else to_plain(made)
        if isinstance(made, AnyRecipe):
            del trained["device"]  # it may change
        described = {"make": trained, "space": searched.to_plain(), "num_seeds": num_seeds, "seed": seed}
        _check_same(folder / DESCRIBED, described)
        with Bar("trials", num_trials, is_shown) as bar:
            trials = _Trials(study, searched, made, folder, range(seed, seed + num_seeds), bar)
            processes = functools.partial(RayProcesses, gpu is not None) if executor == "ray" else Processes
            processes(OWNER, "trial", limit, trials).run(trials.jobs(num_trials))
        found = tuple(map(trials.read, range(len(study.trials))))
    if not any(trial.state == "complete" for trial in found):
        failed = next((trial for trial in found if trial.error), None)
        why = "" if failed is None else f"; trial {failed.number}:\n{failed.error}"
        raise RLTrainerError(f"sweep: none of {len(found)} trials came to its end{why}")
    return SweepResult(folder, found, made if isinstance(made, AnyRecipe) else None)


class _Trials(Listener):
    """Starts the trials of a sweep, answers their reports and records their ends, and moves the bar."""

    def __init__(self, study: Study, space: SearchSpace, make: Make, folder: Path, seeds: range, bar: Bar) -> None:
        self._study, self._space, self._make, self._folder, self._seeds = study, space, make, folder, seeds
        self._bar = bar
        self._running: dict[int, optuna.trial.Trial] = {}

    def jobs(self, num_trials: int) -> Iterator[tuple[int, Job]]:
        """Yield the interrupted trials, then new ones up to `num_trials` in all."""
        earlier = self._study.trials
        for trial in earlier:  # a kill may have come between their ends and this
            self._remove_checkpoints(trial)
        cut_off = [trial.number for trial in earlier if not trial.state.is_finished()]
        for number in range(len(earlier)):
            self._bar.move(number, float(number not in cut_off))
        for number in [*cut_off, *range(len(earlier), num_trials)]:
            trial = self._running[number] = self._study.begin(number)
            fields = self._space.draw(trial)
            if FIELDS not in trial.user_attrs:  # for readers without the program; a killed sweep may have noted it
                trial.set_user_attr(FIELDS, to_plain(fields))
            yield number, TrialJob(self._make, fields, run_paths(self._folder, number, self._seeds))

    def answer(self, number: int, question: ScoreReport) -> bool:
        """Return whether to prune a trial after a test step."""
        step, num_tests = question.step, question.num_tests
        self._bar.move(number, min(step / (num_tests * len(self._seeds)), 1.0))
        return self._study.is_pruned(self._running[number], step, question.score, num_tests)

    def ended(self, number: int, result: Any, error: str | None) -> None:
        """Record a trial's score or error; a full disk is a `CheckpointError`, and the next call resumes the trial."""
        if isinstance(result, DiskRefusal):
            text = f"the disk ended trial {number} ({result.cause})"
            hint = "The same call takes it up again, with those that were running, when the disk can be written"
            raise CheckpointError(f"{self._folder}: {text}. {hint}.\n{result.traceback}")
        self._study.end(self._running.pop(number), result, error)
        self._remove_checkpoints(self._study.trials[number])
        trial = self.read(number)
        if error is not None:
            print(f"sweep: trial {number} failed ({_words(trial.fields)}):\n{error}", file=sys.stderr)
        else:
            score = "" if trial.score is None else f", score {trial.score:.6g}"
            self._bar.write(f"trial {number}: {trial.state}{score} ({_words(trial.fields)})")
        scores = [each.value for each in self._study.trials if each.state.name == "COMPLETE" and each.value is not None]
        self._bar.move(number, 1.0, **({"best_score": f"{max(scores):.4g}"} if scores else {}))

    def _remove_checkpoints(self, trial: FrozenTrial) -> None:
        if trial.state.name in ("COMPLETE", "PRUNED"):
            for path in run_paths(self._folder, trial.number, self._seeds).values():
                remove(RunFolder(path).checkpoints)

    def read(self, number: int) -> SweepTrial:
        """Return a finished trial."""
        trial = self._study.trials[number]
        try:
            fields = self._space.draw(require_optuna().trial.FixedTrial(trial.params, number))
        except (KeyError, ValueError) as error:
            if trial.state.name != "FAIL":
                raise CheckpointError(f"{self._study.path}: trial {number} is none of this sweep ({error})") from error
            fields = dict(trial.params)  # it failed while they were drawn
        return as_trial(trial, fields, self._folder, self._seeds)


def _as_make(make: str | Make) -> Make:
    if isinstance(make, str):
        return get(make) if make.partition("/")[0] in ALGORITHMS else for_env(make)
    if isinstance(make, AnyRecipe) and make.env is None:
        make.raise_invalid("env", "must be what trials are tested in", "A sweep compares scores of test steps.")
    if isinstance(make, AnyRecipe) or callable(make):
        return make
    rule = "must be the name of a recipe, an env's id, a recipe, or a function (seed, **fields) -> trainer"
    raise ParamsError.about(OWNER, "make", rule, make)


def _check_same(path: Path, described: dict[str, Any]) -> None:
    # The first call writes what the sweep is, later calls compare.
    if not path.exists():
        with write_errors(path, CheckpointError), replaced_file(path) as file:
            file.write((to_strict_json(described) + "\n").encode())
        return
    found, given = read_json_file(path, "what a sweep varies"), read_json(to_strict_json(described))
    for name, there, here in _differences(found, given):
        text = f"{name}: the folder's sweep has {readable(there)}, this one {readable(here)}"
        raise CheckpointError(f"{path}: {text}. Another sweep needs another folder.")


def _differences(found: Any, given: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(found, dict) and isinstance(given, dict):
        for key in dict.fromkeys([*found, *given]):
            yield from _differences(found.get(key, "nothing"), given.get(key, "nothing"), f"{name}.{key}".lstrip("."))
    elif found != given:
        yield name or "it", found, given


def _words(fields: Mapping[str, Any]) -> str:
    texts = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in fields.items()}
    return escaped(", ".join(f"{name}={text}" for name, text in texts.items()))


_NET: dict[str, Range] = {"hidden_sizes": [(64, 64), (256, 256), (400, 300)]}
_GAMMA: dict[str, Range] = {"gamma": [0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999]}
_ON_POLICY: dict[str, Range] = {
    "lr": LogUniform(1e-5, 2e-3), **_GAMMA, "gae_lambda": [0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0],
    "collection_step_num_env_steps": [256, 512, 1024, 2048, 4096], **_NET,
}  # fmt: skip
_OFF_POLICY: dict[str, Range] = {"lr": LogUniform(1e-5, 2e-3), **_GAMMA, "batch_size": [32, 64, 128, 256, 512], **_NET}
_ACTOR_CRITIC: dict[str, Range] = {**_OFF_POLICY, "tau": [0.001, 0.005, 0.01, 0.02, 0.05]}
_TD3: dict[str, Range] = {**_ACTOR_CRITIC, "exploration_noise": Uniform(0.05, 0.5)}
_CROSSQ: dict[str, Range] = {**_OFF_POLICY, "critic_lr": LogUniform(1e-5, 2e-3)}
_SAC: dict[str, Range] = {**_ACTOR_CRITIC, **_CROSSQ}
_LAMBDA_RETURNS: dict[str, Range] = {
    "lr": LogUniform(1e-5, 2e-3), **_GAMMA, "td_lambda": [0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 0.95], **_NET
}  # fmt: skip
_PQN: dict[str, Range] = {
    **_LAMBDA_RETURNS, "collection_step_num_env_steps": [256, 512, 1024, 2048, 4096],
    "batch_size": [32, 64, 128, 256, 512],
}  # fmt: skip
_Q_LEARNING: dict[str, Range] = {**_OFF_POLICY, "target_update_interval": [1, 100, 500, 1000, 5000]}
_A2C: dict[str, Range] = {
    **_ON_POLICY, "entropy_coef": LogUniform(1e-8, 0.1), "value_coef": Uniform(0.1, 1.0),
    "max_grad_norm": [0.3, 0.5, 0.7, 1.0, 2.0, 5.0],
}  # fmt: skip
DEFAULT_RANGES: dict[str, dict[str, Range]] = {
    "a2c": _A2C | {"collection_step_num_env_steps": [32, 64, 128, 256, 512]},
    "crossq": _CROSSQ,
    "ddpg": _TD3,
    "dqn": _Q_LEARNING,
    "flashsac": {**_SAC, "hidden_sizes": [(64,), (128,), (128, 128), (256, 256)]},
    "ppo": _A2C
    | {"batch_size": [32, 64, 128, 256, 512], "update_step_num_repetitions": [1, 5, 10, 20], "clip": [0.1, 0.2, 0.3]},
    "pqn": _PQN,
    "qrdqn": _Q_LEARNING,
    "recurrent_pqn": {**_LAMBDA_RETURNS, "cell_size": [64, 128, 256]},
    "sac": _SAC,
    "simbav2": {**_CROSSQ, **_ACTOR_CRITIC, "hidden_sizes": [(64,), (128,), (256,)]},
    "td3": _TD3,
    "tqc": _SAC | {"num_dropped": range(0, 6)},
    "trpo": _ON_POLICY | {"target_kl": [0.001, 0.005, 0.01, 0.02, 0.05], "num_cg_steps": [5, 10, 20]},
    "xqc": _CROSSQ,
}


def default_ranges(make: Make) -> Mapping[str, Range]:
    """Return the usual ranges for a recipe's algorithm; a `ParamsError` if there are none."""
    if not isinstance(make, AnyRecipe) or make.algorithm not in DEFAULT_RANGES:
        who = make.algorithm if isinstance(make, AnyRecipe) else "a function"
        hint = f"Usual ranges are there for {', '.join(DEFAULT_RANGES)}"
        raise ParamsError(f"{OWNER}.space: must say what varies, as there are no usual ranges for {who}. {hint}.")
    ranges = DEFAULT_RANGES[make.algorithm]
    return {name: values for name, values in ranges.items() if not (name == "hidden_sizes" and "net" in make.policy)}
