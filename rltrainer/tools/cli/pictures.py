"""Pictures and videos of runs: what `plot` and `record` make, and `train --plot --record` at its end."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rltrainer.algorithms import load_policy
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.files.atomic_write import refuse_links
from rltrainer.loggers import RunFolder
from rltrainer.tools import plots
from rltrainer.tools.evaluation import record
from rltrainer.tools.evaluation.filming import require_encoder, require_frames
from rltrainer.tools.runs import open_run
from rltrainer.tools.runs.opened_run import run_of
from rltrainer.tools.sweeps import open_sweep
from rltrainer.tools.sweeps.result import DESCRIBED


def require_extras(is_drawn: bool, filmed_env: Callable[[], Any] | None) -> None:
    """Raise a `MissingExtraError` or `ParamsError` before a run if its pictures or videos could not be made."""
    if is_drawn:
        from rltrainer.tools.plots.figures import drawing

        with drawing():
            pass
    if filmed_env is not None:
        require_encoder("record")
        env = filmed_env()
        require_frames("record.env", env)
        env.close()


def draw(runs: Sequence[Path], path: Path | None = None, value: str = "test/return", of: Path | None = None) -> None:
    """Draw curves, with the page of one run or of the folder `of` all, or a sweep; a bad ending is a `ParamsError`."""
    only = runs[0] if len(runs) == 1 and of is None else of
    is_sweep = only is not None and (only / DESCRIBED).exists()
    if only is not None:
        RunFolder(only).refuse_links()
        refuse_links([only / "sweep.png"], CheckpointError)
        path = path or only / ("sweep.png" if is_sweep else "learning_curve.png")
    picture = plots.sweep(open_sweep(runs[0])) if is_sweep else plots.learning_curves(list(map(open_run, runs)), value)
    path = path or Path("curves.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        picture.savefig(path)
    except ValueError as error:  # Matplotlib does not know the format
        raise ParamsError.about("plot", "path", "must end in .png, .svg or .pdf", str(path)) from error
    click.echo(f"{path}")
    if only is not None and not is_sweep:
        click.echo(f"{plots.page(only)}")


def film(
    run: Path, env: Any, path: Path | None = None, num_episodes: int = 1, seed: int = 10_001, device: str = "auto"
) -> None:
    """Record the best algorithm of a run or file; None takes `best.mp4` of the run's videos, or its name."""
    if path is None and (folder := run_of(run)) is not None:
        RunFolder(folder).refuse_links()
        path = RunFolder(folder).videos / f"{'best' if folder == run else run.stem}.mp4"
    path = run.with_suffix(".mp4") if path is None else path
    stats = record(load_policy(run, device=device), env, path, num_episodes=num_episodes, seed=seed)
    click.echo(f"{path}: returns {', '.join(f'{each:.6g}' for each in stats.returns)}")
