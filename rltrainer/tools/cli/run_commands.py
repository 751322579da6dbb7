"""Commands on existing runs: resume, evaluate or record one, plot several."""

import functools
from pathlib import Path
from typing import Any

import click

from rltrainer.algorithms import load_policy
from rltrainer.envs.make_vec import single_env
from rltrainer.errors import CheckpointError
from rltrainer.loggers import RunFolder
from rltrainer.tools.cli.pictures import draw, film
from rltrainer.tools.cli.train_command import RESUME, train_in
from rltrainer.tools.cli.values import env_named
from rltrainer.tools.evaluation import evaluate_policy
from rltrainer.tools.evaluation import watch as watch_policy
from rltrainer.tools.export import export_onnx
from rltrainer.tools.plots import table
from rltrainer.tools.plots.run_data import curve
from rltrainer.tools.recipes import AnyRecipe, recipe_of
from rltrainer.tools.recipes.cookbook import NAME as RECIPE
from rltrainer.tools.recipes.cookbook import seeds_in
from rltrainer.tools.recipes.training import run_recipes, saying_what_is_saved
from rltrainer.tools.runs import open_run
from rltrainer.tools.runs.opened_run import run_of, runs_in
from rltrainer.tools.sweeps.result import DESCRIBED

ENV = click.option("--env", metavar="ENV", help="The env, if the run's was a factory: my_package:MyEnv.")
RUN = click.argument("run", type=click.Path(path_type=Path))
DEVICE = click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="cpu, cuda, or a GPU by number: cuda:1."
)


@click.command()
@RUN
@ENV
@click.option("--max-epochs", type=int, metavar="N", help="Total epochs, to train for more than planned.")
@click.option(
    "--device", metavar="DEVICE", help="Another device than the run's: cpu, cuda, or a GPU by number: cuda:1."
)
def resume(run: Path, env: str | None, max_epochs: int | None, device: str | None) -> None:
    """Resume a run, or all seeds, where it stopped, bit for bit.

    It starts from the newest checkpoint. --max-epochs extends a finished run. On another device the run continues with
    other random numbers.
    """
    given = {name: each for name, each in {"device": device, "max_epochs": max_epochs}.items() if each is not None}
    if seeds := seeds_in(run):
        runs = [(_recipe(folder, env).with_fields(**given), folder) for folder in seeds]
        with saying_what_is_saved("rltrainer", RunFolder(run), RESUME):
            run_recipes(runs, RunFolder(run))
        return
    opened = open_run(run)
    recipe = _recipe(opened.folder, env).with_fields(**given)
    if max_epochs is None and opened.stop_reason == "max_epochs":
        click.echo("rltrainer: the run is finished; --max-epochs N extends it")
    if opened.newest_checkpoint is None and opened.folder.checkpoints.exists():
        click.echo(f"rltrainer: {run} has no checkpoint; it begins again", err=True)
    train_in(opened.folder, recipe, {})


@click.command()
@RUN
@ENV
@click.option("--num-episodes", default=20, show_default=True, metavar="N")
@click.option("--seed", default=10_001, show_default=True, metavar="SEED", help="Seed of the episodes.")
@DEVICE
def evaluate(run: Path, env: str | None, num_episodes: int, seed: int, device: str) -> None:
    """Play episodes with the best algorithm of a run.

    RUN is its folder, or a file in it, such as best.safetensors. The algorithm does not explore.
    """
    played = _env(run, env)
    stats = evaluate_policy(load_policy(run, device=device), played, num_episodes, seed=seed)
    for name, summary in (("return", stats.returns_stat), ("length", stats.lengths_stat)):
        if summary is not None:
            click.echo(f"{name} {summary.mean:.6g} +- {summary.std:.4g} (from {summary.min:.6g} to {summary.max:.6g})")
    if stats.success_rate is not None:
        click.echo(f"success rate {stats.success_rate:.3g}")


@click.command()
@RUN
@ENV
@click.option("--num-episodes", default=1, show_default=True, metavar="N")
@click.option("--seed", default=10_001, show_default=True, metavar="SEED", help="Seed of the episodes.")
@click.option("--path", type=click.Path(path_type=Path), help="An .mp4 or .gif; videos/best.mp4 of the run by default.")
@DEVICE
def record(run: Path, env: str | None, num_episodes: int, seed: int, path: Path | None, device: str) -> None:
    """Record a video of the best algorithm of a run."""
    film(run, _env(run, env, render_mode="rgb_array"), path, num_episodes, seed, device)


@click.command()
@RUN
@ENV
@click.option("--num-episodes", default=1, show_default=True, metavar="N")
@click.option("--seed", default=10_001, show_default=True, metavar="SEED", help="Seed of the episodes.")
@DEVICE
def watch(run: Path, env: str | None, num_episodes: int, seed: int, device: str) -> None:
    """Show the best algorithm of a run in a window."""
    shown = _env(run, env, render_mode="human")
    stats = watch_policy(load_policy(run, device=device), shown, num_episodes=num_episodes, seed=seed)
    click.echo(f"returns {', '.join(f'{each:.6g}' for each in stats.returns)}")


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--path", type=click.Path(path_type=Path), help="The picture; in the folder of a single run, or curves.png."
)
@click.option("--value", default="test/return", show_default=True, metavar="NAME", help="A value in the log.")
@click.option("--table", "is_table", is_flag=True, help="Print a table in Markdown: mean and interval of each env.")
def plot(runs: tuple[Path, ...], path: Path | None, value: str, is_table: bool) -> None:
    """Draw the learning curves of runs, or a sweep.

    A folder of runs stands for all of them. Seeds of one algorithm and params share a curve. A single run also gets its
    page.
    """
    found = [each for folder in runs for each in _runs_of(folder, value)]
    if not is_table:
        draw(found, path, value, runs[0] if len(runs) == 1 and seeds_in(runs[0]) else None)
    elif path is None:
        click.echo(table(found, value), nl=False)
    else:
        path.write_text(table(found, value))


@click.command()
@RUN
@click.option("--path", type=click.Path(path_type=Path), help="An .onnx; best.onnx in the run's folder by default.")
def export(run: Path, path: Path | None) -> None:
    """Write the best policy of a run as an ONNX graph.

    It runs without Python, PyTorch or rltrainer.
    """
    saved = run if run.is_file() else open_run(run).folder.best
    path = saved.with_suffix(".onnx") if path is None else path
    export_onnx(saved, path)
    click.echo(f"{path}")


def _runs_of(folder: Path, value: str) -> list[Path]:
    """Return a run or a sweep as it is, or the runs in another folder that have logged the number."""
    found = [run for run in runs_in(folder) if not any((each / DESCRIBED).exists() for each in (run, *run.parents))]
    logged = [run for run in found if run == folder or curve(open_run(run), value) is not None]
    for run in set(found) - set(logged):
        click.echo(f"rltrainer: {run} is left out, as it has logged no {value} yet", err=True)
    return logged or [folder]


def _recipe(folder: RunFolder, env: str | None) -> AnyRecipe:
    live: dict[str, Any] = {} if env is None else {"env": env_named(env)}
    try:
        return recipe_of(folder, **live)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace("pass env=...", "name it: --env my_package:MyEnv")) from error


def _env(run: Path, env: str | None, **more: Any) -> Any:
    """Return what makes the env of a run, or of a file in it, by its recipe, its params or the command."""
    problem = f"{run}: lies in no run that says its env. Name it: --env CartPole-v1"
    if (folder := run_of(run)) is not None or not run.is_file():
        opened = open_run(folder or run)
        problem = f"{opened.folder.params}: does not say which env the run is of. Name it: --env my_package:MyEnv."
        if (opened.folder.path / RECIPE).exists():
            recipe = _recipe(opened.folder, env)
            if recipe.env is not None:
                return functools.partial(recipe.make_env, **more)
        elif env is None and opened.env_id is not None:
            return functools.partial(single_env, opened.env_id, **{**opened.env_kwargs, **more})
    if env is None:
        raise CheckpointError(problem)
    return functools.partial(single_env, env_named(env), **more)
