"""Lists in the pages are complete and name what exists: algorithms, extras, the floors of the package."""

import inspect
import re
import tomllib
from pathlib import Path

import rltrainer as rl

ROOT = Path(__file__).parents[2]

ROWS = {
    cells[0].strip("`"): cells
    for line in (ROOT / "docs" / "algorithms.md").read_text().splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 6
}


def algorithms() -> dict[str, type[rl.Algorithm]]:
    named = {name: getattr(rl, name) for name in rl.__all__}
    return {
        name: value
        for name, value in named.items()
        if inspect.isclass(value) and issubclass(value, rl.Algorithm) and not inspect.isabstract(value)
    }


def test_every_algorithm_has_a_row_with_its_policy() -> None:
    assert set(algorithms()) - {"Algorithm"} == set(ROWS) - {"algorithm", "---"}
    for name, cls in algorithms().items():
        if cls.policy_class is not rl.Policy:  # behaviour cloning takes any that is stochastic
            assert f"`{cls.policy_class.__name__}`" in ROWS[name][3]


def test_the_rows_of_the_learning_table_exist() -> None:
    table = (ROOT / "benchmarks" / "learning.md").read_text()
    tasks = re.findall(r"`(\w+)`", "".join(cells[5] for cells in ROWS.values()))
    assert len(tasks) > 8
    assert [task for task in tasks if f"| {task} |" not in table and f"| {task}, compiled |" not in table] == []


def test_every_extra_is_listed() -> None:
    page = (ROOT / "docs" / "installing.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(extras)


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
