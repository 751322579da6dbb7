"""Running statistics against numpy's over all batches at once."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.nets.normalizer import ObsNormalizer, RewardScaler, RunningMoments
from rltrainer.ranks.ranks import Ranks
from rltrainer.types import Rollout
from tests.fakes import run_in_threads

BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)


def batches(*sizes: int) -> list[Tensor]:
    """Batches of samples [M, 3] with mean (5, 0, -100) and spread (2, 0.1, 30)."""
    generator = torch.Generator().manual_seed(0)
    spread, mean = torch.tensor([2.0, 0.1, 30.0]), torch.tensor([5.0, 0.0, -100.0])
    return [torch.randn(size, 3, generator=generator) * spread + mean for size in sizes]


def yes(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def no(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.bool)


@pytest.mark.parametrize("sizes", [(50,), (1, 1, 1), (7, 1, 40, 2)])
def test_moments_are_numpys_over_all_batches(sizes: tuple[int, ...]) -> None:
    moments = RunningMoments((3,))
    for batch in batches(*sizes):
        moments.update(batch)
    everything = torch.cat(batches(*sizes)).double().numpy()
    np.testing.assert_allclose(moments.mean.numpy(), everything.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(moments.var.numpy(), everything.var(0), rtol=1e-4, atol=1e-6)
    assert moments.count.item() == len(everything)


def test_moments_change_in_place_until_a_reset() -> None:
    moments = RunningMoments((3,))
    before = moments.mean, moments.var, moments.count
    moments.update(batches(9)[0])
    moments.reset()
    moments.update(torch.zeros(0, 3))  # an empty batch changes nothing
    assert (moments.mean.tolist(), moments.var.tolist(), moments.count.item()) == ([0.0] * 3, [1.0] * 3, 0)
    assert all(a is b for a, b in zip(before, (moments.mean, moments.var, moments.count), strict=True))


def test_observations_are_standardised_and_clipped_to_ten() -> None:
    normalizer, (batch,) = ObsNormalizer(BOX), batches(1000)
    torch.testing.assert_close(normalizer(batch[:1] / 100), batch[:1] / 100)  # before the first update
    normalizer.update(batch)
    before = copy.deepcopy(normalizer.state_dict())
    result = normalizer(batch)
    torch.testing.assert_close(result.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(result.std(0, unbiased=False), torch.ones(3), atol=1e-4, rtol=0)
    assert normalizer(torch.tensor([[1e6, 0.0, -1e6]]))[0, [0, 2]].tolist() == [10.0, -10.0]
    assert all(torch.equal(value, before[name]) for name, value in normalizer.state_dict().items())


MIXED = spaces.Dict(
    {
        "cam": spaces.Box(0, 255, (2, 2), np.uint8),
        "choice": spaces.Discrete(3),
        "pair": spaces.Tuple((BOX, spaces.MultiBinary(2))),
    }
)


def mixed(size: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "cam": torch.randint(0, 256, (size, 2, 2), generator=generator, dtype=torch.uint8),
        "choice": torch.randint(0, 3, (size,), generator=generator),
        "pair": (
            3 + 2 * torch.randn(size, 3, generator=generator),
            torch.randint(0, 2, (size, 2), generator=generator, dtype=torch.int8),
        ),
    }


def test_only_float_boxes_of_a_tree_are_touched() -> None:
    normalizer = ObsNormalizer(MIXED)
    obs = mixed(500, seed=1)
    normalizer.update(obs)
    result = normalizer(obs)
    assert result["cam"] is obs["cam"]
    assert result["choice"] is obs["choice"]
    assert result["pair"][1] is obs["pair"][1]
    assert result["pair"][0].mean().abs() < 1e-4
    assert len(normalizer.moments) == 1


def test_keys_in_another_order_meet_their_own_statistics() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (1,)), "b": spaces.Box(-1, 1, (1,))})
    normalizer = ObsNormalizer(space)
    a, b = torch.tensor([[0.0], [2.0]]), torch.tensor([[100.0], [104.0]])
    normalizer.update({"b": b, "a": a})
    assert normalizer.moments["0"].mean.item() == 1.0
    result = normalizer({"b": b, "a": a})
    torch.testing.assert_close(result["a"], torch.tensor([[-1.0], [1.0]]))
    torch.testing.assert_close(result["b"], torch.tensor([[-1.0], [1.0]]))


def rewards(reward: Tensor, done: Tensor, valid: Tensor, starts: Tensor | None = None) -> Rollout:
    """A rollout [T, N] of which only the rewards matter; by default it continues the one before."""
    obs = torch.zeros(*reward.shape, 1)
    ended = done.flatten().nonzero().squeeze(1)
    final_obs, starts = obs.flatten(0, 1)[ended], no(1, reward.shape[1])[0] if starts is None else starts
    return Rollout(
        obs=obs, action=reward, reward=reward, terminated=done, truncated=no(*done.shape), valid=valid,
        last_obs=obs[-1], final_obs=final_obs, final_index=ended, starts=starts,
    )  # fmt: skip


def returns_of(normalizer: RewardScaler) -> list[float]:
    assert normalizer.running_return is not None
    return normalizer.running_return.tolist()


def test_rewards_are_divided_by_the_spread_of_the_discounted_return() -> None:
    normalizer = RewardScaler()
    reward = torch.tensor([[1.0], [2.0], [3.0]])
    assert normalizer(torch.tensor([2.0, 50.0, -50.0])).tolist() == [2.0, 10.0, -10.0]  # before the first update
    normalizer.update(rewards(reward, no(3, 1), yes(3, 1)), gamma=0.5)
    # R = 1, 2.5, 4.25; the mean of the rewards stays.
    torch.testing.assert_close(normalizer(reward), reward / float(np.std([1.0, 2.5, 4.25])))


@pytest.mark.parametrize(("limit", "divisor"), [(5.0, 0.7126), (1.0, 2.71)])
def test_a_limit_bounds_scaled_returns_and_clips_nothing(limit: float, divisor: float) -> None:
    normalizer = RewardScaler(limit)
    done = torch.tensor([[False], [False], [True], [False]])
    normalizer.update(rewards(torch.ones(4, 1), done, yes(4, 1)), gamma=0.9)
    # Returns 1, 1.9, 2.71, and 1 of the next episode: their standard deviation is 0.7126, the largest is 2.71.
    assert normalizer(torch.tensor([100.0])).tolist() == pytest.approx([100 / divisor], rel=1e-3)
    normalizer.update(rewards(-torch.ones(1, 1), no(1, 1), yes(1, 1)), gamma=0.9)
    assert float(normalizer.largest) == pytest.approx(2.71)  # kept, and of either sign


def test_the_largest_return_is_that_of_all_ranks() -> None:
    def on_rank(ranks: Ranks) -> float:
        normalizer = RewardScaler(1.0)
        normalizer.update(rewards(torch.full((1, 1), 1.0 + ranks.rank), yes(1, 1), yes(1, 1)), 0.9, ranks)
        return float(normalizer.largest)

    assert run_in_threads([on_rank, on_rank]) == [2.0, 2.0]


def test_returns_continue_from_rollout_to_rollout() -> None:
    normalizer = RewardScaler()
    normalizer.update(
        rewards(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([[False, False], [False, True]]), yes(2, 2)), 0.5
    )
    assert returns_of(normalizer) == [2.5, 0.0]
    normalizer.update(rewards(torch.tensor([[4.0, 4.0]]), no(1, 2), yes(1, 2)), 0.5)
    # env 0: 1, 2.5, 5.25; env 1: 1, 2.5 (done), 4
    values = [1.0, 2.5, 5.25, 1.0, 2.5, 4.0]
    assert normalizer.moments.mean.item() == pytest.approx(np.mean(values))
    assert normalizer.moments.var.item() == pytest.approx(np.var(values))


def test_steps_that_are_not_valid_neither_count_nor_continue() -> None:
    normalizer = RewardScaler()
    reward = torch.tensor([[1.0], [2.0], [1000.0]])
    done = torch.tensor([[False], [True], [False]])
    normalizer.update(rewards(reward, done, torch.tensor([[True], [True], [False]])), 0.5)
    assert normalizer.moments.count.item() == 2
    assert normalizer.moments.mean.item() == 1.75  # of 1 and 2.5
    assert returns_of(normalizer) == [0.0]


def test_returns_run_on_in_envs_that_take_fewer_steps_than_others() -> None:
    """Env 0 takes three steps; env 1 one, env 2 none, env 3 one that ends its episode: the rest is nothing."""
    normalizer = RewardScaler()
    normalizer.update(rewards(torch.ones(1, 4), no(1, 4), yes(1, 4)), 0.5)
    reward = torch.tensor([[1.0, 1.0, 0.0, 1.0], [2.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]])
    valid = torch.tensor([[True, True, False, True], [True, False, False, False], [True, False, False, False]])
    done = no(3, 4)
    done[0, 3] = True
    normalizer.update(rewards(reward, done, valid), 0.5)
    # 1, 1.5, 2.75, 5.375; 1, 1.5; 1; 1, 1.5 and over
    assert returns_of(normalizer) == [5.375, 1.5, 1.0, 0.0]
    assert normalizer.moments.count.item() == 4 + 5


def test_returns_start_again_with_new_episodes_or_another_number_of_envs() -> None:
    normalizer = RewardScaler()
    normalizer.update(rewards(torch.tensor([[8.0, 8.0]]), no(1, 2), yes(1, 2)), 0.5)
    starts = torch.tensor([True, False])
    normalizer.update(rewards(torch.tensor([[1.0, 1.0]]), no(1, 2), yes(1, 2), starts), 0.5)
    assert returns_of(normalizer) == [1.0, 5.0]
    normalizer.update(rewards(torch.ones(1, 3), no(1, 3), yes(1, 3)), 0.5)
    assert returns_of(normalizer) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("num_updates", [0, 2])
def test_reward_normalizer_state_round_trip_carries_the_running_return(num_updates: int) -> None:
    normalizer, restored = RewardScaler(), RewardScaler()
    restored.update(rewards(torch.ones(1, 2), no(1, 2), yes(1, 2)), 0.5)
    for i in range(num_updates):
        normalizer.update(rewards(torch.full((3, 2), float(i + 1)), no(3, 2), yes(3, 2)), 0.9)
    restored.load_state_dict(normalizer.state_dict())
    for each in (normalizer, restored):  # which share nothing
        each.update(rewards(torch.tensor([[5.0, 6.0]]), no(1, 2), yes(1, 2)), 0.9)
    assert torch.equal(restored.moments.mean, normalizer.moments.mean)
    assert torch.equal(restored.moments.var, normalizer.moments.var)


def test_boxes_of_integers_that_are_left_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    image, ram = spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Box(0, 77, (128,), np.uint8)
    parts = spaces.Tuple((ram, spaces.MultiBinary(2)))
    mask, choice = spaces.Box(0, 1, (3,), np.int8), spaces.Discrete(3)
    space = spaces.Dict(action_mask=mask, choice=choice, image=image, numbers=BOX, parts=parts)
    for _ in range(2):
        assert len(ObsNormalizer(space).moments) == 1
    assert caplog.messages == [
        'normalize_obs: obs["parts"][0], Box(0, 77, (128,), uint8), is left as it is, as only Boxes of floats are '
        "standardised. Cast it in a wrapper."
    ]
