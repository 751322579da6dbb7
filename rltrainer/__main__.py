"""`python -m rltrainer`: the command line."""

import sys

from rltrainer.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
