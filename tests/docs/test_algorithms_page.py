"""The list of algorithms is complete and names what exists."""

import inspect
import re
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
        if name != "Algorithm" and issubclass(cls.policy_class, rl.Policy):
            assert f"`{cls.policy_class.__name__}`" in ROWS[name][3]


def test_the_rows_of_the_learning_table_exist() -> None:
    table = (ROOT / "benchmarks" / "learning.md").read_text()
    tasks = re.findall(r"`(\w+)`", "".join(cells[5] for cells in ROWS.values()))
    assert len(tasks) > 8
    assert [task for task in tasks if f"| {task} |" not in table] == []
