"""Every promise in the page of guarantees names tests, and every test that it names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)


def problem(named: str) -> str | None:
    """Return what is wrong with the name of a test."""
    path, _, name = named.partition("::")
    file = ROOT / path
    if not path.startswith("tests/") or not file.is_file():
        return f"{named}: there is no such file"
    functions = {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
    return None if name in functions and name.startswith("test_") else f"{named}: there is no such test"


def test_all_promises_are_there_and_their_tests_exist() -> None:
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 33))
    for number, _, tests in ROWS:
        named = re.findall(r"`([^`]+)`", tests)
        assert named, number
        assert [text for text in map(problem, named) if text] == []


def test_what_does_not_exist_is_seen() -> None:
    here = "tests/docs/test_guarantees.py"
    assert problem(f"{here}::test_what_does_not_exist_is_seen") is None
    assert problem(f"{here}::test_nothing") == f"{here}::test_nothing: there is no such test"
    assert problem(f"{here}::problem") == f"{here}::problem: there is no such test"
    assert problem(here) == f"{here}: there is no such test"
    nowhere = "tests/docs/nowhere.py::test_nothing"
    assert problem(nowhere) == f"{nowhere}: there is no such file"
