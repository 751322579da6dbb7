"""The tiers of the tests: `make test` runs the fast one, `make test-full` the full one, and neither the slow tests.

A test that is marked `full` is in that tier, and one that `KEPT` names is in the fast one. All others are `full` if
`MOVED` names them, or if they took more than `LIMIT` CPU seconds when `make costs` measured them.
"""

import functools
import json
import re
from pathlib import Path

COSTS = Path(__file__).with_name("costs.json")
"""CPU seconds of each test that takes at least `RECORDED`, by its node id."""
LIMIT, RECORDED = 0.3, 0.2
SITE = "site"
"""The xdist group of the tests that look at the pages of the docs: one process builds them."""

ONE_OF_EACH_KIND = r"[-\[](ppo|recurrent_ppo|sac|dqn_prioritized)[-\]]"
KEPT = {
    # One of each kind (on policy, with memory, continuous off policy, drawn by priority) stands for all algorithms.
    r"tests/compile/test_same_weights\.py::.*\[(ppo|sac|dqn), compiled\]",
    r"tests/probe/.*[-\[](ppo|recurrent_ppo|sac|dqn)[-\]]",
    rf"tests/resume/test_(resume|mid_episode|rows)\.py::.*{ONE_OF_EACH_KIND}",
    rf"tests/unit/(hooks/test_points|algorithms/test_copies)\.py::.*{ONE_OF_EACH_KIND}",
    # Whole trainings as CUDA graphs, and the mistake that only they find.
    r"tests/devices/test_runs\.py::test_a_run_of_graphs_gives_the_same_bits\[(ppo|sac)\]",
    r"tests/devices/test_second_device\.py::test_a_scheduled_value_in_a_graph_is_found\[a number\]",
}
"""Tests that stay in the fast tier whatever they cost, as regular expressions of node ids."""

NEWCOMERS = (
    r"crossq|(recurrent_)?pqn|rnd(_paper|_box)?|simbav2|xqc|flashsac(_midway)?|repeated"
    r"|(offline_)?(cal_ql(_mixed)?|rebrac|fqe|fql\w*)|\w*distillation\w*"
)
"""Algorithms and forms of them that have their own tests and the contract in the fast tier; in tables of all
algorithms, others stand for them there."""
MOVED = {
    rf"tests/(devices|resume|security|unit/(algorithms/test_|hooks|updates)|contract/(?!test_all)).*[-\[]({NEWCOMERS})[-\]]",
    r"tests/(compile|probe)/.*[-\[]distillation\w*[-\],]",
    r"tests/contract/.*[-\[](recurrent_distillation|distillation_box)[-\]]",
    # Whole runs of every algorithm: the ones of `KEPT` stand for them.
    r"tests/resume/test_resume\.py::test_(resume_in_process|a_run_saved_before_its_first_step\w*)\[",
    r"tests/unit/hooks/test_points\.py::test_hooks_that_only_read_change_no_bit\[",
    r"tests/unit/algorithms/test_copies\.py::test_a_copy_is_equal_and_trains_on_equally\[",
    # The same in float64: the tests of float32 stand for it.
    r"tests/unit/algorithms/test_load_file\.py::test_an_algorithm_goes_on_bit_for_bit\[.*float64\]",
}
"""Tests that are in the full tier however little they cost, as regular expressions of node ids."""


@functools.cache
def costs() -> dict[str, float]:
    """Return what `make costs` measured."""
    return json.loads(COSTS.read_text()) if COSTS.exists() else {}


def tier(test: str, measured: dict[str, float]) -> str:
    """Return `fast` or `full`.

    Args:
        test: node id, with or without the group that pytest-xdist adds to it.
        measured: CPU seconds by node id; a test that is not in it is fast.
    """
    test = test.removesuffix(f"@{SITE}")
    if any(re.match(pattern, test) for pattern in KEPT):
        return "fast"
    moved = any(re.match(pattern, test) for pattern in MOVED)
    return "full" if moved or measured.get(test, 0.0) > LIMIT else "fast"
