"""Collectors of a policy in float64: copies of it follow, and what they store is as declared."""

from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.collect.weight_sync import CopyElsewhere
from rltrainer.errors import ParamsError
from tests.fakes import counting_envs, rollouts_of
from tests.unit.collect.async_parts import BOX
from tests.unit.collect.test_async_collector import Make, make, parts_of

__all__ = ["make"]


def test_workers_that_have_copies_in_another_format_are_told_of(make: Make) -> None:
    make_envs, policy, buffer = parts_of("replay", 1)
    collector = make(policy, make_envs, 1, buffer(2))
    collector.collect(num_steps=4)
    policy.set_weight_dtype(torch.float64)
    text = (
        r"AsyncCollector\.policy: must stay in torch\.float32, which workers have, and is in torch\.float64\. Make the"
    )
    with pytest.raises(ParamsError, match=text):
        collector.sync()


def test_a_copy_on_another_device_follows() -> None:
    envs = counting_envs(2, action_space=BOX)
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,), normalize_obs=True)
    copied = CopyElsewhere(policy, torch.device("cpu"))
    for dtype in (torch.float32, torch.float64, torch.float32):
        policy.set_weight_dtype(dtype)
        with torch.no_grad():
            policy.actor[2].linear.bias.add_(1 / 3)
        copied.publish(1)
        own, other = policy.state_dict(), copied.copy.state_dict()
        assert {key: value.dtype for key, value in own.items()} == {key: value.dtype for key, value in other.items()}
        assert all(torch.equal(value, other[key]) for key, value in own.items())
        assert copied.copy.weight_dtype is dtype


@pytest.mark.parametrize("kind", [rl.Collector, rl.BatchedCollector])
@pytest.mark.parametrize("policy_class", [rl.ActorCritic, rl.RecurrentActorCritic])
def test_collectors_store_float32_and_envs_receive_what_their_space_says(policy_class: Any, kind: Any) -> None:
    received: list[Any] = []
    envs: Any = counting_envs(2, in_workers=kind is rl.BatchedCollector, action_space=BOX)
    step = envs.step
    envs.step = lambda actions: received.append(np.asarray(actions).dtype) or step(actions)  # type: ignore[func-returns-value]
    policy = policy_class.for_envs(envs, hidden_sizes=(8,))
    policy.set_weight_dtype(torch.float64)
    extra = {name: spec for name, spec in policy.columns.items() if name != "version"}
    collector = kind(policy, envs, rollouts_of(envs, 8, extra=extra))
    collector.collect(num_steps=8)
    found = collector.rollout()
    assert found.action.dtype == torch.float32
    assert {name: column.dtype for name, column in found.extra.items()} == dict.fromkeys(extra, torch.float32)
    assert set(received) == ({np.dtype(np.float32)} if kind is rl.Collector else set())
    collector.close()
