"""Boards of ranks, here in threads: every dtype and size, many exchanges in a row, and a rank that is missing."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rltrainer.ranks import board as module
from rltrainer.ranks.board import NBYTES, Board

pytestmark = pytest.mark.skipif(not module.IS_ORDERED, reason="boards are for processors that order their writes")


def fine(waited: float) -> None:
    assert waited < 60


def boards(world: int, check: Callable[[float], None] = fine) -> list[Board]:
    first = Board(0, world, None, check)
    return [first, *(Board(rank, world, first.path, check) for rank in range(1, world))]


def together(world: int, work: Callable[[int, Board], Any]) -> list[Any]:
    made, found = boards(world), dict[int, Any]()
    threads = [
        threading.Thread(target=lambda rank=rank: found.update({rank: work(rank, made[rank])})) for rank in range(world)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(world)]


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(6.0).view(2, 3), torch.tensor(1.5, dtype=torch.float64), torch.tensor([3, -(2**40)]),
        torch.zeros(0, 2), torch.tensor([True, False]), torch.arange(5, dtype=torch.uint8),
        torch.ones(NBYTES // 4 * 2 + 3),
    ],
    ids=lambda x: f"{x.dtype} {tuple(x.shape)}",
)  # fmt: skip
def test_every_rank_gets_the_tensors_of_all(x: Tensor) -> None:
    def work(rank: int, board: Board) -> Tensor:
        found = x.new_empty((3, *x.shape))
        board.gather(found, x * (rank + 1) if x.dtype != torch.bool else x ^ bool(rank % 2))
        return found

    for found in together(3, work):
        for rank in range(3):
            assert torch.equal(found[rank], x * (rank + 1) if x.dtype != torch.bool else x ^ bool(rank % 2))


def test_sums_are_taken_in_the_order_of_ranks_in_one_exchange_after_the_other() -> None:
    # 1e8 + 1 - 1e8 is 0 in float32, and 1e8 - 1e8 + 1 is 1: only the order of ranks gives (1e8 + 1) - 1e8 = 0.
    values = [1e8, 1.0, -1e8]

    def work(rank: int, board: Board) -> list[float]:
        sums = []
        for i in range(200):
            total = torch.empty(2)
            board.sum(total, torch.tensor([values[rank], float(rank * i)]))
            sums += total.tolist()
        return sums

    expected = [number for i in range(200) for number in (0.0, 3.0 * i)]
    assert together(3, work) == [expected] * 3


def test_tensors_of_different_sizes_are_no_exchange() -> None:
    def work(rank: int, board: Board) -> str:
        board.sum(torch.empty(3), torch.ones(3))
        with pytest.raises(RuntimeError) as raised:
            board.sum(torch.empty(1 + rank), torch.ones(1 + rank))
        return str(raised.value)

    assert together(2, work) == ["ranks exchange tensors of different sizes: [4, 8] bytes"] * 2


def test_a_rank_that_does_not_come_is_looked_for() -> None:
    seen = []

    def check(waited: float) -> None:
        seen.append(waited)
        if len(seen) == 3:
            raise RuntimeError("it does not come")

    board, _ = boards(2, check)
    with pytest.raises(RuntimeError, match="it does not come"):
        board.sum(torch.empty(1), torch.ones(1))
    assert seen == sorted(seen)
    assert seen[0] >= module.TICK


def test_no_board_where_writes_have_no_order_or_memory_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, file = Board(0, 2, None, fine), tmp_path / "file"
    file.write_bytes(bytes(os.path.getsize(first.path)))
    assert Board.opened(1, 2, first.path, fine) is not None
    for world, path in ((2, "/proc/self/fd/987654"), (2, str(file)), (3, first.path)):
        assert Board.opened(1, world, path, fine) is None
    monkeypatch.setattr(module, "IS_ORDERED", False)
    assert Board.opened(0, 2, None, fine) is None
