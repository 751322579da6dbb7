"""What happens to a collection between the look at it and the buffer."""

import dataclasses
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import NonFiniteError
from tests.fakes import counting_envs
from tests.unit.collect.test_faults import collector as collector_of


def twice(rollout: rl.Rollout) -> rl.Rollout:
    return dataclasses.replace(rollout, reward=rollout.reward * 2)


def collector(stores: str) -> rl.Collector:
    return collector_of(counting_envs(2), stores)


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
        there, here = (one.buffer.sample(50).reward.tolist() for one in (plain, changed))  # type: ignore[union-attr]
        assert set(here) == {2 * reward for reward in there}
    for one in (plain, changed):
        one.collect(num_steps=num_steps)
    assert torch.equal(changed.rollout().reward, plain.rollout().reward), "the next collection is as it is"


@pytest.mark.parametrize(
    ("process", "error", "text"),
    [
        (lambda rollout: None, TypeError, r"process: must return a Rollout of \(2, 2\); got None \(NoneType\)"),
        (lambda r: dataclasses.replace(r, reward=r.reward[:1]), TypeError, r"a Rollout of \(2, 2\); got \(1, 2\)"),
        (lambda r: dataclasses.replace(r, reward=r.reward / 0), NonFiniteError, "returned rewards that are not finite"),
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
