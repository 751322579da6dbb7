"""What a type checker reports to a user, with the options that a strict user has."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Without a cache, mypy reads torch first: the test that comes first pays for both.
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def report() -> str:
    """Return what one run of mypy says about both files; it shares the cache of `make types`."""
    files = [str(HERE / name) for name in ("mistakes.py", "right.py")]
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--strict", *files]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def reported(report: str, name: str) -> list[int]:
    return sorted({int(line) for line in re.findall(rf"{re.escape(name)}:(\d+): error", report)})


def test_every_mistake_is_reported_and_nothing_else(report: str) -> None:
    lines = (HERE / "mistakes.py").read_text().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# mistake" in line]
    assert len(marked) > 60
    assert reported(report, "mistakes.py") == marked


def test_right_programs_are_not_complained_about(report: str) -> None:
    assert reported(report, "right.py") == []
    assert set(re.findall(r"^(\S+?\.py):\d+: error", report, re.MULTILINE)) == {"tests/typing/mistakes.py"}
