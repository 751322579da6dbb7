"""REQUIRE_ALL_TESTS, which CI sets: a test that is skipped fails, unless it needs a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TESTS = """
import pytest

def test_that_runs():
    pass

def test_that_is_skipped():
    pytest.skip("no compiler")

@pytest.mark.skipif(True, reason="no compiler")
def test_that_is_marked():
    pass

@pytest.fixture
def extra():
    pytest.importorskip("an_extra_that_is_not_there")

def test_without_an_extra(extra):
    pass

@pytest.mark.xfail(reason="known")
def test_that_is_known_to_fail():
    assert False

@pytest.mark.gpu
@pytest.mark.skipif(True, reason="no GPU")
def test_on_a_gpu():
    pass
"""


def run(folder: Path, **environment: str) -> str:
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_module.py").write_text("import pytest\npytest.importorskip('an_extra_that_is_not_there')")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml")]
    command += ["--continue-on-collection-errors", "--tb=short", "--rootdir", str(folder), str(folder)]
    inherited = {name: value for name, value in os.environ.items() if name != "REQUIRE_ALL_TESTS"}
    return subprocess.run(
        command, cwd=ROOT, env={**inherited, **environment}, capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.parametrize(("environment", "summary"), [
    ({}, "1 passed, 5 skipped, 1 xfailed"),
    ({"REQUIRE_ALL_TESTS": "1"}, "1 failed, 1 passed, 1 skipped, 1 xfailed, 3 errors"),
])  # fmt: skip
def test_skips_are_failures_where_all_tests_are_required(
    environment: dict[str, str], summary: str, tmp_path: Path
) -> None:
    output = run(tmp_path, **environment)
    assert summary in output
    if environment:
        assert "skipped, but REQUIRE_ALL_TESTS is set: " in output
        assert "no compiler" in output
        assert "an_extra_that_is_not_there" in output
