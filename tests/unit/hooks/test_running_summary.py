"""Summaries of numbers in parts equal those of all of them."""

import math

import numpy as np
import torch

from rltrainer.hooks.log_scalar import MAX_PARTS, RunningSummary


def test_by_hand() -> None:
    gathered = RunningSummary()
    gathered.add(torch.tensor([1.0, 2.0]))
    gathered.add(torch.tensor(6.0))
    found = gathered.take()
    # mean 9 / 3, squares (-2)^2 + (-1)^2 + 3^2 = 14, of 3
    assert (found.count, found.mean, found.sum, found.min, found.max) == (3, 3.0, 9.0, 1.0, 6.0)
    assert math.isclose(found.std, math.sqrt(14 / 3))
    assert gathered.take().count == 0


def test_parts_come_to_what_numpy_says_of_all() -> None:
    numbers = np.random.default_rng(0).normal(1e4, 1e-2, 1000)
    gathered = RunningSummary()
    for part in np.split(numbers, 500):
        gathered.add(torch.from_numpy(part))
    found = gathered.take()
    assert math.isclose(found.mean, numbers.mean(), rel_tol=1e-12)
    assert math.isclose(found.std, numbers.std(), rel_tol=1e-6)
    assert (found.min, found.max) == (numbers.min(), numbers.max())


def test_no_more_than_so_many_parts_wait() -> None:
    gathered = RunningSummary()
    for _ in range(10 * MAX_PARTS):
        gathered.add(torch.ones(2))
        assert len(gathered._waiting) < MAX_PARTS
    gathered.add(torch.ones(1 << 20))
    assert gathered._waiting == []


def test_what_is_added_is_copied() -> None:
    memory = torch.tensor([1.0])
    gathered = RunningSummary()
    gathered.add(memory)
    memory.fill_(5.0)
    assert gathered.take().mean == 1.0


def test_empty_parts_change_nothing() -> None:
    gathered = RunningSummary()
    gathered.add(torch.zeros(0))
    assert gathered.take() == RunningSummary().take()


def test_parts_of_different_shapes() -> None:
    gathered = RunningSummary()
    for part in (torch.tensor(1.0), torch.tensor([[2.0, 3.0]]), torch.tensor([4])):
        gathered.add(part)
    assert gathered.take().sum == 10.0
