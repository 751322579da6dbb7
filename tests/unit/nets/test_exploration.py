"""Exploration added to a greedy action: its extremes, its schedule, its bounds, its errors."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.errors import ParamsError, SpaceError
from rltrainer.nets import EpsilonGreedy, Exploration, GaussianNoise, OrnsteinUhlenbeckNoise
from rltrainer.schedules import LinearSchedule

DISCRETE = spaces.Discrete(4, start=10)
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32))
GREEDY = torch.full((4000,), 12)
MIDDLE = torch.tensor([0.0, 5.0]).expand(4000, 2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_epsilon_zero_keeps_every_action() -> None:
    assert torch.equal(EpsilonGreedy(0.0)(GREEDY, DISCRETE, 0.0, generator()), GREEDY)


def test_epsilon_one_draws_every_choice_evenly() -> None:
    action = EpsilonGreedy(1.0)(GREEDY, DISCRETE, 0.0, generator())
    assert action.dtype == GREEDY.dtype
    counts = (action - 10).bincount(minlength=4)
    # Four standard deviations of 4000 draws at 1/4: 4 * sqrt(4000 * 3 / 16) = 110.
    assert counts.sum() == 4000
    assert (counts - 1000).abs().max() < 110


def test_epsilon_is_the_share_of_random_actions() -> None:
    action = EpsilonGreedy(0.4)(GREEDY, DISCRETE, 0.0, generator())
    # A quarter of the random choices is the greedy one: 0.4 * 3 / 4 = 0.3 differ.
    assert (action != GREEDY).float().mean().item() == pytest.approx(0.3, abs=0.03)


def test_epsilon_follows_its_schedule() -> None:
    exploration = EpsilonGreedy(LinearSchedule(1.0, 0.0))
    differing = [
        (exploration(GREEDY, DISCRETE, progress, generator()) != GREEDY).float().mean().item()
        for progress in (0.0, 0.5, 1.0)
    ]
    assert differing == pytest.approx([0.75, 0.375, 0.0], abs=0.03)
    assert differing[2] == 0.0


def test_noise_is_a_share_of_half_the_range() -> None:
    action = GaussianNoise(0.1)(MIDDLE, BOX, 0.0, generator())
    torch.testing.assert_close(action.mean(0), torch.tensor([0.0, 5.0]), atol=0.05, rtol=0)
    # Half the ranges are 1 and 5.
    torch.testing.assert_close(action.std(0), torch.tensor([0.1, 0.5]), atol=0, rtol=0.05)


def test_noise_stays_within_the_bounds() -> None:
    action = GaussianNoise(5.0)(MIDDLE, BOX, 0.0, generator())
    assert action.amin(0).tolist() == [-1.0, 0.0]
    assert action.amax(0).tolist() == [1.0, 10.0]


def test_noise_zero_keeps_every_action() -> None:
    assert torch.equal(GaussianNoise(0.0)(MIDDLE, BOX, 0.0, generator()), MIDDLE)


def test_noise_follows_its_schedule() -> None:
    exploration = GaussianNoise(LinearSchedule(0.2, 0.0))
    spread = [exploration(MIDDLE, BOX, progress, generator())[:, 0].std().item() for progress in (0.0, 0.5, 1.0)]
    assert spread == pytest.approx([0.2, 0.1, 0.0], rel=0.05)


@pytest.mark.parametrize(
    ("exploration", "action", "space"),
    [(EpsilonGreedy(0.5), GREEDY, DISCRETE), (GaussianNoise(), MIDDLE, BOX), (OrnsteinUhlenbeckNoise(), MIDDLE, BOX)],
)
def test_all_randomness_is_the_generators(
    exploration: Exploration, action: torch.Tensor, space: gym.Space[Any]
) -> None:
    before = torch.get_rng_state()
    first = exploration(action, space, 0.0, generator(1))
    assert torch.equal(exploration(action, space, 0.0, generator(1)), first)
    assert not torch.equal(exploration(action, space, 0.0, generator(2)), first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("space", [BOX, spaces.MultiDiscrete([2, 2])])
def test_epsilon_greedy_needs_a_discrete_space(space: gym.Space[Any]) -> None:
    text = (
        f"EpsilonGreedy.action_space: must be Discrete; got {space!r} ({type(space).__name__}). "
        "Explore continuous actions with GaussianNoise."
    )
    with pytest.raises(SpaceError, match=f"^{re.escape(text)}$"):
        EpsilonGreedy()(GREEDY, space, 0.0, None)


@pytest.mark.parametrize("space", [DISCRETE, spaces.Box(-np.inf, 1.0, (2,))])
def test_gaussian_noise_needs_bounds(space: gym.Space[Any]) -> None:
    text = (
        f"GaussianNoise.action_space: must be a bounded Box; got {space!r} ({type(space).__name__}). "
        "The noise is a share of the bounds; for discrete actions there is EpsilonGreedy."
    )
    with pytest.raises(SpaceError, match=f"^{re.escape(text)}$"):
        GaussianNoise()(MIDDLE, space, 0.0, None)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), True, "0.1", None, [0.1]])
def test_epsilon_is_a_probability(value: Any) -> None:
    text = (
        "EpsilonGreedy.epsilon: must be a number in [0, 1] or a callable of progress in [0, 1]; "
        f"got {value!r} ({type(value).__name__})" + ". Write 0.1 without quotes." * (value == "0.1")
    )
    with pytest.raises(ParamsError, match=f"^{re.escape(text)}$"):
        EpsilonGreedy(value)


@pytest.mark.parametrize("value", [-0.1, float("inf"), float("nan"), True, "0.1", None, [0.1]])
def test_std_is_not_negative(value: Any) -> None:
    text = (
        "GaussianNoise.std: must be a non-negative finite number or a callable of progress in [0, 1]; "
        f"got {value!r} ({type(value).__name__})" + ". Write 0.1 without quotes." * (value == "0.1")
    )
    with pytest.raises(ParamsError, match=f"^{re.escape(text)}$"):
        GaussianNoise(value)


def test_no_actions_stay_none() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert EpsilonGreedy(0.5)(none, DISCRETE, 0.0, generator()).shape == (0,)


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


def test_noise_that_drifts_without_growth_dies_away() -> None:
    noise, state = OrnsteinUhlenbeckNoise(0.0), torch.ones(1, 2)
    for _ in range(2):
        _, state = noise.step(torch.zeros(1, 2), state, BOX, 0.0, generator())
    assert state.tolist() == [pytest.approx([(1 - 0.15 * 0.01) ** 2] * 2)]


def test_noise_that_drifts_spreads_to_its_limit() -> None:
    # At dt = .01 the limit is std / sqrt(2 theta), to 1 in 1,000: .3 / sqrt(2 * .5) = .3.
    noise, g = OrnsteinUhlenbeckNoise(0.3, theta=0.5), generator()
    state = noise.initial_state(4000, BOX)
    assert state.shape == (4000, 2)
    spread = []
    for _ in range(1000):
        action, state = noise.step(MIDDLE, state, BOX, 0.0, g)
        spread.append(state.std().item())
    assert spread[0] == pytest.approx(0.3 * 0.1, rel=0.05)  # std sqrt(dt)
    assert spread[-1] == pytest.approx(0.3, rel=0.05)
    assert (action >= torch.tensor(BOX.low)).all()


def test_noise_that_drifts_starts_from_zero_and_follows_its_schedule() -> None:
    noise = OrnsteinUhlenbeckNoise(LinearSchedule(0.2, 0.0), dt=1.0)
    spread = [noise(MIDDLE, BOX, progress, generator())[:, 0].std().item() for progress in (0.0, 0.5, 1.0)]
    assert spread == pytest.approx([0.2, 0.1, 0.0], rel=0.05)
    assert noise.settings(0.5) == {"exploration_noise": pytest.approx(0.1)}


def test_noise_that_drifts_needs_bounds() -> None:
    with pytest.raises(SpaceError, match="^OrnsteinUhlenbeckNoise.action_space: must be a bounded Box; got"):
        OrnsteinUhlenbeckNoise()(MIDDLE, spaces.Box(-np.inf, 1.0, (2,)), 0.0, None)


@pytest.mark.parametrize(("field", "value"), [("std", -1.0), ("theta", -0.1), ("dt", 0.0)])
def test_numbers_of_noise_that_drifts(field: str, value: float) -> None:
    with pytest.raises(ParamsError, match=rf"^OrnsteinUhlenbeckNoise.{field}: must be a (positive|non-negative)"):
        OrnsteinUhlenbeckNoise(**{field: value})
