"""Train in an env with one line, `rl.train("CartPole-v1")`, which prints what it chose."""

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from rltrainer.algorithms import REDQ, Algorithm, OnPolicyAlgorithm
from rltrainer.algorithms import load as load_algorithm
from rltrainer.algorithms.recommended import a_step_per_sample, offline_fields
from rltrainer.checkpoint.folder_lock import FolderLock
from rltrainer.data import ReplayBuffer
from rltrainer.device import choose_device
from rltrainer.envs.make_vec import newest_version
from rltrainer.envs.wrappers import wrappers_named
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.functional.scores import bootstrap_interval, interquartile_mean
from rltrainer.loggers import Logger, MultiLogger, RunFolder
from rltrainer.nets import NetParams
from rltrainer.ranks.torch_ranks import process_ranks, torchrun_place
from rltrainer.tools.datasets import load
from rltrainer.tools.recipes import cookbook
from rltrainer.tools.recipes.algorithms import OFFLINE, algorithm_named, name_of
from rltrainer.tools.recipes.cookbook import START, epochs_of, recipe_of, seeds_in, write_recipe
from rltrainer.tools.recipes.recipe import AnyEnv, AnyRecipe, Data, OfflineRecipe, Recipe, VectorEnv, vector_env
from rltrainer.tools.runs import SeedRun, open_run, run_seeds
from rltrainer.tools.runs.processes import check_travels
from rltrainer.tools.runs.ranked import ranks_to_start, run_ranks
from rltrainer.trainers import InfoStats, Trainer
from rltrainer.validation.field_rules import AnyPath, PositiveInt, checked, is_finite
from rltrainer.validation.suggestions import SuggestsAttributes

# Fields that recommended settings depend on.
SHAPES = {"num_envs", "env_kwargs", "wrappers", "backend", "start", "data", "offline_share"}
# REDQ with data (Ball et al. 2023, 2302.02948, section 4): 10 critics with layer normalisation.
RLPD: dict[str, Any] = {
    "policy": {"num_critics": 10, "critic_net": NetParams(norm="layer")}, "source": "RLPD, Ball et al. 2023",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Training(SuggestsAttributes):
    """The outcome of `rl.train`."""

    algorithm: Algorithm
    """The algorithm as it was at the best test step."""
    folder: RunFolder
    """The run's folder: log, best algorithm, checkpoints, recipe."""
    info: InfoStats
    recipe: AnyRecipe
    """The settings of the run."""
    runs: tuple["SeedRun[Training]", ...] = ()
    """With `num_seeds` the training of each seed; a failed one has its error. The fields above are the best seed's, and
    the folder has all."""
    iqm: float | None = None
    """Interquartile mean of the seeds' last test scores, as in `rl.plots`; None without test steps."""
    interval: tuple[float, float] | None = None
    """Its 95 % interval, by `rl.scores.bootstrap_interval`."""


def train(
    env: str | VectorEnv | Callable[[], gym.Env[Any, Any] | VectorEnv] | None = None,
    algorithm: str | type[Algorithm] | Algorithm | None = None,
    *,
    data: str | os.PathLike[str] | ReplayBuffer | None = None,
    offline_share: float | None = None,
    folder: str | os.PathLike[str] = "runs",
    num_ranks: int | None = None,
    num_seeds: int | None = None,
    **fields: Any,
) -> Training:
    """Train an agent by the best recipe for an env, in a numbered folder of its own.

    Without a recipe it takes the `recommended` fields of PPO, or of SAC for actions in a bounded Box; from `data`, of
    TD3+BC, or of discrete CQL for discrete actions; in an env and from `data`, of REDQ as RLPD has it, or of double
    DQN. It prints its choice and writes it to the folder.

    Args:
        env: a gymnasium id, a factory of envs or vector envs, or a vector env, which trains without test steps, as they
            need envs of their own. With `data`, the env of test steps; None makes none.
        algorithm: its name, "ppo", "sac", ..., or a class of your own; None takes the recipe's. Or an algorithm whose
            networks, optimizers and params continue, such as `result.algorithm` of a run on data; the object itself
            does not change.
        data: train offline from a file or folder as `rl.datasets.load` reads it, the name of a Minari data set, or a
            buffer. With `offline_share` train in the env, and from the data as well.
        offline_share: share of `data` in each batch, between 0 and 1; 0.5 in RLPD (Ball et al. 2023).
        folder: where the folder is made.
        num_ranks: processes of this machine that train together, as `torchrun` starts them; see `ParallelParams`. The
            call then stands under `if __name__ == "__main__":`, and its arguments are pickled.
        num_seeds: train with the seeds `seed`, `seed + 1`, ..., each in a process as `rl.run_seeds` starts it, and in
            `seed-N` of the folder. `rl.resume` of that folder resumes all. As for `num_ranks`, arguments are pickled.
        fields: changes by name: fields of `Recipe` (`num_env_steps`, `num_envs`, `seed`, `device`), of the algorithm's
            params (`lr`), of the trainer's (`batch_size`, `stop_fn`, `hooks`), or of the policy (`hidden_sizes`).

    Raises:
        ParamsError: an argument breaks its rule, or a field is none of these.
        RLTrainerError: a rank failed; the text has its traceback.
    """
    named: Any = {"env": env, "algorithm": algorithm, "data": data, "offline_share": offline_share}
    num_seeds = checked("train", "num_seeds", num_seeds, PositiveInt | None)
    num_started = ranks_to_start("train", num_ranks)
    if num_seeds is not None and (num_started is not None or torchrun_place() is not None):
        rule, hint = "must be None with num_ranks and under torchrun", "Train one seed after the other: seed=..."
        raise ParamsError.about("train", "num_seeds", rule, num_seeds, hint)
    for name, value in {**named, **fields}.items() if num_started or num_seeds else ():
        if not isinstance(value, Algorithm):  # several seeds get it by a file
            check_travels("train", name, value)
    if num_started is not None:
        return train_in_ranks(num_started, **named, folder=folder, **fields)
    data = checked("train", "data", data, Data | None)
    if offline_share is not None:  # fields of a `Recipe`, like others
        fields, data = fields | {"data": data, "offline_share": offline_share}, None
    env = checked("train", "env", env, AnyEnv if data is None else AnyEnv | None)
    folder = checked("train", "folder", folder, AnyPath)
    verbose = fields.get("verbose", True)
    shape = {name: fields[name] for name in SHAPES & fields.keys()}
    start = algorithm if isinstance(algorithm, Algorithm) else None
    if start is not None:
        shape["start"] = START
    recipe, words = choose_recipe(env, name_of(algorithm), shape, data)
    if start is not None:
        recipe = dataclasses.replace(recipe, params=start.params, policy={}, start=START)
        words = f"{recipe.algorithm_name} continues; {words}"
    # Callbacks, hooks and loggers are no data: the trainer gets them, the recipe in the folder lacks them.
    live = {name: fields.pop(name) for name in recipe.live_fields() & fields.keys()}
    found, recipe = recipe, recipe.with_fields(**fields)
    run_folder = RunFolder.new(recipe.name.replace("/", "_"), folder)
    if verbose:
        of_seeds = "" if num_seeds is None else f"{num_seeds} seeds of "
        text = f"rl.train: {words}{rollout_words(found, recipe)}; {of_seeds}{recipe.length}, to {run_folder.path}"
        process_ranks().once(print, text)
    with saying_what_is_saved("rl.train", run_folder, "rl.resume({!r})"):
        if start is not None:
            recipe = recipe.with_fields(start=run_folder.path / START)
        if num_seeds is None:
            return run_recipe(recipe, run_folder, start, **live)
        if start is not None:
            start.save(run_folder.path / START)
        return train_seeds(recipe, range(recipe.seed, recipe.seed + num_seeds), run_folder, **live)


def resume(folder: str | os.PathLike[str], **fields: Any) -> Training:
    """Resume a run of `rl.train` where it ended, bit for bit; a finished run takes more `max_epochs`.

    Args:
        folder: of the run, or of all seeds: `resume` then continues each.
        fields: once more the `env`, `algorithm`, `data` or `buffer` that the run was given as an object or class, and
            callbacks, hooks and loggers; and changes by name, such as `max_epochs` and `device`.

    Raises:
        CheckpointError: the folder holds no run of `rl.train`, its checkpoints are gone or damaged, or an object that
            the run was given is missing.
        ParamsError: a field breaks its rule, or is none.
    """
    seeds = seeds_in(checked("resume", "folder", folder, AnyPath))
    run_folder = RunFolder(folder) if seeds else open_run(folder).folder
    given = {name: fields.pop(name) for name in {"env", "algorithm", "data", "buffer"} & fields.keys()}
    runs = [(recipe_of(own, **given), own) for own in seeds or [run_folder]]
    live = {name: fields.pop(name) for name in runs[0][0].live_fields() & fields.keys()}
    runs = [(recipe.with_fields(**fields), own) for recipe, own in runs]
    with saying_what_is_saved("rl.resume", run_folder, "rl.resume({!r})"):
        return run_recipes(runs, run_folder, **live) if seeds else run_recipe(*runs[0], **live)


@contextlib.contextmanager
def saying_what_is_saved(owner: str, folder: RunFolder, command: str) -> Iterator[None]:
    """Name the folder of the run, or of all seeds, that Ctrl-C saved, and what resumes it."""
    try:
        yield
    except KeyboardInterrupt:
        if any(folder.path.rglob("checkpoint-*")):
            text = f"{owner}: saved; resume with: {command.format(str(folder.path))}"
            process_ranks().once(print, text, file=sys.stderr)
        raise


def train_in_ranks(num_ranks: int, **arguments: Any) -> Training:
    """Train in processes of this machine, with the arguments of `train`; read the best algorithm from the folder."""
    path, info, recipe = run_ranks("train", num_ranks, partial(_train_rank, arguments))
    return _trained(recipe, RunFolder(path), info)


def _train_rank(arguments: dict[str, Any]) -> tuple[Path, InfoStats, AnyRecipe]:
    training = train(**arguments)
    if not training.folder.best.exists():  # the last is the best that is known
        process_ranks().once(training.algorithm.save, training.folder.best)
    return training.folder.path, training.info, training.recipe


def _trained(recipe: AnyRecipe, folder: RunFolder, info: Any) -> Training:
    """Return what another process trained, with the best algorithm in its folder, or else the last."""
    classes = [recipe.algorithm_class]
    if not folder.best.exists() and (saved := open_run(folder.path).newest_checkpoint) is not None:
        folder.save_best(load_algorithm(saved, classes=classes))
    return Training(load_algorithm(folder.best, classes=classes), folder, info, recipe)


def train_seeds(recipe: AnyRecipe, seeds: Iterable[int], folder: RunFolder, /, **live: Any) -> Training:
    """Train with several seeds, each in its folder below `folder`; see `run_recipe`."""
    runs = [(dataclasses.replace(recipe, seed=seed), RunFolder(folder.path / f"seed-{seed}")) for seed in seeds]
    for run in runs:  # before the first one trains, so that all can be resumed
        run[1].checkpoints.mkdir(parents=True)  # a run with a recipe and without this folder has lost it
        write_recipe(*run)
    return run_recipes(runs, folder, **live)


def run_recipes(runs: list[tuple[AnyRecipe, RunFolder]], folder: RunFolder, /, **live: Any) -> Training:
    """Train or resume the runs of several seeds, which have a folder together, in processes; see `run_recipe`."""
    by_seed, options = {run[0].seed: run for run in runs}, runs[0][0].trainer
    make = partial(_trainer_of_seed, by_seed, live)
    ended: list[SeedRun[Any]] = run_seeds(make, by_seed, show_progress=options.get("show_progress", True))
    trained = {run.seed: _trained(*by_seed[run.seed], run.result) for run in ended if run.error is None}
    lines = [f"seed {seed}: best score {each.info.best_score}, {each.folder.path}" for seed, each in trained.items()]
    lines += [f"seed {run.seed}: failed, {by_seed[run.seed][1].path}" for run in ended if run.error is not None]
    best = max(trained.values(), key=lambda each: -math.inf if (score := each.info.best_score) is None else score)
    last = [open_run(each.folder.path).rows("test").get("score", [math.nan])[-1] for each in trained.values()]
    iqm = interval = None
    if scores := [score for score in last if is_finite(score)]:
        low, high = map(float, bootstrap_interval(interquartile_mean, scores, num_resamples=50_000))
        iqm, interval = float(interquartile_mean(scores)), (low, high)
        lines.append(f"IQM of {len(scores)} seeds: {iqm:.4g}, 95 % interval {low:.4g} to {high:.4g}")
    if options.get("verbose", True):
        print("\n".join(lines))
    found = tuple(dataclasses.replace(run, result=trained.get(run.seed)) for run in ended)
    return dataclasses.replace(best, folder=folder, runs=found, iqm=iqm, interval=interval)


def _trainer_of_seed(runs: dict[int, tuple[AnyRecipe, RunFolder]], live: Any, seed: int) -> Trainer[Any, Any]:
    recipe, folder = runs[seed]
    if folder.checkpoints.exists():  # a process of a killed program may still be saving there
        FolderLock(folder.checkpoints).wait().release()
    if (checkpoint := live.get("checkpoint")) is not None:  # its folder is for all seeds
        path = Path(checkpoint.folder) / folder.path.name / folder.checkpoints.name
        live = {**live, "checkpoint": dataclasses.replace(checkpoint, folder=path)}
    return make_trainer(recipe, folder, **live)


def run_recipe(recipe: AnyRecipe, folder: RunFolder, start: Algorithm | None = None, /, **live: Any) -> Training:
    """Train by a recipe in a folder, or resume the run in it; return the best algorithm (without test steps, the last).

    Args:
        recipe: the settings.
        folder: of this run alone; a run there that has lost its checkpoints is a `CheckpointError`.
        start: the algorithm that continues, saved where the recipe says; None reads it from there.
        live: further fields of the trainer's params, such as `hooks`.
    """
    trainer = make_trainer(recipe, folder, start, **live)
    if trainer.params.verbose:
        print(devices_line(recipe, trainer))
    try:
        info = trainer.run()
    finally:
        for collector in trainer.params.collectors().values():
            if getattr(collector, "envs", None) is not recipe.env:  # a vector env of the user's stays open
                collector.close()
    if trainer.params.test_collector is None:
        trainer.ranks.once(trainer.algorithm.save, folder.best)  # the last is the best that is known
    elif folder.best.exists():
        trainer.algorithm.load(folder.best)
    return Training(trainer.algorithm, folder, info, recipe)


def make_trainer(
    recipe: AnyRecipe, folder: RunFolder, start: Algorithm | None = None, /, **live: Any
) -> Trainer[Any, Any]:
    """Return the trainer of a new run in a folder, or of the run in it; takes and raises what `run_recipe` does."""
    if (num_epochs := epochs_of(folder)) is not None and num_epochs != recipe.max_epochs:
        # More epochs of the same length: the recipe alone would split its steps into other epochs.
        live, recipe = {"max_epochs": recipe.max_epochs} | live, dataclasses.replace(recipe, max_epochs=num_epochs)
    if num_epochs is not None and "checkpoint" not in live and not folder.checkpoints.exists():
        # A run makes this folder first: it was removed.
        hint = f"Train on from its best algorithm, in a folder of its own: rltrainer train ... --start {folder.path}"
        text = "its checkpoints are gone, as a sweep removes those of what is over"
        raise CheckpointError(f"{folder.path}: {text}. {hint}")
    try:
        if start is not None:
            start.save(cast(Path, recipe.start))
        if isinstance(own := live.get("logger"), Logger):  # the folder always has JSON lines
            live["logger"] = MultiLogger(*folder.logger().loggers, own)
        trainer = recipe.make_trainer(run_folder=folder, **live)
    except BaseException:
        with contextlib.suppress(OSError):
            if start is not None:
                Path(cast(Path, recipe.start)).unlink()
            folder.path.rmdir()  # only an empty folder, without a run
        raise
    trainer.ranks.once(write_recipe, recipe, folder)  # only now: without a trainer, the folder is removed
    return trainer


def rollout_words(found: AnyRecipe, made: AnyRecipe) -> str:
    """Return words about the rollouts of a recipe with more or fewer envs than the found recipe."""
    if not (isinstance(found, Recipe) and isinstance(made, Recipe)) or found.num_envs == made.num_envs:
        return ""
    return "" if made.num_rows is None else f", with rollouts of {made.num_rows:,} steps of each env"


def devices_line(recipe: AnyRecipe, trainer: Trainer[Any, Any]) -> str:
    """Return a line that says where networks and replay buffer are, and why."""
    policy = trainer.algorithm.policy
    choice, why = choose_device(policy, policy.observation_space, recipe.backend)
    why = why if torch.device(choice).type == policy.device.type else "the run began there"
    buffer = getattr(trainer.params, "buffer", None)
    words = f"networks on {policy.device}{f', as {why}' if recipe.device == 'auto' else ''}"
    return words if buffer is None else f"{words}; replay buffer on {buffer.device}"


def for_env(env: str | Callable[[], gym.Env[Any, Any]], algorithm: str | None = None) -> Recipe:
    """Return the recipe that `rl.train` takes for an env; if there is none, one of the algorithm's recommended fields.

    Args:
        env: a gymnasium id, or a factory of envs; anything else is a `ParamsError`.
        algorithm: its name; None leaves the choice to the env. An unknown name is a `ParamsError`.
    """
    return cast(Recipe, choose_recipe(checked("recipes.for_env", "env", env, AnyEnv), algorithm, {})[0])


def choose_recipe(env: Any, algorithm: Any, shape: dict[str, Any], data: Any = None) -> tuple[AnyRecipe, str]:
    """Return the recipe for an env or data, and words on the choice; `shape` has fields of `SHAPES`.

    Data in `shape` are beside the env. The name of a recipe in place of an env raises a `ParamsError`.
    """
    if algorithm is not None:
        algorithm_named("train", algorithm)
    if data is not None:
        recipe = recommended_recipe(env, algorithm, shape, data)
        return recipe, f"the recommended settings of {recipe.algorithm_name} on data"
    env = newest_version(env) if isinstance(env, str) else env
    # The name of a recipe instead of an id, such as ppo/CartPole-v1.
    if env in cookbook.names():
        meant, _, of = env.partition("/")
        hint = f"It is a recipe: rl.train({of!r}, {meant!r}), or --recipe in a command."
        raise ParamsError.about("train", "env", "must be the id of an env", env, hint)
    has_name = isinstance(env, str) and not isinstance(algorithm, type)
    if algorithm is None and "offline_share" in shape:  # the best recipe may be of an algorithm that cannot learn so
        has_name = False
    if (choice := cookbook.find(env, algorithm) if has_name else None) is None:
        recipe = recommended_recipe(env, algorithm, shape, None)
        words = f"no recipe for {recipe.env_name}, so the recommended settings of {recipe.algorithm_name}"
        return recipe, words if algorithm is not None or "start" in shape else f"{words}, a guess"
    found, words = choice
    both = {name: shape[name] for name in ("data", "offline_share") if name in shape}
    return found.with_fields(env=env, **both), words if found.env == env else f"{words}, as there is none for {env}"


def recommended_recipe(env: Any, algorithm: Any, shape: dict[str, Any], data: Any) -> AnyRecipe:
    """Return a recipe of recommended settings; if no algorithm is named, for one that suits the actions."""
    kwargs = shape.get("env_kwargs") or {}
    wrappers = shape.get("wrappers", ())
    num_envs = shape.get("num_envs")
    owner = (Recipe if data is None else OfflineRecipe).__name__
    options: Any = {"wrappers": wrappers_named(owner, "wrappers", wrappers), **kwargs}
    if shape.get("backend") == "tensor":  # the others make the same spaces
        options["backend"] = "tensor"
    opened: Any = contextlib.nullcontext if isinstance(env, gym.vector.VectorEnv) else contextlib.closing
    if algorithm is None:
        if env is not None:  # data may say less, and take long to read
            with opened(vector_env(owner, env, 1, **options)) as one:
                space = one.single_action_space
        else:
            space = (data if isinstance(data, ReplayBuffer) else load(data)).action_space
        is_plain = isinstance(space, spaces.Box) and len(space.shape) == 1 and space.is_bounded()
        for_boxes, for_others = ("sac", "ppo") if data is None else ("td3bc", "discrete_cql")
        if "offline_share" in shape:
            for_boxes, for_others = "redq", "double_dqn"
        algorithm = for_boxes if is_plain and np.issubdtype(space.dtype, np.floating) else for_others
    cls: Any = algorithm_named("train", algorithm)
    shared: Any = {"algorithm": algorithm, "env": env, "params": cls.params_class()}
    shared["source"] = f"{cls.__name__}.recommended"
    if data is not None:
        return OfflineRecipe(data=data, trainer=dict(offline_fields(cls)), **shared)
    is_on_policy = issubclass(cls, OnPolicyAlgorithm)
    of_online: Any = getattr(cls, "recommended", lambda envs: {})
    if algorithm in OFFLINE:  # it was trained on data, and continues in an env
        of_online, shared["start"] = partial(a_step_per_sample, cls), shape.get("start")
    if "offline_share" in shape:
        shared |= {"data": shape.get("data"), "offline_share": shape["offline_share"]}
        shared |= RLPD if issubclass(cls, REDQ) else {}
    with opened(vector_env(owner, env, num_envs or (8 if is_on_policy else 1), **options)) as envs:
        return Recipe(
            env_kwargs=kwargs, wrappers=wrappers, num_envs=envs.num_envs, trainer=dict(of_online(envs)),
            num_env_steps=1_000_000 if is_on_policy else 200_000, **shared,
        )  # fmt: skip
