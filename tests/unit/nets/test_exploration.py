"""Exploration added to a greedy action: its extremes, its schedule, its bounds, its errors."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.nets import EpsilonGreedy, Exploration, GaussianNoise, OrnsteinUhlenbeckNoise
from rltrainer.schedules import LinearSchedule
from tests.batches import generator

DISCRETE = spaces.Discrete(4, start=10)
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
GREEDY = torch.full((4000,), 12)
MIDDLE = torch.tensor([0.0, 5.0]).expand(4000, 2)


def test_epsilon_one_draws_every_choice_evenly() -> None:
    action = EpsilonGreedy(1.0)(GREEDY, DISCRETE, 0.0, generator())
    assert action.dtype == GREEDY.dtype
    counts = (action - 10).bincount(minlength=4)
    # Four standard deviations of 4000 draws at 1/4: 4 * sqrt(4000 * 3 / 16) = 110.
    assert counts.sum() == 4000
    assert (counts - 1000).abs().max() < 110
    assert EpsilonGreedy(0.5)(GREEDY[:0], DISCRETE, 0.0, generator()).shape == (0,)


def test_epsilon_is_the_share_of_random_actions_and_follows_its_schedule() -> None:
    exploration = EpsilonGreedy(LinearSchedule(1.0, 0.0))
    differing = [
        (exploration(GREEDY, DISCRETE, progress, generator()) != GREEDY).float().mean().item()
        for progress in (0.0, 0.5, 1.0)
    ]
    # A quarter of the random choices is the greedy one.
    assert differing == pytest.approx([0.75, 0.375, 0.0], abs=0.03)
    assert differing[2] == 0.0


def test_noise_is_a_share_of_half_the_range() -> None:
    action = GaussianNoise(0.1)(MIDDLE, BOX, 0.0, generator())
    torch.testing.assert_close(action.mean(0), torch.tensor([0.0, 5.0]), atol=0.05, rtol=0)
    # Half the ranges are 1 and 5.
    torch.testing.assert_close(action.std(0), torch.tensor([0.1, 0.5]), atol=0, rtol=0.05)
    assert torch.equal(GaussianNoise(0.0)(MIDDLE, BOX, 0.0, generator()), MIDDLE)
    action = GaussianNoise(5.0)(MIDDLE, BOX, 0.0, generator())
    assert action.amin(0).tolist() == [-1.0, 0.0]
    assert action.amax(0).tolist() == [1.0, 10.0]


@pytest.mark.parametrize("make", [GaussianNoise, lambda std: OrnsteinUhlenbeckNoise(std, dt=1.0)])
def test_noise_follows_its_schedule(make: Any) -> None:
    exploration = make(LinearSchedule(0.2, 0.0))  # noise that drifts starts from zero
    spread = [exploration(MIDDLE, BOX, progress, generator())[:, 0].std().item() for progress in (0.0, 0.5, 1.0)]
    assert spread == pytest.approx([0.2, 0.1, 0.0], rel=0.05)
    assert exploration.settings(0.5) == {"exploration_noise": pytest.approx(0.1)}


@pytest.mark.parametrize(
    ("exploration", "action", "space"),
    [(EpsilonGreedy(0.5), GREEDY, DISCRETE), (GaussianNoise(), MIDDLE, BOX), (OrnsteinUhlenbeckNoise(), MIDDLE, BOX)],
)
def test_all_randomness_is_the_generators(exploration: Exploration, action: torch.Tensor, space: Any) -> None:
    before = torch.get_rng_state()
    first = exploration(action, space, 0.0, generator(1))
    assert torch.equal(exploration(action, space, 0.0, generator(1)), first)
    assert not torch.equal(exploration(action, space, 0.0, generator(2)), first)
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_follows_the_bounds_of_each_space() -> None:
    noise, wide = GaussianNoise(0.5), spaces.Box(-100.0, 100.0, (2,), np.float32)
    for _ in range(2):
        assert noise(MIDDLE, BOX, 0.0, generator())[:, 0].abs().max() <= 1.0
        assert noise(MIDDLE, wide, 0.0, generator())[:, 0].abs().max() > 50.0


def test_noise_that_drifts_follows_its_equation() -> None:
    # dt = 1, as in the paper: x' = .75 x + .5 N, in shares of half the ranges 1 and 5.
    noise = OrnsteinUhlenbeckNoise(0.5, theta=0.25, dt=1.0)
    action, state = torch.tensor([[0.0, 5.0]]), torch.tensor([[0.4, -0.8]])
    new, after = noise.step(action, state, BOX, 0.0, generator())
    expected = 0.75 * state + 0.5 * torch.empty(1, 2).normal_(generator=generator())
    torch.testing.assert_close(after, expected)
    assert state.tolist() == [pytest.approx([0.4, -0.8])], "the memory before is left alone"
    torch.testing.assert_close(
        new, (action + expected * torch.tensor([1.0, 5.0])).clamp(torch.tensor(BOX.low), torch.tensor(BOX.high))
    )
