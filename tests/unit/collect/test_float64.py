"""Collectors of a policy in float64: copies of it follow, and what they store is as declared."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.collect.async_rows import join_envs
from rltrainer.collect.weight_sync import CopyElsewhere
from rltrainer.errors import ParamsError
from rltrainer.seeding import derive_seed
from rltrainer.tree import leaves
from tests.fakes import counting_envs, rollouts_of
from tests.unit.collect.async_parts import BOX
from tests.unit.collect.test_async_collector import Make, assert_same, make, parts_of

__all__ = ["make"]


def dtypes(rollout: rl.Rollout) -> dict[str, set[torch.dtype]]:
    return {f.name: {leaf.dtype for leaf in leaves(getattr(rollout, f.name))} for f in dataclasses.fields(rl.Rollout)}


@pytest.mark.parametrize("kind", ["actor_critic", "dict_and_mask", "recurrent", "replay"])
def test_workers_act_in_float64_as_collectors_do(make: Make, kind: str) -> None:
    make_envs, policy, buffer = parts_of(kind, 1)
    single = rl.Collector(policy, make_envs(), buffer(2))
    single.seed(derive_seed(7, "worker", 0))
    single.collect(num_steps=20)
    collector = make(policy, make_envs, 1, buffer(2), max_ahead=0)
    policy.set_weight_dtype(torch.float64)
    plain = rl.Collector(policy, make_envs(), buffer(2))
    collector.seed(7)
    plain.seed(derive_seed(7, "worker", 0))
    for num_rows in (1, 9):
        collector.collect(num_steps=2 * num_rows)
        plain.collect(num_steps=2 * num_rows)
        assert_same(collector.rollout(), join_envs([plain.rollout()]))
        assert dtypes(plain.rollout()) == dtypes(single.rollout()) == dtypes(collector.rollout())


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


@pytest.mark.parametrize("policy_class", [rl.ActorCritic, rl.RecurrentActorCritic])
def test_a_batched_collector_stores_float32(policy_class: Any) -> None:
    envs = counting_envs(2, in_workers=True, action_space=BOX)
    policy = policy_class.for_envs(envs, hidden_sizes=(8,))
    policy.set_weight_dtype(torch.float64)
    extra = {name: spec for name, spec in policy.columns.items() if name != "version"}
    collector = rl.BatchedCollector(policy, envs, rollouts_of(envs, 8, extra=extra))
    collector.seed(1)
    collector.collect(num_steps=8)
    found = collector.rollout()
    assert found.action.dtype == torch.float32
    assert {name: column.dtype for name, column in found.extra.items()} == dict.fromkeys(extra, torch.float32)


def test_envs_receive_what_their_space_says() -> None:
    received = []
    envs = counting_envs(2, action_space=BOX)
    step = envs.step

    def look(actions: Any) -> Any:
        received.append(np.asarray(actions).dtype)
        return step(actions)

    envs.step = look  # type: ignore[method-assign]  # to see them
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,))
    policy.set_weight_dtype(torch.float64)
    policy.exploration = rl.GaussianNoise(0.1)
    rl.Collector(policy, envs).collect(num_steps=8)
    assert set(received) == {np.dtype(np.float32)}
