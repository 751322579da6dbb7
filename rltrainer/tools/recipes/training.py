"""Train in an env with one line, `rl.train("CartPole-v1")`, which prints what it chose."""

import contextlib
import dataclasses
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
from rltrainer.data import ReplayBuffer
from rltrainer.device import choose_device
from rltrainer.envs.make_vec import newest_version
from rltrainer.envs.wrappers import wrappers_named
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.loggers import Logger, MultiLogger, RunFolder
from rltrainer.nets import NetParams
from rltrainer.ranks.torch_ranks import process_ranks
from rltrainer.tools.datasets import load
from rltrainer.tools.recipes import cookbook
from rltrainer.tools.recipes.algorithms import OFFLINE, algorithm_named, name_of
from rltrainer.tools.recipes.cookbook import START, epochs_of, recipe_of, write_recipe
from rltrainer.tools.recipes.recipe import AnyEnv, AnyRecipe, Data, OfflineRecipe, Recipe, VectorEnv, vector_env
from rltrainer.tools.runs import open_run
from rltrainer.tools.runs.processes import check_travels
from rltrainer.tools.runs.ranked import ranks_to_start, run_ranks
from rltrainer.trainers import InfoStats, Trainer
from rltrainer.validation.field_rules import AnyPath, checked
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


def train(
    env: str | VectorEnv | Callable[[], gym.Env[Any, Any] | VectorEnv] | None = None,
    algorithm: str | type[Algorithm] | Algorithm | None = None,
    *,
    data: str | os.PathLike[str] | ReplayBuffer | None = None,
    offline_share: float | None = None,
    folder: str | os.PathLike[str] = "runs",
    num_ranks: int | None = None,
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
        fields: changes by name: fields of `Recipe` (`num_env_steps`, `num_envs`, `seed`, `device`), of the algorithm's
            params (`lr`), of the trainer's (`batch_size`, `stop_fn`, `hooks`), or of the policy (`hidden_sizes`).

    Raises:
        ParamsError: an argument breaks its rule, or a field is none of these.
        RLTrainerError: a rank failed; the text has its traceback.
    """
    if (num_started := ranks_to_start("train", num_ranks)) is not None:
        named: Any = {"env": env, "algorithm": algorithm, "data": data, "offline_share": offline_share}
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
        text = f"rl.train: {words}{rollout_words(found, recipe)}; {recipe.length}, to {run_folder.path}"
        process_ranks().once(print, text)
    if start is not None:
        recipe = recipe.with_fields(start=run_folder.path / START)
    with saying_what_is_saved("rl.train", [run_folder], "rl.resume({!r})"):
        return run_recipe(recipe, run_folder, start, **live)


def resume(folder: str | os.PathLike[str], **fields: Any) -> Training:
    """Resume a run of `rl.train` where it ended, bit for bit; a finished run takes more `max_epochs`.

    Args:
        folder: of the run.
        fields: once more the `env`, `algorithm`, `data` or `buffer` that the run was given as an object or class, and
            callbacks, hooks and loggers; and changes by name, such as `max_epochs` and `device`.

    Raises:
        CheckpointError: the folder holds no run of `rl.train`, its checkpoints are gone or damaged, or an object that
            the run was given is missing.
        ParamsError: a field breaks its rule, or is none.
    """
    run_folder, given = open_run(folder).folder, {"env", "algorithm", "data", "buffer"} & fields.keys()
    recipe = recipe_of(run_folder, **{name: fields.pop(name) for name in given})
    live = {name: fields.pop(name) for name in recipe.live_fields() & fields.keys()}
    with saying_what_is_saved("rl.resume", [run_folder], "rl.resume({!r})"):
        return run_recipe(recipe.with_fields(**fields), run_folder, **live)


@contextlib.contextmanager
def saying_what_is_saved(owner: str, folders: Iterable[RunFolder], command: str) -> Iterator[None]:
    """Name the runs that Ctrl-C saved, and what resumes them."""
    try:
        yield
    except KeyboardInterrupt:
        for folder in folders:
            if any(folder.checkpoints.glob("checkpoint-*")):
                text = f"{owner}: saved; resume with: {command.format(str(folder.path))}"
                process_ranks().once(print, text, file=sys.stderr)
        raise


def train_in_ranks(num_ranks: int, **arguments: Any) -> Training:
    """Train in processes of this machine, with the arguments of `train`; read the best algorithm from the folder."""
    for name, value in arguments.items():
        check_travels("train", name, value)
    path, info, recipe = run_ranks("train", num_ranks, partial(_train_rank, arguments))
    best = load_algorithm((folder := RunFolder(path)).best, classes=[recipe.algorithm_class])
    return Training(best, folder, info, recipe)


def _train_rank(arguments: dict[str, Any]) -> tuple[Path, InfoStats, AnyRecipe]:
    training = train(**arguments)
    if not training.folder.best.exists():  # the last is the best that is known
        process_ranks().once(training.algorithm.save, training.folder.best)
    return training.folder.path, training.info, training.recipe


def run_recipe(recipe: AnyRecipe, folder: RunFolder, start: Algorithm | None = None, /, **live: Any) -> Training:
    """Train by a recipe in a folder, or resume the run in it; return the best algorithm (without test steps, the last).

    Args:
        recipe: the settings.
        folder: of this run alone; a run there that has lost its checkpoints is a `CheckpointError`.
        start: the algorithm that continues, saved where the recipe says; None reads it from there.
        live: further fields of the trainer's params, such as `hooks`.
    """
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
