"""`rltrainer train`: an algorithm in an env, or a recipe; every field is an option; several seeds at once."""

import dataclasses
import functools
import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import click
import gymnasium as gym

from rltrainer.checkpoint import CheckpointParams
from rltrainer.errors import ParamsError
from rltrainer.loggers import RunFolder
from rltrainer.ranks.torch_ranks import process_ranks, torchrun_place
from rltrainer.tools.cli.fields import NESTED, FieldOption, fields_of, with_values
from rltrainer.tools.cli.pictures import draw, film, require_extras
from rltrainer.tools.cli.values import SYNTAX, env_named, read_seeds
from rltrainer.tools.recipes import AnyRecipe, OfflineRecipe, get, run_recipe
from rltrainer.tools.recipes.algorithms import ALGORITHMS, OFFLINE
from rltrainer.tools.recipes.training import choose_recipe, rollout_words, saying_what_is_saved, train_seeds
from rltrainer.tools.runs.ranked import ranks_to_start, run_ranks
from rltrainer.validation.hints import ARGUMENTS
from rltrainer.validation.suggestions import did_you_mean

# The env of the recipe that `--help` shows if no env is named.
DEFAULT_ENV = "CartPole-v1"
EXAMPLES = "--lr 1e-3, --device cuda, --start RUN (train its best algorithm further): --help-all lists them"
# The name for `--help` if none is given.
NO_DATA = "data"
# The command for a run in a folder.
RESUME = "rltrainer resume {}"


class TrainCommand(click.Command):
    """A command with the fields of what it is about to train as options.

    Attributes:
        left_out: groups of fields that are no options.
    """

    left_out: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str | None, params: Sequence[click.Parameter] = (), **settings: Any) -> None:
        super().__init__(name, params=[*NAMING, *params, *EXPLAINING], **settings)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Choose the recipe that the arguments name, and read its fields; wrong ones raise a `click.UsageError`."""
        try:
            ctx.meta["recipe"], ctx.meta["words"] = _recipe_of(args)
        except ParamsError as error:
            raise click.UsageError(str(error)) from error
        ctx.meta["fields"] = [field for field in fields_of(ctx.meta["recipe"]) if field.group not in self.left_out]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if hint := _other_name(ctx.meta["fields"], error.option_name):
                raise click.UsageError(f"{error.message} {hint}", ctx) from None
            raise
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message:
                raise
            raise click.UsageError(f"{error.message}. One algorithm goes first; name an env by --env", ctx) from None

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own options and the options of fields."""
        if "options" not in ctx.meta:  # hidden: `format_epilog` lists them by group, not line by line
            ctx.meta["options"] = [
                click.Option([field.flag, field.key], metavar="VALUE", hidden=True)
                for field in ctx.meta.get("fields", [])
            ]
        return [*super().get_params(ctx), *ctx.meta["options"]]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say that fields are options; with `--help-all` list them by group, names only, as `--explain` says more."""
        fields: list[FieldOption] = ctx.meta["fields"]
        formatter.write_paragraph()
        if "all" not in ctx.meta:
            recipe = ctx.meta["recipe"]
            steps = f"--num-{'gradient' if isinstance(recipe, OfflineRecipe) else 'env'}-steps 200000"
            formatter.write_text(f"Each field of {recipe.name} is an option too, such as {steps}, {EXAMPLES}.")
            return
        formatter.write_text(f"Options for the fields of {ctx.meta['recipe'].name}; --explain NAME explains one:")
        named: dict[str, list[str]] = {}
        for field in fields:
            if field.group not in NESTED:
                named.setdefault(field.group, []).append(field.flag.removeprefix("--"))
        named["fields of"] = list(dict.fromkeys(field.group for field in fields if field.group not in named))
        for group, names in named.items():
            text = textwrap.fill(" ".join(names), formatter.width - 16, break_on_hyphens=False)
            formatter.write(textwrap.indent(text, " " * 16).replace(" " * 16, f"  {group:14}", 1) + "\n")
        formatter.write_paragraph()
        formatter.write_text(SYNTAX)


def _other_name(fields: list[FieldOption], option: str) -> str:
    """Return a sentence that names our option for another program's; "" if it is not known."""
    name = option.lstrip("-").replace("-", "_")
    if name in ("algo", "algorithm"):
        return "The algorithm comes first: rltrainer train ppo --env CartPole-v1"
    if name in ("env_id", "gym_id"):
        return "Did you mean '--env'?"
    flags = (field.flag for ours in ARGUMENTS.get(name, ()) for field in fields if field.name == ours)
    return next((f"Did you mean {flag!r}?" for flag in flags), "")


def explain(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Print the docstrings of fields, and end; an unknown field raises a `click.BadParameter`."""
    if value is None:
        return
    fields: list[FieldOption] = ctx.meta["fields"]
    name = value.removeprefix("--")
    meant = [field for field in fields if name.replace("_", "-") in (field.group.replace("_", "-"), field.flag[2:])]
    if not meant:
        known = [field.flag.removeprefix("--") for field in fields] + [field.group for field in fields]
        raise click.BadParameter(f"there is no field or group {value!r}.{did_you_mean(name, known)}", ctx, param)
    for field in meant:
        click.echo(f"{field.flag} [{field.default}]" if field.default else field.flag)
        text = field.text[:1].upper() + field.text[1:]
        click.echo(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    "))
    ctx.exit()


def help_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the help with all fields, and end."""
    if value:
        ctx.meta["all"] = True
        click.echo(ctx.get_help())
        ctx.exit()


# Parameters of every `TrainCommand`, before and after its own: what it trains, and help on fields.
NAMING = (
    click.Argument(["algorithm"], required=False, metavar="[ALGORITHM]"),
    click.Option(["--env"], metavar="ENV", help="A gymnasium id, or my_package:MyEnv."),
    click.Option(["--data"], metavar="DATA", help="A file, folder or Minari data set to train on."),
    click.Option(["--recipe"], metavar="NAME", help="Such as ppo/LunarLander-v3; see `rltrainer list`."),
)
EXPLAINING = (
    click.Option(["--explain"], metavar="NAME", callback=explain, expose_value=False, help="Explain a field or group."),
    click.Option(
        ["--help-all"], is_flag=True, callback=help_all, expose_value=False, help="Show this message and all fields."
    ),
)


@click.command("train", cls=TrainCommand, short_help="Train an agent; every field of a run is an option.")
@click.option(
    "--seed", default="0", metavar="SEEDS", help="One, or several at once: 1..5, or 1,2,7.", show_default=True
)
@click.option("--num-seeds", type=click.IntRange(1), metavar="N", help="Train with N seeds, from --seed on.")
@click.option("--folder", default="runs", metavar="FOLDER", help="Where the run's folder is made.", show_default=True)
@click.option("--num-ranks", type=click.IntRange(1), metavar="N", help="Train in N processes, as torchrun does.")
@click.option("--plot", "is_drawn", is_flag=True, help="Draw the learning curve and the page at the end.")
@click.option("--record", "is_filmed", is_flag=True, help="Record a video of the best algorithm at the end.")
@click.pass_context
def train(ctx: click.Context, /, algorithm: str | None, env: str | None, data: str | None, recipe: str | None,
          seed: str, num_seeds: int | None, folder: str, num_ranks: int | None, is_drawn: bool, is_filmed: bool,
          **values: str | None) -> None:  # fmt: skip
    """Train an agent: `train ppo --env CartPole-v1 --lr 1e-3 --seed 1..5`.

    Takes the best recipe for the env, or recommended settings. A run's folder has log, best algorithm, checkpoints.
    Ctrl-C saves; `resume` continues.
    """
    require_source(ctx, env, recipe, data)
    try:
        seeds = read_seeds(seed)
    except ValueError:
        raise click.BadParameter(f"{seed!r} is no seed: 3, 1..5, or 1,2,7", ctx, param_hint="--seed") from None
    if num_seeds is not None and len(seeds) > 1:
        raise click.UsageError(f"--num-seeds counts from one seed, not from {seed}", ctx)
    seeds = [first + i for first in seeds for i in range(num_seeds or 1)]
    num_started, place = ranks_to_start("train", num_ranks), torchrun_place()
    if len(seeds) > 1 and (num_started or place):
        hint = "run several seeds without it, or one after the other"
        raise click.UsageError(f"--num-ranks and torchrun train one seed, not {len(seeds)}: {hint}", ctx)
    given = {key: text for key, text in values.items() if text is not None}
    try:
        made, checkpoint = with_values(ctx.meta["recipe"], given)
    except (TypeError, ValueError) as error:
        field = re.match(r"\w+\.(\w+): ", str(error))
        more = f". `--explain {field[1].replace('_', '-')}` says more." if field else ""
        raise click.UsageError(f"{str(error).removesuffix('.')}{more}", ctx) from error
    if made.env is None and (is_drawn or is_filmed):
        raise click.UsageError("--plot and --record show test episodes: name their env, --env ENV", ctx)
    filmed_env = functools.partial(made.make_env, render_mode="rgb_array") if is_filmed else None
    # Before the run: a package that is missing at the end would cost hours.
    require_extras(is_drawn, filmed_env)
    click.echo(f"rltrainer: {ctx.meta['words']}{rollout_words(ctx.meta['recipe'], made)}; {made.length}")
    if len(seeds) > 1:
        path, runs = _train_seeds(made, seeds, folder, checkpoint)
    else:
        made = dataclasses.replace(made, seed=seeds[0])
        begin = functools.partial(_train_new, made, folder, checkpoint)
        path = begin() if num_started is None else run_ranks("train", num_started, begin)
        if place is not None and place[0] > 0:
            return
        runs = [path]
    if filmed_env is not None:
        for run in runs:
            film(run, filmed_env, device=made.device)
    # After the videos, which the page shows.
    if is_drawn:
        draw(runs, of=path)


def require_source(ctx: click.Context, env: str | None, recipe: str | None, data: str | None) -> None:
    """Raise a usage error if nothing says what a command learns from."""
    if env is None and recipe is None and data is None:
        named = "an env (--env CartPole-v1), a recipe (--recipe ppo/CartPole-v1) or data (--data logged.safetensors)"
        raise click.UsageError(f"name {named}", ctx)
    if data is None and isinstance(meant := ctx.meta["recipe"], OfflineRecipe):
        raise click.UsageError(f"{meant.algorithm} learns from data: name it, --data logged.safetensors", ctx)


def train_in(folder: RunFolder, recipe: AnyRecipe, checkpoint: dict[str, Any]) -> None:
    """Train in a folder, or resume its run, and print the result."""
    say = functools.partial(process_ranks().once, click.echo)
    say(f"rltrainer: to {folder.path}")
    with saying_what_is_saved("rltrainer", folder, RESUME):
        live = {"checkpoint": CheckpointParams(folder.checkpoints, **checkpoint)} if checkpoint else {}
        info = run_recipe(recipe, folder, **live).info
    say(f"{info}\nrltrainer: the best algorithm is {folder.best}")


def _train_new(recipe: AnyRecipe, folder: str, checkpoint: dict[str, Any]) -> Path:
    """Train in a new folder, and return its path."""
    run_folder = RunFolder.new(recipe.name.replace("/", "_"), folder)
    train_in(run_folder, recipe, checkpoint)
    return run_folder.path


def _train_seeds(recipe: AnyRecipe, seeds: list[int], root: str, checkpoint: dict[str, Any]) -> tuple[Path, list[Path]]:
    """Train several seeds at once, and return their folder, and the folders of the seeds that did not fail."""
    folder = RunFolder.new(recipe.name.replace("/", "_"), root)
    click.echo(f"rltrainer: to {folder.path}")
    with saying_what_is_saved("rltrainer", folder, RESUME):
        live = {"checkpoint": CheckpointParams(folder.path, **checkpoint)} if checkpoint else {}
        training = train_seeds(recipe, seeds, folder, **live)
    return folder.path, [run.result.folder.path for run in training.runs if run.result is not None]


def _recipe_of(args: list[str]) -> tuple[AnyRecipe, str]:
    """Return the recipe that the arguments name, before click reads them: the algorithm decides the options."""
    name, env, data, start = (_value_of(option, args) for option in ("--recipe", "--env", "--data", "--start"))
    algorithm = args[0] if args and not args[0].startswith("-") else None
    # It may be written `PPO`, `DiscreteSAC` or `discrete-sac`.
    if algorithm is not None:
        plain = algorithm.lower().replace("-", "").replace("_", "")
        algorithm = next((ours for ours in ALGORITHMS if ours.replace("_", "") == plain), algorithm)
    if algorithm is not None and (algorithm in gym.registry or ":" in algorithm):
        raise click.UsageError(f"{algorithm} is no algorithm. Name an env by --env {algorithm}")
    share = _value_of("--offline-share", args)
    # Only that there is a share decides here; its option is read with all others.
    both: dict[str, Any] = {} if share is None or data is None else {"data": data, "offline_share": 0.5}
    if (data is not None and not both) or (algorithm in OFFLINE and start is None and not both):
        if name is not None:
            raise click.UsageError("a recipe trains in its env: name it, or data")
        return choose_recipe(None if env is None else env_named(env), algorithm, {}, data or NO_DATA)
    if name is not None:
        recipe = get(name)
        if algorithm not in (None, recipe.algorithm):
            raise click.UsageError(f"the recipe {name} is of {recipe.algorithm}, not of {algorithm}")
        recipe = recipe.with_fields(**both) if env is None else recipe.with_fields(env=env_named(env), **both)
        return recipe, f"recipe {name} ({recipe.source})"
    num_envs = _value_of("--num-envs", args) or ""
    shape: dict[str, Any] = {"num_envs": int(num_envs)} if num_envs.isdecimal() and int(num_envs) else {}
    shape |= {"backend": _value_of("--backend", args), "start": start, **both}
    return choose_recipe(env_named(DEFAULT_ENV if env is None else env), algorithm, shape)


def _value_of(option: str, args: list[str]) -> str | None:
    for arg, following in itertools.zip_longest(args, args[1:]):
        name, equals, value = arg.partition("=")
        if name.replace("_", "-") == option:
            return value if equals else following
    return None
