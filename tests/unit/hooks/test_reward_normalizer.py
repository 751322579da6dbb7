"""Standardised rewards of updates; stored ones stay."""

import math
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.hooks import RewardNormalizer
from tests.fakes import ScriptedOffPolicy, ScriptedOnPolicy, counting_envs, tiny_actor_critic
from tests.unit.hooks.fake_run import FakeRun, rollout, transitions

BAD_VALUES = [-1, 0, math.inf, math.nan, "", None, True, []]


def on_policy() -> FakeRun:
    return FakeRun(ScriptedOnPolicy(tiny_actor_critic(counting_envs())))


def off_policy(**params: Any) -> FakeRun:
    return FakeRun(ScriptedOffPolicy(tiny_actor_critic(counting_envs()), rl.OffPolicyParams(**params)))


def test_one_two_three() -> None:
    batch = rollout([[1.0], [2.0], [3.0]])
    changed = RewardNormalizer().batch_process(on_policy(), batch)
    assert changed.reward.flatten().tolist() == [-1.0, 0.0, 1.0]
    assert batch.reward.flatten().tolist() == [1.0, 2.0, 3.0]
    assert changed.obs is batch.obs


def test_scale() -> None:
    changed = RewardNormalizer(scale=10.0).batch_process(on_policy(), rollout([[1.0], [2.0], [3.0]]))
    assert changed.reward.flatten().tolist() == [-10.0, 0.0, 10.0]


def test_the_past_decays_by_training_step() -> None:
    hook = RewardNormalizer(decay=0.5)
    hook.update(torch.tensor([1.0, 2.0, 3.0]))
    hook.update(torch.tensor([5.0]))
    # count 0.5 * 3 + 1 = 2.5, sum 0.5 * 6 + 5 = 8, squares 0.5 * 14 + 25 = 32: mean 3.2, var (32 - 64 / 2.5) / 1.5
    expected = (5.0 - 3.2) / math.sqrt((32 - 25.6) / 1.5)
    assert hook(torch.tensor([3.2, 5.0])).tolist() == pytest.approx([0.0, expected], abs=1e-6)


def test_many_small_parts_are_one_large_one() -> None:
    numbers = 1e5 + torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hook = RewardNormalizer(decay=1.0)
    for part in numbers.split(7):
        hook.update(part)
    expected = (numbers - numbers.mean()) / numbers.std()
    torch.testing.assert_close(hook(numbers), expected, rtol=1e-6, atol=1e-6)


def test_rewards_that_do_not_vary_become_zeros() -> None:
    hook = RewardNormalizer()
    for _ in range(3):
        changed = hook.batch_process(on_policy(), rollout([[7.0]]))
        assert changed.reward.tolist() == [[0.0]]
    assert hook(torch.tensor([7.0, 7.1]))[1] == pytest.approx(0.1 / math.sqrt(hook.eps), rel=1e-3)


def test_cells_that_are_not_valid_do_not_count() -> None:
    batch = rollout([[1.0], [2.0], [3.0], [99.0]], valid=torch.tensor([[True], [True], [True], [False]]))
    assert RewardNormalizer().batch_process(on_policy(), batch).reward.flatten().tolist()[:3] == [-1.0, 0.0, 1.0]
    hook = RewardNormalizer()
    assert hook.batch_process(off_policy(), rollout([[1.0]], valid=torch.tensor([[False]]))) is None
    assert hook.state_dict()["moments"].tolist() == [0.0, 0.0, 0.0]


def test_off_policy_changes_minibatches_only() -> None:
    hook, run = RewardNormalizer(), off_policy()
    assert hook.batch_process(run, rollout([[1.0], [2.0], [3.0]])) is None
    minibatch = transitions([3.0, 1.0])
    assert hook.process_optim_batch(run, minibatch).reward.tolist() == [1.0, -1.0]
    assert minibatch.reward.tolist() == [3.0, 1.0]


def test_offline_takes_statistics_of_what_is_sampled() -> None:
    hook, run = RewardNormalizer(), off_policy()
    batch = transitions([1.0, 2.0, 3.0])
    assert hook.batch_process(run, batch) is None
    assert hook.process_optim_batch(run, batch).reward.tolist() == [-1.0, 0.0, 1.0]


def test_sums_of_rewards_are_refused() -> None:
    with pytest.raises(ParamsError, match=r"RewardNormalizer.algorithm.n_step: must be 1; got 3 \(int\). A sum of"):
        RewardNormalizer().setup(off_policy(n_step=3))
    RewardNormalizer().setup(off_policy())
    RewardNormalizer().setup(on_policy())


def test_a_state_goes_on() -> None:
    one, other = RewardNormalizer(), RewardNormalizer()
    one.update(torch.tensor([1.0, 2.0, 3.0]))
    other.prepare_load(one.state_dict())()
    for hook in (one, other):
        hook.update(torch.tensor([4.0]))
    assert torch.equal(one.state_dict()["moments"], other.state_dict()["moments"])
    one.reset()
    assert one.state_dict()["moments"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "RewardNormalizer.moments: missing in the saved state"),
        (
            {"moments": torch.zeros(2, dtype=torch.float64)},
            r"RewardNormalizer.moments: expected shape \(3,\), found \(2,\)",
        ),
        ({"moments": torch.zeros(3)}, "RewardNormalizer.moments: expected torch.float64, found torch.float32"),
        (
            {"moments": torch.full((3,), math.nan, dtype=torch.float64)},
            "RewardNormalizer.moments: holds NaN or infinity",
        ),
    ],
)
def test_another_state_is_refused(state: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        RewardNormalizer().prepare_load(state)


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ("decay", r"must be a number in \(0, 1\]"),
        ("scale", "must be a positive finite number"),
        ("eps", "must be a positive finite number"),
    ],
)
def test_arguments(field: str, rule: str) -> None:
    for value in BAD_VALUES:
        with pytest.raises(ParamsError, match=rf"RewardNormalizer\.{field}: {rule}; got "):
            RewardNormalizer(**{field: value})
