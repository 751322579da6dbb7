import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rltrainer.tools.recipes import measured

Tables = dict[str, list[list[float]]]


@pytest.fixture
def measured_as(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Tables, float], None]]:
    """Replace what was measured by curves [R, K] of recipes: K test steps of some seconds each, and 5,120 env steps."""

    def replace(curves: Tables, seconds: float = 1.0) -> None:
        tables: dict[str, Any] = {}
        for name, rows in curves.items():
            steps = range(1, len(rows[0]) + 1)
            table = {"env_step": [5120 * k for k in steps], "seconds": [seconds * k for k in steps]}
            tables[name] = {**table, "curves": rows, "scores": [row[-1] for row in rows]}
        (tmp_path / "measured.json").write_text(json.dumps(tables))
        monkeypatch.setattr(measured, "FILE", tmp_path / "measured.json")
        measured.measured.cache_clear()

    yield replace
    measured.measured.cache_clear()
