"""Ranks in threads: every exchange, errors, and tensors that are to be equal; a single rank, which does nothing."""

import threading
import time
from functools import partial
from typing import Any

import pytest
import torch

from rltrainer.errors import RanksDifferError
from rltrainer.functional.losses import standardize
from rltrainer.functional.moments import moments
from rltrainer.ranks.ranks import ALONE, Alone, Ranks
from tests.fakes import run_in_threads
from tests.unit.ranks.rank_programs import collectives, expected


def test_threads_agree() -> None:
    assert run_in_threads([collectives] * 3) == [expected(rank, 3) for rank in range(3)]


def test_one_rank_is_alone() -> None:
    assert collectives(Alone()) == expected(0, 1)
    assert Alone().cause_of_end() is None


def test_a_single_rank_exchanges_nothing() -> None:
    x, weight = torch.tensor([1.0, 3.0, 7.0]), torch.tensor([1.0, 1.0, 0.0])
    for same in (ALONE.sum, ALONE.mean, ALONE.max, ALONE.largest, ALONE.seed, lambda x: ALONE.gather(x)[0]):
        assert same(x) is x
    metrics = {"loss": x}
    assert ALONE.means(metrics, x.device) is metrics
    assert ALONE.seed(None) is None
    assert ALONE.merged(3, x, weight) == (3, x, weight)
    assert torch.equal(ALONE.standardized(x, weight), standardize(x, weight))
    assert torch.equal(ALONE.moments(x, weight), moments(x, weight))
    ALONE.make_equal(partial(pytest.fail, "no tensor is looked at"))
    assert ALONE.on_first(list, "ab") == ["a", "b"]


def test_what_the_first_rank_does_for_all() -> None:
    def work(ranks: Ranks) -> tuple[list[int], int, bool, Any]:
        called: list[int] = []
        ranks.once(called.append, ranks.rank)
        found = [ranks.seed(None), *ranks.largest([ranks.rank])]
        return called, ranks.on_first(lambda: 10 + ranks.rank), ranks.seed(3) == 3, found

    first, second = run_in_threads([work] * 2)
    assert (first[:3], second[:3]) == (([0], 10, True), ([], 10, True))
    assert first[3] == second[3]
    assert first[3][1] == 1


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


NAN = float("nan")
SAME, OTHER = ["a", "a"], ["a", "b"]


def outcome(first: Any, second: Any, machines: list[Any], dtype: torch.dtype = torch.float32) -> list[Any]:
    """Return what two ranks have in the end, or the text of the error."""

    def on_rank(ranks: Ranks) -> Any:
        machine = machines[ranks.rank]
        x, beside = torch.tensor((first, second)[ranks.rank], dtype=dtype), torch.ones(2)
        try:
            ranks.make_equal(lambda: {beside: "beside", x: "x"}, machine and (lambda: machine))
        except RanksDifferError as error:
            return str(error).partition(" Hooks")[0]
        return x.tolist()

    return run_in_threads([on_rank, on_rank])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_all_take_the_numbers_of_the_first(dtype: torch.dtype) -> None:
    assert outcome([1, 0, 0], [1, 1, 0], [None, None], dtype) == [[1, 0, 0]] * 2
    assert outcome(0, 1, [None, None], dtype) == [0, 0]


@pytest.mark.parametrize(("first", "second"), [([[1.0], [NAN]], [[1.0], [NAN]]), ([], []), (0.1, 0.1)])
def test_equal_bits_are_no_difference(first: Any, second: Any) -> None:
    assert str(outcome(first, second, SAME)) == str([first and torch.tensor(first).tolist()] * 2)


@pytest.mark.parametrize(
    ("second", "machines", "text"),
    [
        ([1.0, 2.5], SAME, "0.5"), ([1.0, 2.5], OTHER, "0.5"), ([1.0, 2.0 + 2.0**-20], SAME, "9.53674e-07"),
        ([1.0, NAN], OTHER, "nan"),
    ],
)  # fmt: skip
def test_a_difference_is_named_on_all_ranks(second: Any, machines: list[str], text: str) -> None:
    rule = "x: must be equal in all ranks; rank 1 of 2 differs from rank 0 by up to"
    assert outcome([1.0, 2.0], second, machines) == [f"{rule} {text}."] * 2


def test_other_machines_may_round_otherwise() -> None:
    assert outcome([1.0, 2.0], [1.0, 2.0 + 2.0**-20], OTHER) == [[1.0, 2.0]] * 2
