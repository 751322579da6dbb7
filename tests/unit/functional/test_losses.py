"""Losses and weighted means against numbers worked out by hand."""

import math

import pytest
import torch

from rltrainer.functional.losses import (
    clipped_surrogate,
    expectile,
    explained_variance,
    huber,
    standardize,
    weighted_mean,
)


def test_weighted_mean_by_hand() -> None:
    # (1 * 1 + 2 * 3) / 4 = 1.75
    assert weighted_mean(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])).item() == 1.75


def test_weighted_mean_over_the_last_axis_of_an_ensemble() -> None:
    x = torch.tensor([[1.0, 3.0, 99.0], [5.0, 7.0, 99.0]])
    assert weighted_mean(x, torch.tensor([1.0, 1.0, 0.0])).tolist() == [2.0, 6.0]


def test_weighted_mean_gives_padding_no_gradient() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    weighted_mean(x, torch.tensor([1.0, 1.0, 0.0])).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.5, 0.5, 0.0]


def test_standardize_is_torchs_mean_and_std() -> None:
    x = torch.tensor([1.0, 2.0, 6.0])
    expected = (x - x.mean()) / (x.std() + 1e-8)
    torch.testing.assert_close(standardize(x, torch.ones(3)), expected)


def test_standardize_with_padding_equals_without() -> None:
    x = torch.tensor([1.0, 2.0, 6.0])
    padded = standardize(torch.cat([x, torch.tensor([100.0, -7.0])]), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(padded[:3], standardize(x, torch.ones(3)))


@pytest.mark.parametrize("x", [[3.0], [3.0, 3.0]], ids=["one cell", "all equal"])
def test_standardize_without_spread_is_zero(x: list[float]) -> None:
    assert standardize(torch.tensor(x), torch.ones(len(x))).tolist() == [0.0] * len(x)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # Inside 1 +- 0.2 the loss is -r A, and its gradient by log r too.
        (1.1, 2.0, -2.2, -2.2),
        (0.9, 2.0, -1.8, -1.8),
        (1.1, -2.0, 2.2, 2.2),
        (0.9, -2.0, 1.8, 1.8),
        # Outside, where the step would go further in the direction it came: clipped, no gradient.
        (1.5, 2.0, -2.4, 0.0),
        (0.5, -2.0, 1.6, 0.0),
        # Outside, where the step would come back: not clipped.
        (0.5, 2.0, -1.0, -1.0),
        (1.5, -2.0, 3.0, 3.0),
    ],
)
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    result = clipped_surrogate(log_ratio, torch.tensor([advantage]), 0.2)
    result.sum().backward()
    assert result.item() == pytest.approx(loss)
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(gradient)


def test_huber_by_hand() -> None:
    error = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 2.0], requires_grad=True)
    loss = huber(error)
    loss.sum().backward()
    # e^2 / 2 within 1, |e| - 1/2 outside; the gradient is the error clipped to [-1, 1].
    assert loss.tolist() == [2.5, 0.5, 0.125, 0.0, 0.125, 1.5]
    assert error.grad is not None
    assert error.grad.tolist() == [-1.0, -1.0, -0.5, 0.0, 0.5, 1.0]


def test_expectile_by_hand() -> None:
    error = torch.tensor([2.0, -2.0, 0.0], requires_grad=True)
    loss = expectile(error, 0.7)
    loss.sum().backward()
    # 0.7 * 4, 0.3 * 4, 0; gradients 2 * 0.7 * 2, 2 * 0.3 * -2, 0
    assert loss.tolist() == pytest.approx([2.8, 1.2, 0.0])
    assert error.grad is not None
    assert error.grad.tolist() == pytest.approx([2.8, -1.2, 0.0])


def test_expectile_one_half_is_half_the_square() -> None:
    error = torch.tensor([3.0, -3.0])
    assert expectile(error, 0.5).tolist() == [4.5, 4.5]


def test_expectile_is_smallest_at_the_expectile() -> None:
    # Of 0 and 1 the 0.7 expectile v solves 0.7 (1 - v) = 0.3 v: v = 0.7.
    value = torch.tensor(0.7, requires_grad=True)
    expectile(torch.tensor([0.0, 1.0]) - value, 0.7).sum().backward()
    assert value.grad is not None
    assert value.grad.item() == pytest.approx(0.0, abs=1e-6)


def test_explained_variance_by_hand() -> None:
    target, weight = torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    # Errors 0, 0, 1.5: their variance is 0.5, that of the target 2 / 3.
    prediction = torch.tensor([1.0, 2.0, 1.5, -99.0])
    assert explained_variance(prediction, target, weight).item() == pytest.approx(0.25)
    assert explained_variance(target + 5, target, weight).item() == pytest.approx(1.0)
    assert explained_variance(torch.zeros(4), target, weight).item() == 0.0
    assert explained_variance(-target, target, weight).item() == pytest.approx(-3.0)


def test_explained_variance_of_a_target_that_does_not_vary() -> None:
    assert explained_variance(torch.randn(3), torch.ones(3), torch.ones(3)).item() == 0.0
