"""`rltrainer verify`: whether recipes learn on this machine what they learnt where they were measured."""

import contextlib
from pathlib import Path

import click
import numpy as np

from rltrainer.errors import MissingExtraError, RLTrainerError
from rltrainer.processes.worker import num_cores
from rltrainer.tools.plots.verify_page import verify_page
from rltrainer.tools.recipes import get
from rltrainer.tools.recipes.measured import measured
from rltrainer.tools.verification import Verification, plan, read_report, summary, versions
from rltrainer.trainers import OnPolicyTrainerParams


@click.command()
@click.option("--minutes", type=click.FloatRange(min=0), metavar="N", help="10 without --recipes and --all.")
@click.option("--group", type=click.Choice(["on-policy", "off-policy"]), help="Only recipes of this kind.")
@click.option("--recipes", multiple=True, metavar="NAME...", help="These recipes; in full without --minutes.")
@click.argument("more", nargs=-1, metavar="")
@click.option("--all", "is_all", is_flag=True, help="All measured recipes; in full without --minutes.")
@click.option("--folder", type=click.Path(path_type=Path), default="verified", show_default=True, metavar="FOLDER")
@click.option("--seed", default=11, show_default=True, help="The first one; the measured runs have 1 to 10.")
@click.option("--again", is_flag=True, help="Train anew what the folder has already.")
@click.option(
    "--against", type=click.Path(path_type=Path, exists=True), metavar="FILE", help="Compare with its runs, too."
)
@click.option("--processes", type=click.IntRange(min=1), metavar="N", help="Runs at a time; one per core by default.")
@click.pass_context
def verify(
    ctx: click.Context, minutes: float | None, group: str | None, recipes: tuple[str, ...], more: tuple[str, ...],
    is_all: bool, folder: Path, seed: int, again: bool, against: Path | None, processes: int | None,
) -> None:  # fmt: skip
    """Train recipes, and compare with their measured runs.

    A recipe is missed if its new runs rank lower among the measured ones than chance explains; the exit status is then
    1. The same command goes on after Ctrl-C. `doctor` looks at the set-up, `python -m rltrainer.checkpoint verify` at
    files.
    """
    if more and not recipes:
        raise click.UsageError(f"unexpected argument {more[0]!r}; name recipes by --recipes", ctx)
    wanted, found = [*recipes, *more], []
    for name in wanted or measured():
        is_on_policy = get(name).trainer_params_class is OnPolicyTrainerParams  # a wrong name raises
        if name not in measured():
            raise click.UsageError(f"{name} was not measured; measured are {', '.join(measured())}", ctx)
        if group in (None, "on-policy" if is_on_policy else "off-policy"):
            with contextlib.suppress(RLTrainerError):  # an extra is not installed
                get(name).make_env().close()
                found.append(name)
    minutes = minutes if minutes is not None or wanted or is_all else 10.0
    seconds, num_processes = np.inf if minutes is None else 60 * minutes, processes or num_cores()
    path, last = folder / "verify.json", folder / "last.json"
    report, made_by = read_report(path)
    if report and (again or made_by != versions()):
        path.replace(last)
        report = {}
    planned = plan(found, seconds * num_processes)
    if not planned:
        raise click.UsageError("none of these recipes fits into the time, or its extra is not installed", ctx)
    for name, each in planned.items():
        if name not in report or (minutes is None and each.num_tests > report[name].num_tests):
            report[name] = each
    click.echo(f"rltrainer: {', '.join(planned)}; to {folder}")
    try:
        Verification(report, path, seconds, seed, click.echo).run(num_processes)
    except KeyboardInterrupt:
        click.echo("rltrainer: the same command goes on", err=True)
        raise
    rows = summary(report, read_report(against or last)[0])
    for row in [{column: column for column in rows[0]}, *rows]:
        widths = {column: max(len(column), *(len(each[column]) for each in rows)) for column in row}
        click.echo("  ".join(f"{cell:{widths[column]}}" for column, cell in row.items()).rstrip())
    click.echo(f"{path}")
    with contextlib.suppress(MissingExtraError):
        click.echo(f"{verify_page(report, rows, folder / 'verify.html')}")
    ctx.exit(int(any(row["verdict"] == "missed" for row in rows)))
