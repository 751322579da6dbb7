"""float16 with a scaled loss: the figures of the scale, steps that are left out, its state, and a run that it ends."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.updates.optimizer import Optimizer
from tests.contract.test_all_algorithms import ALL, assert_same_state, make, trained_parameters, update
from tests.resume.runs import build

FP16 = rl.PrecisionParams(amp="fp16")


def scaled(name: str, **changes: Any) -> Any:
    algorithm = make(name)
    algorithm.attach(rl.UpdatePlan(precision=dataclasses.replace(FP16, **changes)))
    return algorithm


def one_weight(is_flat: bool = False, **changes: Any) -> tuple[nn.Parameter, Optimizer]:
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = Optimizer({"weight": nn.ParameterList([weight])}, 0.1)
    if is_flat:  # the way of graphs and devices
        optimizer._is_flat = lambda: True  # type: ignore[method-assign]
    plan = rl.UpdatePlan(precision=dataclasses.replace(FP16, **changes))
    optimizer.attach("loss", plan, is_compiled=False)
    return weight, optimizer


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("infinite", ["gradient", "loss"])
def test_an_infinite_loss_halves_the_scale_and_changes_nothing(is_flat: bool, infinite: str) -> None:
    weight, optimizer = one_weight(is_flat)
    assert optimizer.loss_scale == 65536
    optimizer.step(weight.sum() * math.inf if infinite == "gradient" else weight.sum() + math.inf)
    assert weight.tolist() == [1.0, 2.0]
    state = optimizer.state_dict()
    assert float(state["num_steps"]) == 0
    assert not state["mean"].any()
    assert optimizer.loss_scale == 32768
    assert optimizer.num_skipped == 1
    assert optimizer.take_fault() is None
    optimizer.step(weight.sum())
    assert (float(optimizer.state_dict()["num_steps"]), optimizer.num_skipped) == (1, 1)
    assert weight.tolist() == pytest.approx([0.9, 1.9], abs=1e-6)


def test_an_update_whose_loss_is_infinite_counts_as_a_try() -> None:
    algorithm = scaled("bc")
    before = trained_parameters(algorithm)
    result = update(algorithm, weight=torch.full((16,), math.inf))
    assert result.num_gradient_steps == 1
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(algorithm).items())
    assert algorithm.logged_values() == {"lr": 1e-3, "skipped_steps": 1, "loss_scale": 32768.0}
    assert algorithm.optimizer.method.num_steps == 0


@pytest.mark.parametrize("is_flat", [False, True])
def test_the_scale_grows_after_good_steps_in_a_row_and_stays_finite(is_flat: bool) -> None:
    weight, optimizer = one_weight(is_flat, loss_scale_growth_interval=3, loss_scale_growth=4.0, initial_loss_scale=8.0)
    scales = []
    for is_good in (True, True, False, True, True, True, True):
        optimizer.step(weight.sum() * (1.0 if is_good else math.inf))
        scales.append(optimizer.loss_scale)
    assert scales == [8, 8, 4, 4, 4, 16, 16]
    weight, optimizer = one_weight(loss_scale_growth_interval=1, initial_loss_scale=2.0**126)
    for _ in range(3):
        optimizer.step(weight.sum() * 1e-30)
    assert optimizer.loss_scale == 2.0**127


@pytest.mark.parametrize(("limits", "gradient", "expected"), [
    ({}, [3.0, 4.0], [3.0, 4.0]), ({"max_grad_norm": 1.0}, [3.0, 4.0], [0.6, 0.8]),
    ({"max_grad_norm": 1.0, "accumulate": 2}, [3.0, 4.0], [0.6, 0.8]),
    ({"max_grad_norm": 1.0, "balance_grad_norms": True}, [10.0, 0.1], [0.5, 0.5]),
])  # fmt: skip
def test_what_is_limited_is_the_gradient_without_the_scale(
    limits: dict[str, Any], gradient: list[float], expected: list[float]
) -> None:
    point = nn.ParameterList([nn.Parameter(torch.zeros(2))])
    optimizer = Optimizer({"point": point}, 1.0, factory=lambda p: torch.optim.SGD(p))
    plan = rl.UpdatePlan(precision=FP16, update=rl.UpdateParams(**limits))
    optimizer.attach("loss", plan, is_compiled=False)
    parts = [factor * x for factor, x in zip(gradient, point[0].unbind(), strict=True)]
    optimizer.step(parts[0] + parts[1], parts)
    assert (-point[0].detach()).tolist() == pytest.approx(expected, rel=1e-5)
    assert optimizer.grad_norm is None or float(optimizer.grad_norm) == pytest.approx(math.hypot(*gradient))


@pytest.mark.parametrize("name", ALL)
def test_fp16_is_near_float32_and_weights_stay_float32(name: str) -> None:
    exact, rounded, again = make(name), scaled(name), scaled(name)
    for seed in range(3):
        one, other, third = update(exact, seed), update(rounded, seed), update(again, seed)
        assert other.floats() == third.floats()
    assert_same_state(rounded, again)
    assert other.floats() == pytest.approx(one.floats(), rel=0.1, abs=0.05)
    parameters = trained_parameters(rounded)
    assert {value.dtype for value in parameters.values()} == {torch.float32}
    assert any(not torch.equal(value, parameters[key]) for key, value in trained_parameters(exact).items())
    before = trained_parameters(make(name))
    assert any(not torch.equal(value, parameters[key]) for key, value in before.items())


def test_the_state_continues(tmp_path: Path) -> None:
    one = scaled("sac", loss_scale_growth_interval=3)
    for seed in range(2):
        update(one, seed)
    before = one.critic_optimizer.loss_scale  # float16 has overflowed at the initial one
    update(one, reward=torch.full((16,), math.inf))
    one.save(tmp_path / "sac.safetensors")
    other = scaled("sac", loss_scale_growth_interval=3)
    other.load(tmp_path / "sac.safetensors")
    assert_same_state(one, other)
    assert other.critic_optimizer.loss_scale == before / 2
    for seed in range(4):
        assert update(one, seed).floats() == update(other, seed).floats()
    assert_same_state(one, other)
    plain = make("sac")
    plain.load(tmp_path / "sac.safetensors")  # float32 goes on without
    other.load_state_dict(plain.state_dict())  # and back, from the initial scale
    assert other.critic_optimizer.loss_scale == 65536


def test_below_the_minimum_training_ends_with_that_reason() -> None:
    trainer = build("dqn", precision=dataclasses.replace(FP16, initial_loss_scale=4.0))
    trainer.algorithm.target_critic.register_forward_hook(lambda module, args, output: output * math.nan)
    before = trained_parameters(trainer.algorithm)
    info = trainer.run()
    assert info.stop_reason == "min_loss_scale"
    assert info.skipped_steps == info.gradient_step == 3  # 4, 2, 1, 0.5: the first update step has three
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(trainer.algorithm).items())
