"""What a sum tree finds, by hand and against a running sum; that rounding never leads to an empty leaf."""

import numpy as np
import pytest
import torch

from rltrainer.data.prioritized import MAX_TOP, WIDTH, SumTree

SIZES = [1, 2, WIDTH, WIDTH + 1, WIDTH * MAX_TOP, WIDTH * MAX_TOP + 1, 300_001]


def tree_of(values: torch.Tensor) -> SumTree:
    tree = SumTree(len(values))
    tree.set(torch.arange(len(values)), values)
    return tree


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_masses_worked_by_hand() -> None:
    # Running sums 1, 3, 6, 10: 1.0 is no longer below the first, 2.999 below the second, 3.0 not.
    tree = tree_of(doubles(1.0, 2.0, 3.0, 4.0))
    assert tree.find(doubles(0.5, 1.0, 2.999, 3.0, 9.99)).tolist() == [0, 1, 1, 2, 3]
    assert tree.total.item() == 10.0


@pytest.mark.parametrize("size", SIZES)
def test_what_is_found_equals_a_search_in_the_running_sum(size: int) -> None:
    rng = np.random.default_rng(size)
    leaves = rng.integers(0, 9, size).astype(float)  # whole numbers: sums are exact in any order
    leaves[rng.integers(size)] = 1.0
    tree = tree_of(torch.from_numpy(leaves))
    mass = np.sort(rng.random(500)) * leaves.sum()
    assert torch.equal(tree.leaves, torch.from_numpy(leaves))
    assert tree.total.item() == leaves.sum()
    assert np.array_equal(tree.find(torch.from_numpy(mass)).numpy(), np.cumsum(leaves).searchsorted(mass, side="right"))


@pytest.mark.parametrize("size", SIZES)
def test_single_changes_leave_the_sums_of_a_tree_that_was_built_at_once(size: int) -> None:
    rng = np.random.default_rng(size)
    values = torch.from_numpy(rng.random(size))
    tree = tree_of(values)
    for _ in range(50):
        index = torch.from_numpy(rng.integers(0, size, 5))
        changed = torch.from_numpy(rng.random(5) * 1e6)[index % 5]  # a leaf that is named twice gets one value twice
        values[index] = changed
        tree.set(index, changed)
    fresh = tree_of(values)
    assert torch.equal(tree.leaves, fresh.leaves)
    assert torch.equal(tree.total, fresh.total)


@pytest.mark.parametrize("last", [0, 1, WIDTH - 1, WIDTH, 2 * WIDTH * MAX_TOP - 2])
def test_the_whole_mass_is_the_last_leaf_that_is_not_empty(last: int) -> None:
    tree = SumTree(2 * WIDTH * MAX_TOP)
    tree.set(torch.arange(last + 1), torch.full((last + 1,), 0.1, dtype=torch.float64))
    assert tree.find(tree.total.reshape(1)).tolist() == [last]


@pytest.mark.parametrize("seed", range(6))
def test_an_empty_leaf_is_never_found(seed: int) -> None:
    # Sizes of all magnitudes between many zeros, and masses at and around every border between leaves.
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 3 * WIDTH * MAX_TOP))
    leaves = np.where(rng.random(size) < 0.7, 0.0, 10.0 ** rng.uniform(-12, 6, size))
    leaves[rng.integers(size)] = 1e-300
    tree = tree_of(torch.from_numpy(leaves))
    borders = np.concatenate([[0.0, float(tree.total)], np.cumsum(leaves)])
    mass = np.concatenate([borders, np.nextafter(borders, 0), np.nextafter(borders, np.inf)])
    found = tree.find(torch.from_numpy(mass.clip(0, float(tree.total))))
    assert (tree.leaves[found] > 0).all()


def test_memory_is_little_more_than_the_leaves() -> None:
    tree = SumTree(1_000_000)
    assert sum(level.nbytes for level in [*tree._levels, tree._top]) < 1.04 * 8 * 1_000_000
