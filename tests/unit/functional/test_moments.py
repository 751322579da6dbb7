"""Moments of a sample, pooled from those of its parts, against NumPy on the whole of it."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rltrainer.functional.losses import standardize
from rltrainer.functional.moments import moments, pooled, standardized
from rltrainer.nets.normalizer import ObsNormalizer, RunningMoments
from rltrainer.ranks.ranks import Ranks
from tests.fakes import run_in_threads

SIZES = [0, 1, 1000]
PARTS = [torch.randn(size, 3, generator=torch.Generator().manual_seed(size)) * 5 + 100 for size in SIZES]
WHOLE = torch.cat(PARTS).double().numpy()


def test_worked_by_hand() -> None:
    x, weight = torch.tensor([1.0, 3.0, 7.0]), torch.tensor([1.0, 1.0, 0.0])
    assert moments(x, weight).tolist() == [2.0, 2.0, 2.0]
    one, other = torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1.0, 5.0, 0.0])
    assert pooled(torch.stack([one, other])).tolist() == [3.0, 3.0, 8.0]  # of 1, 3 and 5
    assert standardized(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([3.0, 3.0, 8.0])).tolist() == [-1.0, 0.0, 1.0]


def test_nothing_and_one_number() -> None:
    nothing = moments(torch.zeros(2), torch.zeros(2))
    assert nothing.tolist() == pooled(torch.stack([nothing, nothing])).tolist() == [0.0, 0.0, 0.0]
    one = moments(torch.tensor([3.0]), torch.ones(1))
    assert pooled(torch.stack([nothing, one])).tolist() == [1.0, 3.0, 0.0]
    assert standardized(torch.tensor([3.0]), one).tolist() == [0.0]


def test_parts_of_any_size_pool_to_the_whole() -> None:
    parts = [moments(part.T, torch.ones(len(part))) for part in PARTS]
    count, mean, deviations = pooled(torch.stack(parts)).numpy()
    assert count.tolist() == [1001.0] * 3
    np.testing.assert_allclose(mean, WHOLE.mean(0), rtol=1e-14)
    np.testing.assert_allclose(deviations, WHOLE.var(0) * 1001, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standardized_by_pooled_moments_as_all_at_once(dtype: torch.dtype) -> None:
    x, weight = torch.randn(40, dtype=dtype) + 3, (torch.rand(40) < 0.7).to(dtype)
    halves = [moments(*part) for part in zip(x.split(20), weight.split(20), strict=True)]
    found = standardized(x, pooled(torch.stack(halves)))
    assert found.dtype is dtype
    torch.testing.assert_close(found, standardize(x, weight))


def test_running_moments_of_ranks_are_those_of_all_samples() -> None:
    def updated(ranks: Ranks) -> RunningMoments:
        running = RunningMoments((3,))
        for shift in (0.0, 7.0):
            running.update(PARTS[ranks.rank] + shift, ranks)
        return running

    found = run_in_threads([updated] * 3)
    whole = np.concatenate([WHOLE, WHOLE + 7])
    for running in found:
        assert float(running.count) == 2002
        np.testing.assert_allclose(running.mean, whole.mean(0), rtol=1e-6)
        np.testing.assert_allclose(running.var, whole.var(0), rtol=1e-5)
        for name, value in running.named_buffers():
            assert torch.equal(value, found[0].get_buffer(name))


def test_no_rank_has_a_sample() -> None:
    def updated(ranks: Ranks) -> list[float]:
        running = RunningMoments()
        running.update(torch.zeros(0), ranks)
        return [float(x) for x in running.buffers()]

    assert run_in_threads([updated] * 2) == [[0.0, 1.0, 0.0]] * 2


def test_normalisers_of_dicts_in_another_order() -> None:
    box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    space = gym.spaces.Dict(a=box, b=box)

    def updated(ranks: Ranks) -> dict[str, torch.Tensor]:
        normalizer = ObsNormalizer(space)
        obs = {"a": torch.full((4, 2), float(ranks.rank)), "b": torch.full((4, 2), 10.0 + ranks.rank)}
        normalizer.update(obs if ranks.rank == 0 else dict(reversed(obs.items())), ranks)
        return normalizer.state_dict()

    for state in run_in_threads([updated] * 2):
        assert state["moments.0.mean"].tolist() == [0.5, 0.5]
        assert state["moments.1.mean"].tolist() == [10.5, 10.5]
