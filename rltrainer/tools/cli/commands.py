"""All commands."""

from typing import Any

import click
import gymnasium as gym

from rltrainer.tools.cli.doctor import doctor
from rltrainer.tools.cli.run_commands import evaluate, export, plot, record, resume, watch
from rltrainer.tools.cli.sweep_command import sweep
from rltrainer.tools.cli.train_command import train
from rltrainer.tools.cli.verify import verify
from rltrainer.tools.recipes import get, names
from rltrainer.tools.recipes.algorithms import ALGORITHMS, OFFLINE, takes

# Actions that an algorithm may take, as its policy says.
KINDS = {
    "Discrete": gym.spaces.Discrete(2),
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 2]),
    "MultiBinary": gym.spaces.MultiBinary(2),
    "Box": gym.spaces.Box(-1.0, 1.0, (1,)),
}


@click.command("list")
@click.argument("what", required=False, type=click.Choice(["algorithms", "recipes", "envs"]))
def list_command(what: str | None) -> None:
    """List algorithms, recipes, and the envs that have recipes.

    Algorithms with the actions that they take, recipes with steps and published scores, envs with the algorithms of
    their recipes. Without an argument, all three.
    """
    if what in (None, "algorithms"):
        click.echo("algorithms, and the actions that they take")
        observation = gym.spaces.Box(-1.0, 1.0, (2,))
        for name in ALGORITHMS:
            kinds = ", ".join(kind for kind, action in KINDS.items() if takes(name, observation, action))
            click.echo(f"  {name:15}{kinds}{'; from data' if name in OFFLINE else ''}")
    if what in (None, "recipes"):
        click.echo("recipes, their env steps, and the score that their source reports")
        for name in names():
            recipe = get(name)
            score = "" if recipe.published_score is None else f"{recipe.published_score:10g}"
            click.echo(f"  {name:34}{recipe.num_env_steps:>10,}{score}".rstrip())
    if what in (None, "envs"):
        click.echo("envs that recipes are for, and their algorithms; of any other, `doctor env ENV` says which take it")
        by_env: dict[str, list[str]] = {}
        for name in names():
            algorithm, _, env = name.partition("/")
            by_env.setdefault(env, []).append(algorithm)
        for env, algorithms in sorted(by_env.items()):
            click.echo(f"  {env:28}{', '.join(algorithms)}")


class InOrder(click.Group):
    """Commands in the order of need, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)


SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda token: token.replace("_", "-"),  # --num_envs, as the field is called in Python
}


@click.group(cls=InOrder, context_settings=SETTINGS)
@click.version_option(package_name="rltrainer")
def commands() -> None:
    """Train, evaluate, record and plot reinforcement-learning agents."""


for command in (train, sweep, resume, evaluate, watch, record, plot, export, list_command, doctor, verify):
    commands.add_command(command)
