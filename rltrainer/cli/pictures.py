"""Pictures and films of runs: what `plot` and `record` make, and `train --plot --record` at its end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rltrainer.envs.filming.video_file import require_encoder
from rltrainer.evaluation import record
from rltrainer.loggers import RunFolder
from rltrainer.runs import open_run
from rltrainer.sweeps import open_sweep
from rltrainer.sweeps.opened_sweep import DESCRIBED


def require_extras(is_drawn: bool, is_filmed: bool) -> None:
    """Raise a `MissingExtraError` if what draws or films is not installed: before a training, not after it."""
    if is_drawn:
        from rltrainer.plots.figures import drawing

        with drawing():
            pass
    if is_filmed:
        require_encoder("record")


def draw(runs: Sequence[Path], path: Path, value: str = "test/return") -> None:
    """Draw learning curves to a file, of a single run its page too; or the trials of a sweep."""
    from rltrainer import plots

    path.parent.mkdir(parents=True, exist_ok=True)
    if len(runs) == 1 and (runs[0] / DESCRIBED).exists():
        plots.sweep(open_sweep(runs[0])).savefig(path)
        click.echo(f"{path}")
        return
    plots.learning_curves([open_run(run) for run in runs], value).savefig(path)
    click.echo(f"{path}")
    if len(runs) == 1:
        click.echo(f"{plots.page(runs[0])}")


def film(run: Path, env: Any, path: Path | None = None, episodes: int = 1, seed: int = 10_001) -> None:
    """Film the best algorithm of a run; None takes `best.mp4` of the run's videos."""
    path = RunFolder(run).videos / "best.mp4" if path is None else path
    stats = record(run, env, path, episodes=episodes, seed=seed)
    click.echo(f"{path}: returns {', '.join(f'{each:.6g}' for each in stats.returns)}")
