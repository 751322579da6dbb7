"""Log to the terminal."""

import json
import sys
from collections.abc import Mapping
from typing import Any, TextIO, Unpack

from tqdm import tqdm  # type: ignore[import-untyped]  # tqdm ships no types

from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, Row


class ConsoleLogger(Logger):
    """Print one line per row: `training  step 2048: return 23.5, length 23.5`; a progress bar stays below.

    Args:
        stream: where to print; None is standard output.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: an option breaks its rule.
    """

    def __init__(self, stream: TextIO | None = None, **options: Unpack[LoggerOptions]) -> None:
        super().__init__(**options)
        self._stream = stream

    def __repr__(self) -> str:
        return "ConsoleLogger()"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        numbers = ", ".join(f"{name.removeprefix(kind + '/')} {_text(value)}" for name, value in values.items())
        tqdm.write(f"{kind:<8}  step {step}: {numbers}", file=self._stream or sys.stdout)

    def _write_params(self, params: Mapping[str, Any]) -> None:
        for name, value in params.items():
            tqdm.write(f"params    {name}: {json.dumps(value)}", file=self._stream or sys.stdout)

    def _flush(self) -> None:
        (self._stream or sys.stdout).flush()


def _text(value: int | float | None) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
