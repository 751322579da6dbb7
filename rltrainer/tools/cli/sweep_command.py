"""`rltrainer sweep`: many trials of a recipe with other values of its fields; each field may be a range."""

import contextlib
from pathlib import Path
from typing import Any

import click

from rltrainer.errors import MissingExtraError, escaped
from rltrainer.tools import plots
from rltrainer.tools.cli.fields import shown, with_values
from rltrainer.tools.cli.train_command import TrainCommand, require_source
from rltrainer.tools.cli.values import RANGES, read_range
from rltrainer.tools.sweeps import sweep as run_sweep

# Groups whose fields can vary.
CAN_VARY = ("run", "algorithm", "policy", "trainer")


class SweepCommand(TrainCommand):
    """A command with the fields of what it varies as options."""

    left_out = ("checkpoint",)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the fields, and how ranges are written."""
        super().format_epilog(ctx, formatter)
        if "all" in ctx.meta:
            formatter.write_text(RANGES)


@click.command("sweep", cls=SweepCommand, short_help="Find values of fields that train well.")
@click.option("--trials", default=20, show_default=True, metavar="N", help="Total, including finished trials.")
@click.option("--seeds", default=1, show_default=True, metavar="N", help="Runs per trial; their mean counts.")
@click.option("--seed", default=0, show_default=True, metavar="SEED", help="Seed of the first run and of the draws.")
@click.option("--processes", type=int, metavar="N", help="Trials at a time; one per core by default.")
@click.option("--executor", metavar="NAME", default="processes", help="processes, or ray (a cluster).")
@click.option("--folder", type=click.Path(path_type=Path), help="sweeps/<algorithm>_<env> by default.")
@click.pass_context
def sweep(
    ctx: click.Context, /, algorithm: str | None, env: str | None, data: str | None, recipe: str | None, trials: int,
    seeds: int, seed: int, processes: int | None, executor: Any, folder: Path | None, **values: str | None,
) -> None:  # fmt: skip
    """Find values that train well: `sweep ppo --env ENV --lr log:1e-5:1e-2`.

    Options with ranges vary; without any, the algorithm's usual ranges. The same command continues.
    """
    require_source(ctx, env, recipe, data)
    meant, fields = ctx.meta["recipe"], {field.key: field for field in ctx.meta["fields"]}
    given = {key: text for key, text in values.items() if text is not None}
    try:
        read = {key: read_range(text) for key, text in given.items()}
        ranges = {key: found for key, found in read.items() if found is not None}
        fixed = {key: text for key, text in given.items() if key not in ranges}
        made, _ = with_values(meant, fixed)
    except (TypeError, ValueError) as error:
        raise click.UsageError(str(error), ctx) from error
    for key in ranges:
        if (field := fields[key]).group not in CAN_VARY:
            raise click.UsageError(f"{field.flag}: cannot vary, only be set", ctx)
    space = {fields[key].name: found for key, found in ranges.items()} or None
    folder = folder or Path("sweeps") / made.name.replace("/", "_")
    click.echo(f"rltrainer: {ctx.meta['words']}; {trials} trials of {made.length}, to {folder}")
    try:
        result = run_sweep(
            made, space, folder=folder, num_trials=trials, num_seeds=seeds, seed=seed, num_processes=processes,
            executor=executor,
        )  # fmt: skip
    except KeyboardInterrupt:
        click.echo("rltrainer: saved; the same command continues", err=True)
        raise
    best = result.best
    click.echo(f"rltrainer: the best is trial {best.number} with score {best.score:.6g}, in {folder}")
    words = [f"--recipe {recipe}" if recipe else meant.algorithm]
    words += [f"{flag} {text}" for flag, text in (("--env", env), ("--data", data)) if text]
    words += [f"{fields[key].flag} {text}" for key, text in fixed.items()]
    flags = {field.name: field.flag for field in fields.values() if field.group in CAN_VARY}
    words += [f"{flags[name]} {shown(value)}" for name, value in best.fields.items()]
    click.echo(f"rltrainer: train it with: rltrainer train {escaped(' '.join(words))}")
    with contextlib.suppress(MissingExtraError):  # a sweep needs no Matplotlib
        plots.sweep(result).savefig(result.folder / "sweep.png")
        click.echo(f"{result.folder / 'sweep.png'}")
