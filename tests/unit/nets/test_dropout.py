"""Dropout by masks that are state: shares, scale, independence, modes, copies."""

import copy

import pytest
import torch
from torch import Tensor

from rltrainer.nets.mlp import Dropout


def dropped(dropout: Dropout, *shape: int) -> Tensor:
    return dropout(torch.ones(shape)) == 0


def test_units_are_dropped_and_the_others_scaled() -> None:
    """1 / (1 - 0.25) = 4/3; of 200,000 units a quarter is dropped, give or take 5 standard deviations of 0.00097."""
    torch.manual_seed(1)
    output = Dropout(0.25)(torch.ones(1000, 200))
    assert output.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert (output == 0).float().mean().item() == pytest.approx(0.25, abs=0.005)


def test_masks_differ_between_calls_layers_rows_and_columns() -> None:
    """Two masks of p = 0.5 agree in half of the units, as coins do."""
    torch.manual_seed(1)
    one, other = Dropout(0.5), Dropout(0.5)
    first, second, third = dropped(one, 500, 400), dropped(one, 500, 400), dropped(other, 500, 400)
    for a, b in ((first, second), (first, third), (first[1:], first[:-1]), (first[:, 1:], first[:, :-1])):
        assert (a == b).float().mean().item() == pytest.approx(0.5, abs=0.006)
    for axis in (0, 1):  # no row or column is favoured: 500 coins have a deviation of 0.022
        assert (first.float().mean(axis) - 0.5).abs().max() < 0.12


def test_gradients_are_those_of_the_units_that_are_left() -> None:
    x = torch.ones(50, requires_grad=True)
    output = Dropout(0.5)(x)
    output.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, output.detach())  # 2 or 0


def test_eval_mode_drops_nothing_and_takes_no_mask() -> None:
    dropout = Dropout(0.5).eval()
    before, x = dropout.num_masks.clone(), torch.rand(10)
    assert dropout(x) is x
    assert torch.equal(dropout.num_masks, before)


def test_no_random_number_of_torchs_is_drawn() -> None:
    dropout = Dropout(0.5)
    before = torch.get_rng_state()
    dropout(torch.ones(10))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_state_goes_on_with_the_next_mask() -> None:
    one, other = Dropout(0.5), Dropout(0.5)
    dropped(one, 64)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for _ in range(3):
        assert torch.equal(dropped(one, 64), dropped(other, 64))
