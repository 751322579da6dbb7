"""Gradients averaged over several steps: one batch of as many minibatches, for every algorithm, kept in its state."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.tree import map_tensors
from tests.contract.test_all_algorithms import (
    OFF_POLICY,
    ON_POLICY,
    WITHOUT_RANKS,
    assert_same_state,
    make,
    rollout,
    trained_parameters,
    transitions,
    update,
)
from tests.fakes import built

SEVERAL = (
    "sac", "discrete_sac", "ddpg", "td3", "td3_bc", "rebrac", "fql", "fql_chunks", "tqc", "redq", "cql", "cal_ql",
    "iql", "simbav2",
)  # fmt: skip
"""Algorithms with several optimizers, of which each later one goes by what the earlier ones have changed."""


def remade(name: str, **changes: Any) -> Any:
    """Return an algorithm whose first steps of Adam are not the signs of rounding errors."""
    algorithm = make(name)
    known = {field.name for field in dataclasses.fields(algorithm.params)}
    changes = {"adam_eps": 1e-3, "normalize_advantage": False, "target_update_interval": 2} | changes
    values = {key: value for key, value in changes.items() if key in known}
    other = built(type(algorithm), algorithm.policy, dataclasses.replace(algorithm.params, **values))
    other.seed(3)
    if name in OFF_POLICY:
        sample = other.sample_noise
        other.sample_noise = lambda batch: still(sample(batch))
    return other


def still(noise: Any) -> Any:
    """Return zeros for noise, which would be other numbers for a batch of another size."""
    if noise is None:
        return None
    quiet = {
        field.name: torch.zeros_like(value) if value.is_floating_point() else torch.arange(len(value))
        for field in dataclasses.fields(noise)
        if isinstance(value := getattr(noise, field.name), Tensor)
    }
    return dataclasses.replace(noise, **quiet)


def accumulating(algorithm: Any, size: int, **more: Any) -> Any:
    algorithm.attach(rl.UpdatePlan(update=rl.UpdateParams(accumulate=size, **more)))
    return algorithm


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for key, value in one.items():
        torch.testing.assert_close(value, other[key], rtol=0, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")


def one_batch(batch: Any) -> Any:
    """Return batches [K, B] as one of K * B."""
    return map_tensors(lambda x: x.flatten(0, 1), batch)


@pytest.mark.parametrize("name", [name for name in OFF_POLICY if name not in (*SEVERAL, *WITHOUT_RANKS)])  # by batch
def test_k_minibatches_are_one_batch(name: str) -> None:
    one, other = accumulating(remade(name), 3), remade(name)
    for seed in range(3):
        batch = transitions(one, 3, 16, seed=seed)
        one.update(batch)
        other.update(one_batch(batch))
    assert_close(trained_parameters(one), trained_parameters(other))
    if hasattr(one, "target_critic"):
        assert_close(one.target_critic.state_dict(), other.target_critic.state_dict())
    assert [o.method.num_steps for o in one._optimizers()] == [3.0]


@pytest.mark.parametrize("name", [*SEVERAL])
def test_the_first_optimizer_of_several_takes_the_step_of_one_batch(name: str) -> None:
    """The actor's gradients are of the critic before its step, but for the last; so they are nearly those."""
    one, other = accumulating(remade(name), 3), remade(name)
    batch = transitions(one, 3, 16)
    one.update(batch)
    other.update(one_batch(batch))
    first = "value_network" if name == "iql" else "critic"
    of_first = {key: value for key, value in trained_parameters(one).items() if key.startswith(first)}
    assert of_first
    assert_close(of_first, trained_parameters(other))
    assert all(optimizer.method.num_steps == 1 for optimizer in one._optimizers())
    assert one.target_critic.num_calls == other.target_critic.num_calls == 1
    for key, value in trained_parameters(one).items():
        torch.testing.assert_close(value, trained_parameters(other)[key], rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", [name for name in ON_POLICY if not name.startswith("rnd")])  # has two optimizers
def test_k_minibatches_of_a_rollout_are_the_rollout(name: str) -> None:
    one, other = accumulating(remade(name), 3), remade(name)
    for seed in range(2):
        small = one.update(rollout(one, seed=seed), batch_size=8, repeat=2)
        whole = other.update(rollout(other, seed=seed), batch_size=None, repeat=2)
        assert (small.num_gradient_steps, whole.num_gradient_steps) == (6, 2)
    assert_close(trained_parameters(one), trained_parameters(other))
    assert [o.method.num_steps for o in one._optimizers()] == [4.0]


@pytest.mark.parametrize("name", [name for name in ON_POLICY if not name.startswith("rnd")])  # has two optimizers
def test_what_is_left_over_of_a_rollout_is_applied(name: str) -> None:
    """Three minibatches in groups of two are a step of two, and one of the last one alone."""
    algorithm = accumulating(make(name), 2)
    algorithm.update(rollout(algorithm), batch_size=8, repeat=1)
    assert [optimizer.method.num_steps for optimizer in algorithm._optimizers()] == [2.0]
    assert "gathered" not in algorithm._optimizers()[0].state_dict()


def test_the_rest_is_a_mean_over_what_there_is_and_its_norm_a_metric_of_the_update_that_applies_it() -> None:
    one, other = accumulating(remade("a2c"), 5), remade("a2c")
    one.update(rollout(one), batch_size=8, repeat=1)  # three of five
    other.update(rollout(other), batch_size=None, repeat=1)
    assert_close(trained_parameters(one), trained_parameters(other))
    algorithm = accumulating(make("a2c"), 2, max_grad_norm=1e9)
    for _ in range(3):  # of three gradient steps, one group and a rest of one
        assert algorithm.update(rollout(algorithm), batch_size=8, repeat=1).counts == {"grad_norm": 2}


@pytest.mark.parametrize("name", OFF_POLICY)
def test_nothing_changes_before_the_last_of_a_group_and_the_state_continues(name: str, tmp_path: Path) -> None:
    one = accumulating(make(name), 3)
    before = trained_parameters(one)
    update(one, 0)
    update(one, 1)
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(one).items())
    assert one.accumulation.applies  # outside a step, as for a step that is called by hand
    one.save(tmp_path / "algorithm.safetensors")
    other = accumulating(make(name), 3)
    other.load(tmp_path / "algorithm.safetensors")
    assert_same_state(one, other)
    for seed in range(2, 6):
        assert update(one, seed).floats() == update(other, seed).floats()
    assert_same_state(one, other)
    assert not any(torch.equal(before[k], v) for k, v in trained_parameters(one).items() if k.startswith("actor."))


def test_a_delayed_actor_and_targets_count_the_steps_that_are_applied() -> None:
    algorithm = rl.TD3(make("td3").policy, rl.TD3Params(actor_update_interval=2))
    accumulating(algorithm, 3)
    turns = ["actor_loss" in update(algorithm, seed).metrics for seed in range(12)]
    assert turns == [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    assert [algorithm.critic_optimizer.method.num_steps, algorithm.actor_optimizer.method.num_steps] == [4.0, 2.0]
    assert algorithm.target_critic.num_calls == 2


def test_another_size_begins_a_group() -> None:
    algorithm = accumulating(make("dqn"), 3)
    update(algorithm)
    accumulating(algorithm, 2)
    before = trained_parameters(algorithm)
    update(algorithm)
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(algorithm).items())
    update(algorithm)
    assert algorithm.optimizer.method.num_steps == 1


def test_a_state_in_the_middle_of_a_group_loads_where_nothing_is_gathered() -> None:
    algorithm, other = accumulating(make("bc"), 3), make("bc")
    update(algorithm)
    other.load_state_dict(algorithm.state_dict())
    assert "gathered" not in other.optimizer.state_dict()
