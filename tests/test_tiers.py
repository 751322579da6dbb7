"""The tiers of the tests: what decides, and that the file of costs and the exceptions are about tests that exist."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.tiers import COSTS, LIMIT, RECORDED, SITE, costs, tier

ROOT = Path(__file__).parents[1]
DQN, SAC = "tests/probe/test_x.py::test_step[double_dqn]", "tests/resume/test_rows.py::test_step[3-sac-True]"


@pytest.mark.parametrize(("test", "cost", "expected"), [
    (DQN, LIMIT, "fast"), (DQN, LIMIT + 0.01, "full"), (DQN + "@site", LIMIT + 0.01, "full"), (SAC, 20.0, "fast"),
    ("tests/unit/x/test_x.py::test_step[sac]", 20.0, "full"), ("tests/probe/test_x.py::test_value[dqn]", 1.0, "fast"),
    ("tests/compile/test_x.py::test_step[sac]", 1.0, "full"),
    ("tests/resume/test_x.py::test_step[crossq]", 0.0, "full"),
    ("tests/resume/test_resume.py::test_resume_in_process[1-sac]", 0.0, "fast"),
    ("tests/resume/test_resume.py::test_resume_in_process[1-td3]", 0.0, "full"),
])  # fmt: skip
def test_a_test_above_the_limit_is_full_but_for_one_algorithm_of_each_kind(
    test: str, cost: float, expected: str
) -> None:
    assert tier(test, {test.removesuffix("@site"): cost}) == expected


def test_a_test_that_was_not_measured_is_fast() -> None:
    assert tier(DQN, {}) == "fast"


def test_the_file_holds_costs_worth_recording_of_files_that_exist() -> None:
    assert len(costs()) > 100
    assert min(costs().values()) >= RECORDED
    assert list(costs()) == sorted(costs())
    assert {test.partition("::")[0] for test in costs() if not (ROOT / test.partition("::")[0]).exists()} == set()
    assert json.loads(COSTS.read_text()) == costs()


def test_the_marker_follows_from_the_cost() -> None:
    class Item:
        def __init__(self, nodeid: str, *fixturenames: str) -> None:
            self.nodeid, self.fixturenames, self.markers = nodeid, fixturenames, []

        def add_marker(self, marker: Any) -> None:
            self.markers.append(marker)

    costly = next(test for test in costs() if tier(test, costs()) == "full")
    items: list[Any] = [Item(costly), Item(DQN), Item(DQN, "site")]
    pytest_collection_modifyitems(items)
    assert [item.markers for item in items] == [["full"], [], [pytest.mark.xdist_group(SITE)]]
