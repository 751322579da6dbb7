"""Weights in float64: all that is learned with is, nothing of it is rounded, and what goes in and out stays float32."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rltrainer as rl
from rltrainer.collect.weight_sync import CopyElsewhere
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.schedules import ScheduledValue
from rltrainer.state.state_file import read_state, write_state
from rltrainer.updates.optimizer import Optimizer
from tests import batches
from tests.contract.test_all_algorithms import (
    ALL,
    BOX,
    DISCRETE,
    OBS,
    STUDENTS,
    assert_same_state,
    flat_state,
    make,
    obs_batch,
    update,
)
from tests.fakes import counting_envs, rollouts_of
from tests.resume.runs import build
from tests.unit.collect import async_parts
from tests.unit.collect.test_async_collector import parts_of

FLOAT64 = rl.UpdatePlan(precision=rl.PrecisionParams(weights="float64"))
IN_FLOAT32 = {"num_steps", "action_low", "action_high"}
"""What a state has in float32 beside float64: a count, and the envs' bounds of actions."""


def make_double(name: str) -> Any:
    algorithm = make(name)
    algorithm.attach(FLOAT64)
    return algorithm


def floats_of(algorithm: Any) -> dict[str, torch.Tensor]:
    """Return all floating-point tensors of a state, and those that are in none."""
    state = flat_state(algorithm.state_dict())
    for name, value in vars(algorithm).items():
        if isinstance(value, ScheduledValue):
            state[name] = value.value
        if isinstance(value, Optimizer):
            state[f"{name}.gradient"] = value._bad.gradient
    return {name: x for name, x in state.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}


class Roundings(TorchDispatchMode):
    """Collects the operations that make float32 of something else than float32, or compute in it."""

    def __init__(self, found: set[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if any(x.dtype in (torch.float32, torch.bfloat16, torch.float16) for x in outputs):
            self.found.add(str(func))
        return result


def watched(monkeypatch: pytest.MonkeyPatch, algorithm: Any) -> set[str]:
    """Return what will hold the operations in float32 of all that an update computes."""
    found: set[str] = set()

    def under_watch(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with Roundings(found):
                return method(*args, **options)

        return call

    for name in ("process", "before_batches", "_step", "gradient_step"):
        if hasattr(algorithm, name):
            monkeypatch.setattr(algorithm, name, under_watch(getattr(algorithm, name)))
    algorithm._execution._eager = algorithm._step
    return found


@pytest.mark.parametrize("name", ALL)
def test_all_that_is_learned_with_is_in_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = make(name)
    parameters = list(algorithm.policy.parameters())
    algorithm.attach(FLOAT64)
    computed_in_float32 = watched(monkeypatch, algorithm)
    for seed in range(3):
        result = update(algorithm, seed=seed)
    # A step is counted, and a teacher's actions are what an env would get.
    assert computed_in_float32 <= {"aten.add_.Tensor"} or name in STUDENTS
    assert all(one is other for one, other in zip(parameters, algorithm.policy.parameters(), strict=True))
    in_float32 = [key for key, value in floats_of(algorithm).items() if value.dtype != torch.float64]
    in_float32 = [key for key in in_float32 if "bonus_scaler" not in key]  # as a scaler of rewards is
    assert {key.rpartition(".")[2] for key in in_float32} <= IN_FLOAT32
    losses = {key: value for key, value in result.metrics.items() if isinstance(value, torch.Tensor)}
    assert {value.dtype for value in losses.values()} == {torch.float64}
    assert result.td_error is None or result.td_error.dtype == torch.float64


@pytest.mark.parametrize("name", ALL)
def test_numbers_are_those_of_float32_without_its_rounding(name: str) -> None:
    single, double = make(name), make_double(name)
    for seed in range(3):
        one, other = update(single, seed=seed), update(double, seed=seed)
        assert other.floats() == pytest.approx(one.floats(), rel=1e-4, abs=1e-5)
    trained = dict(batches.trained(double).named_parameters())
    if name.startswith(("bc", *STUDENTS)):
        trained = {k: p for k, p in trained.items() if k.startswith("actor") and not k.endswith("log_std")}
    for key, value in single.policy.named_parameters():
        torch.testing.assert_close(dict(double.policy.named_parameters())[key].float(), value, rtol=1e-4, atol=2e-5)
    # Nearly no number would be one of float32's by chance: one in 2^29.
    rounded = [(p.detach().float().double() == p.detach()).double().mean() for p in trained.values()]
    assert max(rounded) < 0.5, rounded


@pytest.mark.parametrize("name", ALL)
def test_there_and_back_is_float32_again(name: str) -> None:
    one, other = make(name), make(name)
    other.set_weight_dtype(torch.float64)
    other.set_weight_dtype(torch.float32)
    assert other.plan == dataclasses.replace(one.plan, runtime=other.plan.runtime)
    for seed in range(2):
        assert update(one, seed).floats() == update(other, seed).floats()
    assert_same_state(one, other)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("explore", [False, True])
def test_what_leaves_a_policy_is_float32(name: str, explore: bool) -> None:
    """The same random numbers give the same actions, but for rounding."""
    single, double = make(name).policy, make_double(name).policy
    obs = obs_batch(16, generator=torch.Generator().manual_seed(0))
    state = single.initial_state(16)
    decisions = []
    for policy in (single, double):
        generator = torch.Generator().manual_seed(4)
        decisions.append(policy.select_action(obs, state, explore=explore, generator=generator))
        action = policy.act(obs, *(() if state is None else (state,)), explore=explore, generator=generator)
        action = action if state is None else action[0]
        assert action.dtype in (torch.float32, torch.int64, torch.int8)  # choices, flags
    one, other = decisions
    torch.testing.assert_close(other.action, one.action)
    torch.testing.assert_close(other.state, one.state)
    assert policy.columns == single.columns
    single_obs = {key: value[0].numpy() for key, value in obs.items()}
    found = double.predict(single_obs)
    assert double.action_space.contains(found[0] if double.is_recurrent else found)


def test_noise_that_depends_on_the_state_is_float32_too() -> None:
    rl.seed(1)
    policy = rl.SquashedActorCritic.for_spaces(OBS, BOX, hidden_sizes=(8,), use_sde=True, sde_sample_interval=2)
    other = copy.deepcopy(policy)
    other.set_weight_dtype(torch.float64)
    obs, state, same = obs_batch(4, generator=torch.Generator().manual_seed(0)), policy.initial_state(4), other
    actions = []
    for each in (policy, same):
        memory, generator, taken = state, torch.Generator().manual_seed(2), []
        for _ in range(3):
            action, memory = each.act(obs, memory, explore=True, generator=generator)
            taken.append(action)
        assert memory.dtype == torch.float32
        actions.append(torch.stack(taken))
    torch.testing.assert_close(*actions)
    assert other.columns["state"] == policy.columns["state"]


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_an_algorithm_over_a_policy_in_float64_is_in_float64(name: str, tmp_path: Path) -> None:
    policy = make(name).policy
    policy.set_weight_dtype(torch.float64)
    policy.save(tmp_path / "policy.safetensors")
    loaded: Any = rl.load_policy(tmp_path / "policy.safetensors").train()
    algorithm = type(make(name))(loaded)
    assert algorithm.plan == FLOAT64
    update(algorithm)
    in_float32 = [key for key, value in floats_of(algorithm).items() if value.dtype != torch.float64]
    assert {key.rpartition(".")[2] for key in in_float32} <= {*IN_FLOAT32, "entropy_coef", "clip"}
    copied = copy.deepcopy(algorithm)
    assert (copied.plan, copied.policy.weight_dtype) == (FLOAT64, torch.float64)
    assert update(copied).floats() == update(algorithm).floats()


def test_moments_of_an_optimizer_of_torch_follow() -> None:
    params = rl.SACParams(optimizer=lambda parameters: torch.optim.Adam(parameters, amsgrad=True))
    rl.seed(7)
    algorithm = rl.SAC(rl.SquashedActorCritic.for_spaces(OBS, BOX, hidden_sizes=(8,)), params)
    update(algorithm)
    algorithm.set_weight_dtype(torch.float64)
    update(algorithm, seed=1)
    moments = algorithm.critic_optimizer.state_dict()["state"]["0"]
    assert {key: value.dtype for key, value in moments.items()} == {
        "step": torch.float32, "exp_avg": torch.float64, "exp_avg_sq": torch.float64, "max_exp_avg_sq": torch.float64
    }  # fmt: skip
    algorithm.load_state_dict(algorithm.state_dict())


@pytest.mark.parametrize("weights", ["float32", "float64"])
def test_gathered_gradients_and_limits_are_in_the_format(weights: Any) -> None:
    update_params = rl.UpdateParams(accumulate=2, max_grad_norm=1e-3)
    precision = rl.PrecisionParams(weights=weights)
    algorithm = make("sac")
    algorithm.attach(rl.UpdatePlan(precision=precision, update=update_params))
    update(algorithm)
    assert algorithm.critic_optimizer.state_dict()["gathered"].dtype == precision.weight_dtype
    update(algorithm)


def test_a_gradient_beyond_float32_is_finite_in_float64() -> None:
    for loss_factor, is_applied in ((1e100, True), (1e400, False)):
        parameter = torch.nn.Linear(1, 1).double()
        optimizer = Optimizer({"layer": parameter}, lr=0.1)
        before = parameter.weight.detach().clone()
        optimizer.step((parameter.weight.sum() + parameter.bias.sum()) * loss_factor)
        assert (optimizer.take_fault() is None) == is_applied
        assert torch.equal(parameter.weight, before) == (not is_applied)


# Files and formats


def saved(tmp_path: Path, name: str = "sac") -> Path:
    path = tmp_path / "algorithm.safetensors"
    make_double(name).save(path)
    return path


def test_a_file_of_another_format_says_what_to_do(tmp_path: Path) -> None:
    path, algorithm = saved(tmp_path), make("sac")
    text = r"SAC: expected weights in float32, found float64\. Call set_weight_dtype\(torch\.float64\) before, or make"
    with pytest.raises(CheckpointError, match=text):
        algorithm.load(path)
    with pytest.raises(CheckpointError, match=r"algorithm\.safetensors: expected weights in float32, found float64\."):
        algorithm.policy.load(path)
    make("sac").save(tmp_path / "single.safetensors")
    algorithm.set_weight_dtype(torch.float64)
    with pytest.raises(CheckpointError, match=r"SAC: expected weights in float64, found float32\."):
        algorithm.load(tmp_path / "single.safetensors")
    algorithm.load(path)
    algorithm.policy.load(path)
    assert algorithm.policy.weight_dtype is torch.float64


def test_what_fits_goes_by_format_too(tmp_path: Path) -> None:
    path, algorithm = saved(tmp_path), make("sac")
    before = {key: value.clone() for key, value in algorithm.policy.state_dict().items()}
    left_out = algorithm.load(path, strict=False)
    assert "policy.critic.ensemble.layers.0.weight" in left_out.mismatched_keys
    assert all(torch.equal(before[key], value) for key, value in algorithm.policy.state_dict().items())
    other: Any = rl.load(path, strict=False)
    assert_same_state(other, rl.load(path))


@pytest.mark.parametrize("found", ["float16", "", 64, None, ["float64"], {"a": 1}])
def test_a_format_that_is_none(found: Any, tmp_path: Path) -> None:
    path = saved(tmp_path)
    write_state(path, "algorithm", read_state(path, "algorithm", CheckpointError) | {"weight_dtype": found})
    for load in (rl.load, rl.load_policy, make_double("sac").load, make("sac").policy.load):
        with pytest.raises(CheckpointError, match=r"weight_dtype: expected 'float32' or 'float64', found"):
            load(path)


def test_a_file_that_says_another_format_than_it_has(tmp_path: Path) -> None:
    path = tmp_path / "algorithm.safetensors"
    make("sac").save(path)
    write_state(path, "algorithm", read_state(path, "algorithm", CheckpointError) | {"weight_dtype": "float64"})
    for load in (rl.load, rl.load_policy):
        with pytest.raises(CheckpointError, match=r"expected torch\.float64, found torch\.float32"):
            load(path)


# Arguments


def test_images_and_choices_are_seen_in_float64() -> None:
    space = gym.spaces.Tuple((gym.spaces.Box(0, 255, (36, 36, 3), np.uint8), DISCRETE))
    policy = rl.ActorCritic.for_spaces(space, DISCRETE, hidden_sizes=(8,), share_encoder=True)
    policy.set_weight_dtype(torch.float64)
    obs = (torch.randint(0, 255, (2, 36, 36, 3), dtype=torch.uint8), torch.tensor([1, 2]))
    assert policy.value(obs).dtype == torch.float64
    assert policy.act(obs).dtype == torch.int64


def test_an_encoder_of_the_users_is_given_float64() -> None:
    net = rl.NetParams(hidden_sizes=(8,), encoder=lambda space: torch.nn.Linear(3, 4))
    policy = rl.ActorCritic.for_spaces(gym.spaces.Box(-1, 1, (3,)), DISCRETE, net)
    policy.set_weight_dtype(torch.float64)
    assert policy.value(torch.rand(2, 3)).dtype == torch.float64


# Runs


def in_float64(name: str) -> Any:
    trainer = build(name)
    precision = rl.PrecisionParams(weights="float64")
    return dataclasses.replace(trainer.params, precision=precision).create_trainer(trainer.algorithm)


def test_the_trainer_brings_its_algorithm_to_its_format() -> None:
    trainer = in_float64("ppo")
    parameters = list(trainer.algorithm.policy.parameters())
    assert {p.dtype for p in parameters} == {torch.float64}
    again = dataclasses.replace(trainer.params, precision=rl.PrecisionParams()).create_trainer(trainer.algorithm)
    assert {p.dtype for p in trainer.algorithm.policy.parameters()} == {torch.float32}
    assert all(one is other for one, other in zip(parameters, again.algorithm.policy.parameters(), strict=True))
    again.run()


# Collectors


def test_workers_that_have_copies_in_another_format_are_told_of() -> None:
    make_envs, policy, buffer = parts_of("replay", 1)
    collector = rl.AsyncCollector(policy, make_envs, 1, buffer(2))
    collector.collect(num_steps=4)
    policy.set_weight_dtype(torch.float64)
    text = (
        r"AsyncCollector\.policy: must stay in torch\.float32, which workers have, and is in torch\.float64\. Make the"
    )
    with pytest.raises(ParamsError, match=text):
        collector.sync()
    collector.close()


def test_a_copy_on_another_device_follows() -> None:
    envs = counting_envs(2, action_space=async_parts.BOX)
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
    envs: Any = counting_envs(2, in_workers=kind is rl.BatchedCollector, action_space=async_parts.BOX)
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
