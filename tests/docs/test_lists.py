"""Lists in the pages are complete and name what exists: algorithms, extras, rooms, and the tests of the guarantees."""

import ast
import inspect
import json
import re
import statistics
import tomllib
from pathlib import Path

import gymnasium as gym
import numpy as np

import rltrainer as rl

ROOT = Path(__file__).parents[2]

HEAD, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "algorithms.md").read_text().partition("\n\nThe last column")[0].splitlines()
    if line.startswith(("| algorithm |", "| `"))
]
TABLE = {row[0].strip("`"): dict(zip(HEAD, row, strict=True)) for row in ROWS}

NONE = "\N{EN DASH}"
BOX = gym.spaces.Box(-1.0, 1.0, (2,))
ACTIONS = {
    "Discrete": gym.spaces.Discrete(3),
    "Discrete, MultiDiscrete, MultiBinary": gym.spaces.MultiBinary(2),
    "bounded Box": BOX,
    "Box": gym.spaces.Box(-np.inf, np.inf, (2,)),
}
"""What each word of the columns of actions takes and the one before it does not."""


CLASSES = {name: value for name in rl.__all__ if inspect.isclass(value := getattr(rl, name))}
ALGORITHMS: dict[str, type[rl.Algorithm]] = {
    name: cls for name, cls in CLASSES.items() if issubclass(cls, rl.Algorithm) and not inspect.isabstract(cls)
}


def test_every_algorithm_has_a_row_with_its_policy() -> None:
    assert set(ALGORITHMS) - {"Algorithm"} == set(TABLE)
    for name, cls in ALGORITHMS.items():
        if cls.policy_class is not rl.Policy:  # behaviour cloning takes any that is stochastic
            assert f"`{cls.policy_class.__name__}`" in TABLE[name]["policy"]


def takes(name: str, words: str) -> bool:
    policy_class = ALGORITHMS[name].policy_class
    try:
        (rl.ActorCritic if policy_class is rl.Policy else policy_class).for_spaces(BOX, ACTIONS[words])
    except rl.errors.SpaceError:
        return False
    return True


def test_the_columns_say_what_the_classes_do() -> None:
    for name, row in TABLE.items():
        cls = ALGORITHMS[name]
        assert row["memory"] == ("yes" if cls.trains_recurrent else NONE)
        assert (row["data"] == "on-policy") == issubclass(cls, rl.OnPolicyAlgorithm)
        assert row["masks"] == (NONE if row["discrete"] == NONE else "yes")
        for column, kinds in (("discrete", list(ACTIONS)[:2]), ("continuous", list(ACTIONS)[2:])):
            allowed = [words for words in kinds if takes(name, words)]
            assert row[column] == (allowed[-1] if allowed else NONE), (name, column)


def medians() -> dict[str, float]:
    rows = json.loads((ROOT / "benchmarks" / "learning.json").read_text())
    found = {name: float(f"{statistics.median(row['scores']):g}") for name, row in rows.items()}
    return found | {name.removesuffix(", compiled"): value for name, value in found.items() if "compiled" in name}


def test_the_figures_are_those_of_the_measured_tables() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    recipes = (ROOT / "docs" / "measurements" / "recipes.md").read_text()
    scores = {
        name: float(score) for name, score in re.findall(r"^\| `(\S+)`(?:[^|]*\|){4} (-?\d+\.\d) ", recipes, re.M)
    }
    learns = re.findall(r"`(\w+)` ([-.\d]+)", "".join(row["learns"] for row in TABLE.values()))
    chosen = re.findall(r"`(\w+(?:/[-\w]+|_\w+))` (-?\d+(?:\.\d+)?)", page.partition("## Which one to choose")[2])
    assert len(learns) > 20
    assert len(chosen) > 20
    measured = medians() | scores
    assert [(name, figure) for name, figure in learns + chosen if measured[name] != float(figure)] == []


def test_every_extra_is_listed() -> None:
    page = (ROOT / "docs" / "installing.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(extras)


def test_readme_counts_what_there_is_and_has_the_addresses_of_the_project() -> None:
    readme = (ROOT / "README.md").read_text()
    assert re.findall(r"\[(\d+) algorithms\]", readme) == [str(len(TABLE))]
    assert re.findall(r"\[(\d+) recipes\]", readme) == [str(len(rl.recipes.names()))]
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert set(re.findall(r"https?://[^\s>]+", readme)) == set(urls.values())
    assert all(url.startswith("https://rltrainer.example/") for url in urls.values())  # belongs to none: RFC 2606


def test_readme_has_six_rows_of_the_comparison_which_knows_our_size() -> None:
    text, head = ((ROOT / path).read_text() for path in ("docs/beside_others.md", "README.md"))
    page, readme = ([line for line in each.splitlines() if line.startswith("|")] for each in (text, head))
    assert readme == [line for line in page if line in readme]
    assert len(readme) == 2 + 6
    assert f"| algorithms | {len(TABLE)} |" in "".join(readme)
    [more] = re.findall(r"has (\w+) rows more", head)
    assert more == {13: "thirteen", 14: "fourteen", 15: "fifteen"}[len(page) - len(readme)]
    [(num_lines, num_files)] = re.findall(r"^\| size, lines / files \| (\d+)k / (\d+) \|", text, re.MULTILINE)
    files = list((ROOT / "rltrainer").rglob("*.py"))
    lines = sum(len(path.read_text().splitlines()) for path in files)
    # Told of a moment: a tenth more or less is no error.
    assert abs(1000 * int(num_lines) / lines - 1) < 0.1, f"{lines} lines"
    assert abs(int(num_files) / len(files) - 1) < 0.1, f"{len(files)} files"


def test_every_room_is_on_its_floor() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = set(re.findall(r"`(?:rltrainer/)?(\w+)(?:/|\.py)`", page))
    package = ROOT / "rltrainer"
    rooms = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(rooms - named) == []


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"\]\(([^)#]+\.md)\)", (docs / "index.md").read_text()))


def test_pages_link_to_what_is_shown_without_a_clone() -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        if path.parent.name != "measurements":
            assert re.findall(r"`(?:benchmarks/\w+\.md|examples/\w+\.py)`", path.read_text()) == [], path


PROMISES = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)


def problem(named: str) -> str | None:
    """Return what is wrong with the name of a test."""
    path, _, name = named.partition("::")
    file = ROOT / path
    if not path.startswith("tests/") or not file.is_file():
        return f"{named}: there is no such file"
    functions = {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
    return None if name in functions and name.startswith("test_") else f"{named}: there is no such test"


def test_all_promises_are_there_and_their_tests_exist() -> None:
    assert [int(number) for number, _, _ in PROMISES] == list(range(1, 33))
    for number, _, tests in PROMISES:
        named = re.findall(r"`([^`]+)`", tests)
        assert named, number
        assert [text for text in map(problem, named) if text] == []


def test_what_does_not_exist_is_seen() -> None:
    here = "tests/docs/test_lists.py"
    assert problem(f"{here}::test_what_does_not_exist_is_seen") is None
    assert problem(f"{here}::test_nothing") == f"{here}::test_nothing: there is no such test"
    assert problem(f"{here}::problem") == f"{here}::problem: there is no such test"
    assert problem(here) == f"{here}: there is no such test"
    nowhere = "tests/docs/nowhere.py::test_nothing"
    assert problem(nowhere) == f"{nowhere}: there is no such file"
