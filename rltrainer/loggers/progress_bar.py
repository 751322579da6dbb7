"""A bar for work that takes long. In a terminal it moves; a file, such as a cluster's log, gets a line a minute."""

import sys
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]  # tqdm ships no types

SECONDS_OF_A_LINE = 60
_LINE = "{l_bar} {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


def make_bar(**options: Any) -> Any:
    """Return a bar of tqdm's on the standard error.

    Args:
        options: of tqdm. Where a line replaces the bar, `bar_format` loses its picture.
    """
    if options.get("disable") or is_watched():
        return tqdm(**options)
    layout = options.pop("bar_format", _LINE).replace("{bar}|", "")
    pace = {"mininterval": SECONDS_OF_A_LINE, "maxinterval": SECONDS_OF_A_LINE, "delay": SECONDS_OF_A_LINE}
    return tqdm(**options, **pace, miniters=0, file=_Lines(), bar_format=layout, leave=True)


def is_watched() -> bool:
    """Return whether what is printed can be printed over: in a terminal, or in a notebook, which says it is none."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class _Lines:
    """A file that makes a line of what would be printed over the last one."""

    def write(self, text: str) -> None:
        if line := text.strip("\r\n "):
            print(line, file=sys.stderr)

    def flush(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()
