"""`python -m rltrainer.checkpoint verify PATH`: the contents of a checkpoint, or all of a run, and their state.

`rltrainer doctor` looks at the set-up, `rltrainer verify` at what it learns.
"""

import argparse
import os
import sys

from rltrainer.checkpoint.report import verify
from rltrainer.errors import CheckpointError


def main() -> int:
    """Run the command; return 0 if every checkpoint is complete, else 1."""
    parser = argparse.ArgumentParser(prog="python -m rltrainer.checkpoint", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser("verify", help="compare every file with its checksum")
    command.add_argument("path", metavar="PATH", help="a checkpoint, or the folder of a run's")
    try:
        report = verify(parser.parse_args().path)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        print(report, flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if report.is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
