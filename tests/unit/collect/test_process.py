"""What happens to a collection between the look at it and the buffer."""

import dataclasses
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import NonFiniteError
from tests.fakes import counting_envs, replay_of, rollouts_of, tiny_actor_critic


def twice(rollout: rl.Rollout) -> rl.Rollout:
    return dataclasses.replace(rollout, reward=rollout.reward * 2)


def collector(stores: str) -> rl.Collector:
    envs = counting_envs(2)
    buffer: Any = replay_of(envs, 60) if stores == "replay" else rollouts_of(envs, 4)
    return rl.Collector(tiny_actor_critic(envs), envs, buffer)


@pytest.mark.parametrize("stores", ["replay", "rollouts"])
@pytest.mark.parametrize("num_steps", [2, 20])
def test_rewards_may_be_others_where_they_are_stored(stores: str, num_steps: int) -> None:
    plain, changed = collector(stores), collector(stores)
    for one in (plain, changed):
        one.seed(3)
    before = plain.collect(num_steps=num_steps)
    after = changed.collect(num_steps=num_steps, process=twice)
    assert after.returns.tolist() == before.returns.tolist()  # those of the envs
    assert torch.equal(changed.rollout().reward, 2 * plain.rollout().reward)
    assert torch.equal(changed.rollout().action, plain.rollout().action)
    if stores == "replay":
        assert isinstance(plain.buffer, rl.ReplayBuffer)
        assert isinstance(changed.buffer, rl.ReplayBuffer)
        samples = [buffer.sample(50) for buffer in (plain.buffer, changed.buffer)]
        assert all(torch.equal(sample.reward, 2 * sample.reward / 2) for sample in samples)
        assert set(samples[1].reward.tolist()) == {2 * reward for reward in samples[0].reward.tolist()}


def test_the_next_collection_is_what_it_is() -> None:
    one = collector("rollouts")
    one.collect(num_steps=4, process=twice)
    doubled = one.rollout().reward
    one.collect(num_steps=4)
    assert torch.equal(one.rollout().reward, doubled / 2)


@pytest.mark.parametrize(
    ("process", "error", "text"),
    [
        (lambda rollout: None, TypeError, r"process: must return a Rollout of \(2, 2\); got None \(NoneType\)"),
        (
            lambda rollout: dataclasses.replace(rollout, reward=rollout.reward[:1]),
            TypeError,
            r"process: must return a Rollout of \(2, 2\); got \(1, 2\)",
        ),
        (
            lambda rollout: dataclasses.replace(rollout, reward=rollout.reward / 0),
            NonFiniteError,
            "process returned rewards that are not finite; nothing was stored",
        ),
    ],
)
def test_what_comes_back_is_checked_and_else_nothing_is_stored(process: Any, error: Any, text: str) -> None:
    one = collector("replay")
    with pytest.raises(error, match=text):
        one.collect(num_steps=4, process=process)
    assert one.buffer is not None
    assert len(one.buffer) == 0
    assert one.needs_reset


def test_nothing_reaches_it_that_is_not_finite() -> None:
    one, seen = collector("replay"), []
    one.envs.envs[0].unwrapped.reward = float("nan")  # type: ignore[attr-defined]  # a CountingEnv's
    with pytest.raises(NonFiniteError, match="reward = nan"):
        one.collect(num_steps=4, process=lambda rollout: seen.append(1) or rollout)  # type: ignore[func-returns-value]
    assert seen == []
