"""All commands."""

from typing import Any

import click

from rltrainer.cli.doctor import doctor
from rltrainer.cli.listing import list_command
from rltrainer.cli.run_commands import evaluate, export, plot, record, resume, watch
from rltrainer.cli.sweep_command import sweep
from rltrainer.cli.train_command import train


class InOrder(click.Group):
    """Commands in the order in which they are needed, not that of the alphabet."""

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
    """Train, evaluate, film and draw reinforcement-learning agents."""


for command in (train, sweep, resume, evaluate, watch, record, plot, export, list_command, doctor):
    commands.add_command(command)
