"""Ranks in threads and in processes: every collective, errors, and the same sums in the same order."""

import threading
import time

import pytest
import torch

from rltrainer.ranks.ranks import Alone, Ranks
from tests.fakes import run_in_threads
from tests.unit.ranks.rank_programs import collectives

EXPECTED = {
    "sum": [6.0, -3.0], "mean": [2.0, -1.0], "max": [3.0, 0.0], "number": -3.0, "columns": [[6.0, 6.0], [-3.0, -3.0]],
    "gathered": [[0], [0, 1], [0, 1, 2]], "equal": [[1.0, 0.0], [2.0, -1.0], [3.0, -2.0]],
    "rows": [(0, 2), (1, 2), (2, 2)], "said": {"stop": 0, "why": None},
}  # fmt: skip


def test_threads_agree() -> None:
    for rank, found in enumerate(run_in_threads([collectives] * 3)):
        assert found == {"place": (rank, 3), **EXPECTED}


def test_one_rank_is_alone() -> None:
    found = collectives(Alone())
    assert found == {
        "place": (0, 1), "sum": [1.0, 0.0], "mean": [1.0, 0.0], "max": [1.0, 0.0], "number": 0.0,
        "columns": [[1.0, 1.0], [0.0, 0.0]], "gathered": [[0]], "equal": [[1.0, 0.0]], "rows": [(0, 2)],
        "said": {"stop": 0, "why": None},
    }  # fmt: skip
    assert Alone().cause_of_end() is None


def test_what_was_brought_may_change_at_once() -> None:
    def work(ranks: Ranks) -> list[float]:
        sums, x = [], torch.zeros(1)
        for i in range(100):
            x.fill_(ranks.rank + i)
            sums.append(float(ranks.sum(x)))
            x.fill_(-1e9)
        return sums

    first, second = run_in_threads([work] * 2)
    assert first == second == [2.0 * i + 1 for i in range(100)]


def test_the_error_of_a_thread_ends_the_others() -> None:
    def fail(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise ValueError("of rank 1")
        ranks.from_all(None)

    started, num_threads = time.monotonic(), threading.active_count()
    with pytest.raises(ValueError, match="of rank 1"):
        run_in_threads([fail] * 3)
    assert time.monotonic() - started < 30
    assert threading.active_count() == num_threads
