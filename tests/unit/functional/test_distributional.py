"""Distributions of returns, by hand."""

import pytest
import torch

from rltrainer.functional.losses import midpoints, project, quantile_huber

SUPPORT = torch.arange(-2.0, 3.0)
PROBABILITY = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        # Atoms move to -1.3, -0.4, 0.5, 1.4, 2.3 (clipped to 2). -1 gets 0.7 * 0.1 + 0.4 * 0.2 = 0.15, and so on.
        (0.5, 0.9, [0.03, 0.15, 0.32, 0.32, 0.18]),
        (0.0, 1.0, [0.1, 0.2, 0.4, 0.2, 0.1]),  # each atom lands on itself
        (1.0, 1.0, [0.0, 0.1, 0.2, 0.4, 0.3]),  # each on the next, the last is clipped
        (1.0, 0.0, [0.0, 0.0, 0.0, 1.0, 0.0]),  # terminal: the reward alone
        (5.0, 0.9, [0.0, 0.0, 0.0, 0.0, 1.0]),  # all beyond the support
        (-5.0, 0.9, [1.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_projection_by_hand(reward: float, discount: float, expected: list[float]) -> None:
    moved = project(SUPPORT, PROBABILITY.unsqueeze(0), torch.tensor([reward]), torch.tensor([discount]))
    assert moved[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_projection_keeps_mass_and_mean_within_the_support() -> None:
    support = torch.linspace(-10.0, 10.0, 51)
    probability = torch.randn(64, 51, generator=torch.Generator().manual_seed(0)).softmax(1)
    reward = torch.linspace(-1.0, 1.0, 64)
    moved = project(support, probability, reward, torch.full((64,), 0.9))
    torch.testing.assert_close(moved.sum(1), torch.ones(64))
    torch.testing.assert_close(moved @ support, reward + 0.9 * (probability @ support), rtol=1e-4, atol=1e-4)


def test_projection_of_each_row_of_a_batch_is_its_own() -> None:
    probability = torch.stack([PROBABILITY, PROBABILITY.roll(1)])
    reward, discount = torch.tensor([0.5, 1.0]), torch.tensor([0.9, 0.0])
    together = project(SUPPORT, probability, reward, discount)
    for row in range(2):
        alone = project(SUPPORT, probability[row : row + 1], reward[row : row + 1], discount[row : row + 1])
        torch.testing.assert_close(together[row], alone[0])


def test_quantile_huber_by_hand() -> None:
    current, tau, target = torch.tensor([0.0, 1.0]), torch.tensor([0.25, 0.75]), torch.tensor([0.5, 2.0])
    # Errors [[.5, 2], [-.5, 1]]: huber [[.125, 1.5], [.125, .5]], weights [[.25, .25], [.25, .75]]:
    # [[.03125, .375], [.03125, .375]]. The mean over targets is .203125 twice; summed over quantiles .40625.
    assert quantile_huber(current, tau, target).item() == pytest.approx(0.40625)


def test_more_quantiles_than_targets_are_summed_over_the_quantiles() -> None:
    current, tau, target = torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([0.1, 0.5, 0.9]), torch.tensor([0.0, 1.0])
    # Errors [[1, 2], [0, 1], [-2, -1]]: huber [[.5, 1.5], [0, .5], [1.5, .5]], weights .1; .5; .1:
    # means over targets .1, .125, .1. Summing over targets and averaging over quantiles would give .2167.
    assert quantile_huber(current, tau, target).item() == pytest.approx(0.325)


def test_kappa_is_the_width_of_the_parabola() -> None:
    current, tau, target = torch.tensor([0.0]), torch.tensor([0.5]), torch.tensor([3.0])
    # .5 * kappa * (3 - kappa / 2) / kappa = .5 * 2 for kappa = 2; .5 * 4.5 / 3 for kappa = 3
    assert quantile_huber(current, tau, target, kappa=2.0).item() == pytest.approx(1.0)
    assert quantile_huber(current, tau, target, kappa=3.0).item() == pytest.approx(0.75)


def test_quantile_huber_is_per_distribution_and_has_a_gradient_for_each_quantile() -> None:
    current = torch.tensor([[[0.0, 1.0], [5.0, 5.0]]], requires_grad=True)  # [E, B, N]
    target = torch.tensor([[0.5, 2.0], [5.0, 5.0]])
    loss = quantile_huber(current, torch.tensor([0.25, 0.75]), target)
    assert loss.tolist() == [[pytest.approx(0.40625), 0.0]]
    loss.sum().backward()
    assert current.grad is not None
    # -mean over targets of weight * clip(error, -1, 1): -(.25 * .5 + .25 * 1) / 2, -(.25 * -.5 + .75 * 1) / 2
    assert current.grad[0, 0].tolist() == pytest.approx([-0.1875, -0.3125])


def test_quantiles_of_a_sample_are_where_the_loss_is_least() -> None:
    target = torch.linspace(0.0, 1.0, 1001)
    current = torch.tensor([0.5, 0.5], requires_grad=True)
    optimizer = torch.optim.SGD([current], lr=0.1)
    for _ in range(300):
        optimizer.zero_grad()
        quantile_huber(current, torch.tensor([0.25, 0.75]), target, kappa=0.01).backward()
        optimizer.step()
    assert current.tolist() == pytest.approx([0.25, 0.75], abs=0.02)


def test_midpoints_of_equal_shares() -> None:
    assert midpoints(torch.zeros(3, 4)).tolist() == [0.125, 0.375, 0.625, 0.875]
