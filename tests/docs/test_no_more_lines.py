"""The table of what other tools' pages show: our blocks have the lines that it says, no more than theirs, and run.

They are run with those of all pages.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import Block, blocks

PAGE = (Path(__file__).parents[2] / "docs" / "migrating" / "in_no_more_lines.md").read_text()
ROWS = re.findall(r"^\| (.+) \| (\d+) \| \[.+\]\(#(.+)\) \| (\d+) \|$", PAGE, re.MULTILINE)
TOOLS = {"Stable-Baselines3": 11, "RL Zoo": 6, "CleanRL": 3, "Tianshou": 2, "d3rlpy": 1}
"""Rows of each tool, at least."""


def num_lines(block: Block) -> int:
    """Return the lines of a block that are neither blank nor comments nor docstrings."""
    if block.language != "python":
        return sum(bool(line.strip()) and not line.startswith("#") for line in block.code.splitlines())
    docstrings = {
        line
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(block.code.splitlines(), start=1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and n not in docstrings for n, line in lines)


def below_headings(text: str) -> Iterator[tuple[str, Block]]:
    """Yield the first block below each heading, by the heading's anchor."""
    lines, found = text.splitlines(), list(blocks(text))
    for number, line in enumerate(lines, start=1):
        if line.startswith("### "):
            anchor = re.sub(r"[^\w -]", "", line.removeprefix("### ").lower()).replace(" ", "-")
            yield anchor, next(block for block in found if block.line > number)


BELOW = dict(below_headings(PAGE))


@pytest.mark.parametrize(("there", "theirs", "anchor", "ours"), ROWS, ids=[row[2] for row in ROWS])
def test_ours_has_no_more_lines(there: str, theirs: str, anchor: str, ours: str) -> None:
    assert num_lines(BELOW[anchor]) == int(ours) <= int(theirs)


def test_every_block_has_a_row_and_every_tool_its_rows() -> None:
    assert sorted(row[2] for row in ROWS) == sorted(BELOW)
    assert {tool: sum(row[0].startswith(tool) for row in ROWS) for tool in TOOLS} == TOOLS
    assert len(ROWS) == PAGE.count("](#")


def test_lines_are_counted_without_what_is_no_code() -> None:
    code = (
        '"""Text.\n\nMore."""\n# a comment\nimport a\n\n\ndef f(\n    x,\n):\n    """Say so."""\n    return x  # why\n'
    )
    assert num_lines(Block("python", 1, code)) == 5
    assert num_lines(Block("sh", 1, "# first\nrltrainer list\n")) == 1
