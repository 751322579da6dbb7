"""Ranks in threads and in processes: every collective, errors, and the same sums in the same order."""

import threading
import time
from typing import Any

import pytest
import torch

from rltrainer.processes.ranks import Alone, Ranks, run_in_threads


def collectives(ranks: Ranks) -> dict[str, Any]:
    one = torch.tensor([1.0 + ranks.rank, -float(ranks.rank)])
    return {
        "place": (ranks.rank, ranks.world),
        "sum": ranks.sum(one).tolist(),
        "max": ranks.max(one).tolist(),
        "gathered": [x.tolist() for x in ranks.gather(torch.arange(ranks.rank + 1))],
        "said": ranks.from_first({"stop": ranks.rank, "why": None}),
    }


EXPECTED = {
    "sum": [6.0, -3.0], "max": [3.0, 0.0], "gathered": [[0], [0, 1], [0, 1, 2]], "said": {"stop": 0, "why": None},
}  # fmt: skip


def test_threads_agree() -> None:
    for rank, found in enumerate(run_in_threads([collectives] * 3)):
        assert found == {"place": (rank, 3), **EXPECTED}


def test_one_rank_is_alone() -> None:
    found = collectives(Alone())
    assert found == {
        "place": (0, 1), "sum": [1.0, -0.0], "max": [1.0, -0.0], "gathered": [[0]], "said": {"stop": 0, "why": None},
    }  # fmt: skip


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
        ranks.barrier()

    started, num_threads = time.monotonic(), threading.active_count()
    with pytest.raises(ValueError, match="of rank 1"):
        run_in_threads([fail] * 3)
    assert time.monotonic() - started < 30
    assert threading.active_count() == num_threads
