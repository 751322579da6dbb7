"""The command line: `rltrainer ...`, or `python -m rltrainer ...`, of the extra `cli`."""

import sys
from collections.abc import Sequence

from rltrainer.errors import RLTrainerError, escaped, install_extra


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0, 1 if it failed, 2 if it was given wrongly, 130 after Ctrl-C."""
    try:
        import click
    except ImportError:
        print(f"The command line needs a package that is not installed. {install_extra('cli')}", file=sys.stderr)
        return 1
    from rltrainer.tools.cli.commands import commands

    args = None if arguments is None else list(arguments)
    try:  # click returns the status of a command that ends early
        return commands.main(args=args, prog_name="rltrainer", standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except RLTrainerError as error:
        print(f"rltrainer: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename is not None else error
        print(f"rltrainer: {escaped(str(named))}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, click.Abort):
        print("rltrainer: interrupted", file=sys.stderr)
        return 130
