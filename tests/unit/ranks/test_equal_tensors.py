"""Tensors of ranks that are to be equal: found by their bits, made equal to the first rank's, or named."""

from typing import Any

import pytest
import torch

from rltrainer.errors import RanksDifferError
from rltrainer.ranks.equal_tensors import make_equal
from rltrainer.ranks.ranks import Ranks
from tests.fakes import run_in_threads

NAN = float("nan")
SAME, OTHER = ["a", "a"], ["a", "b"]


def outcome(first: Any, second: Any, machines: list[Any], dtype: torch.dtype = torch.float32) -> list[Any]:
    """Return what two ranks have in the end, or the text of the error."""

    def on_rank(ranks: Ranks) -> Any:
        x, beside = torch.tensor((first, second)[ranks.rank], dtype=dtype), torch.ones(2)
        try:
            make_equal({beside: "beside", x: "x"}, ranks, machines[ranks.rank])
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
