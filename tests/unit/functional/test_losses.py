"""Losses and weighted means against numbers worked out by hand."""

import math
from typing import Any

import pytest
import torch

from rltrainer.functional import losses
from rltrainer.functional.losses import clipped_surrogate, explained_variance, project, quantile_huber, weighted_mean


def test_weighted_mean_by_hand() -> None:
    # (1 * 1 + 2 * 3) / 4 = 1.75
    assert weighted_mean(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])).item() == 1.75
    x = torch.tensor([[1.0, 3.0, 99.0], [5.0, 7.0, 99.0]], requires_grad=True)
    means = weighted_mean(x, torch.tensor([1.0, 1.0, 0.0]))
    assert means.tolist() == [2.0, 6.0]
    (gradient,) = torch.autograd.grad(means.sum(), x)
    assert gradient.tolist() == [[0.5, 0.5, 0.0]] * 2, "padding has no gradient"


def test_standardize_is_torchs_mean_and_std_without_padding() -> None:
    x = torch.tensor([1.0, 2.0, 6.0])
    expected = (x - x.mean()) / (x.std() + 1e-8)
    torch.testing.assert_close(losses.standardize(x, torch.ones(3)), expected)
    padded = losses.standardize(torch.cat([x, torch.tensor([100.0, -7.0])]), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))
    torch.testing.assert_close(padded[:3], expected)
    for without_spread in ([3.0], [3.0, 3.0]):
        zeros = [0.0] * len(without_spread)
        assert losses.standardize(torch.tensor(without_spread), torch.ones(len(zeros))).tolist() == zeros


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient"), [
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
])  # fmt: skip
def test_clipped_surrogate_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    result = clipped_surrogate(log_ratio, torch.tensor([advantage]), 0.2)
    result.sum().backward()
    assert result.item() == pytest.approx(loss)
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(gradient)


def test_huber_by_hand() -> None:
    error = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 2.0], requires_grad=True)
    loss = losses.huber(error)
    loss.sum().backward()
    # e^2 / 2 within 1, |e| - 1/2 outside; the gradient is the error clipped to [-1, 1].
    assert loss.tolist() == [2.5, 0.5, 0.125, 0.0, 0.125, 1.5]
    assert error.grad is not None
    assert error.grad.tolist() == [-1.0, -1.0, -0.5, 0.0, 0.5, 1.0]


def test_expectile_by_hand() -> None:
    error = torch.tensor([2.0, -2.0, 0.0], requires_grad=True)
    loss = losses.expectile(error, 0.7)
    loss.sum().backward()
    # 0.7 * 4, 0.3 * 4, 0; gradients 2 * 0.7 * 2, 2 * 0.3 * -2, 0
    assert loss.tolist() == pytest.approx([2.8, 1.2, 0.0])
    assert error.grad is not None
    assert error.grad.tolist() == pytest.approx([2.8, -1.2, 0.0])


def test_explained_variance_by_hand() -> None:
    target, weight = torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    # Errors 0, 0, 1.5: their variance is 0.5, that of the target 2 / 3.
    prediction = torch.tensor([1.0, 2.0, 1.5, -99.0])
    assert explained_variance(prediction, target, weight).item() == pytest.approx(0.25)
    assert explained_variance(target + 5, target, weight).item() == pytest.approx(1.0)
    assert explained_variance(torch.zeros(4), target, weight).item() == 0.0
    assert explained_variance(-target, target, weight).item() == pytest.approx(-3.0)
    assert explained_variance(torch.randn(3), torch.ones(3), torch.ones(3)).item() == 0.0, "no variance"


# Distributions of returns

SUPPORT = torch.arange(-2.0, 3.0)
PROBABILITY = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])


@pytest.mark.parametrize(("reward", "discount", "expected"), [
    # Atoms move to -1.3, -0.4, 0.5, 1.4, 2.3 (clipped to 2). -1 gets 0.7 * 0.1 + 0.4 * 0.2 = 0.15, and so on.
    (0.5, 0.9, [0.03, 0.15, 0.32, 0.32, 0.18]),
    (0.0, 1.0, [0.1, 0.2, 0.4, 0.2, 0.1]),  # each atom lands on itself
    (1.0, 1.0, [0.0, 0.1, 0.2, 0.4, 0.3]),  # each on the next, the last is clipped
    (1.0, 0.0, [0.0, 0.0, 0.0, 1.0, 0.0]),  # terminal: the reward alone
    (5.0, 0.9, [0.0, 0.0, 0.0, 0.0, 1.0]),  # all beyond the support
    (-5.0, 0.9, [1.0, 0.0, 0.0, 0.0, 0.0]),
])  # fmt: skip
def test_projection_by_hand(reward: float, discount: float, expected: list[float]) -> None:
    moved = project(SUPPORT, PROBABILITY.unsqueeze(0), torch.tensor([reward]), torch.tensor([discount]))
    assert moved[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_projection_keeps_mass_and_mean_within_the_support() -> None:
    support = torch.linspace(-10.0, 10.0, 51)
    probability = torch.randn(64, 51, generator=torch.Generator().manual_seed(0)).softmax(1)
    reward = torch.linspace(-1.0, 1.0, 64)
    moved = project(support, probability, reward, torch.full((64,), 0.9))
    torch.testing.assert_close(moved.sum(1), torch.ones(64))
    torch.testing.assert_close(project(support, probability[7:8], reward[7:8], torch.full((1,), 0.9))[0], moved[7])
    torch.testing.assert_close(moved @ support, reward + 0.9 * (probability @ support), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("current", "tau", "target", "kappa", "loss"), [
    # Errors [[.5, 2], [-.5, 1]]: huber [[.125, 1.5], [.125, .5]], weights [[.25, .25], [.25, .75]]:
    # [[.03125, .375], [.03125, .375]]. The mean over targets is .203125 twice; summed over quantiles .40625.
    ([0.0, 1.0], [0.25, 0.75], [0.5, 2.0], 1.0, 0.40625),
    # Errors [[1, 2], [0, 1], [-2, -1]]: huber [[.5, 1.5], [0, .5], [1.5, .5]], weights .1; .5; .1:
    # means over targets .1, .125, .1. Summing over targets and averaging over quantiles would give .2167.
    ([-1.0, 0.0, 2.0], [0.1, 0.5, 0.9], [0.0, 1.0], 1.0, 0.325),
    # .5 * kappa * (3 - kappa / 2) / kappa = .5 * 2 for kappa = 2; .5 * 4.5 / 3 for kappa = 3
    ([0.0], [0.5], [3.0], 2.0, 1.0),
    ([0.0], [0.5], [3.0], 3.0, 0.75),
])  # fmt: skip
def test_quantile_huber_by_hand(current: Any, tau: Any, target: list[float], kappa: float, loss: float) -> None:
    found = quantile_huber(torch.tensor(current), torch.tensor(tau), torch.tensor(target), kappa)
    assert found.item() == pytest.approx(loss)


def test_quantile_huber_is_per_distribution_and_has_a_gradient_for_each_quantile() -> None:
    current = torch.tensor([[[0.0, 1.0], [5.0, 5.0]]], requires_grad=True)  # [E, B, N]
    target = torch.tensor([[0.5, 2.0], [5.0, 5.0]])
    loss = quantile_huber(current, torch.tensor([0.25, 0.75]), target)
    assert loss.tolist() == [[pytest.approx(0.40625), 0.0]]
    loss.sum().backward()
    assert current.grad is not None
    # -mean over targets of weight * clip(error, -1, 1): -(.25 * .5 + .25 * 1) / 2, -(.25 * -.5 + .75 * 1) / 2
    assert current.grad[0, 0].tolist() == pytest.approx([-0.1875, -0.3125])


def test_midpoints_of_equal_shares() -> None:
    assert losses.midpoints(torch.zeros(3, 4)).tolist() == [0.125, 0.375, 0.625, 0.875]
