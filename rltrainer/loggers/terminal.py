"""Output in the terminal: rows as lines, and a bar for long work; in a file the bar is a line a minute."""

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO, Unpack

from tqdm import tqdm  # type: ignore[import-untyped]  # tqdm ships no types

from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, Row

SECONDS_OF_A_LINE = 60
_LINE = "{l_bar} {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class ConsoleLogger(Logger):
    """Prints one line per row: `training  step 2048: return 23.5, length 23.5`; a progress bar stays below.

    `stream` None is the standard output.
    """

    def __init__(self, stream: TextIO | None = None, **options: Unpack[LoggerOptions]) -> None:
        super().__init__(**options)
        self._stream = stream

    def __repr__(self) -> str:
        return "ConsoleLogger()"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        numbers = ", ".join(f"{name.removeprefix(kind + '/')} {_text(value)}" for name, value in values.items())
        self._print(f"{kind:<8}  step {step}: {numbers}")

    def _write_params(self, params: Mapping[str, Any]) -> None:
        for name, value in params.items():
            self._print(f"params    {name}: {json.dumps(value)}")

    def _print(self, line: str) -> None:
        tqdm.write(line, file=self._stream or sys.stdout)

    def _flush(self) -> None:
        (self._stream or sys.stdout).flush()


def _text(value: int | float | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def make_bar(**options: Any) -> Any:
    """Return a bar of tqdm's on the standard error, or lines without the picture of its `bar_format`."""
    if options.get("disable") or is_watched():
        # A notebook breaks a bar that is on another stream than the lines above it.
        return tqdm(**options, file=sys.stdout if "ipykernel" in sys.modules else None)
    layout = options.pop("bar_format", _LINE).replace("{bar}|", "")
    pace = {"mininterval": SECONDS_OF_A_LINE, "maxinterval": SECONDS_OF_A_LINE, "delay": SECONDS_OF_A_LINE}
    return tqdm(**options, **pace, miniters=0, file=_Lines(), bar_format=layout, leave=True)


def is_watched() -> bool:
    """Return whether output can be overwritten: in a terminal, or in a notebook, whose stream denies it."""
    return "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())


class _Lines:
    """A file that prints each new state of a bar as a line of its own."""

    def write(self, text: str) -> None:
        if line := text.strip("\r\n "):
            print(line, file=sys.stderr)

    def flush(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()
