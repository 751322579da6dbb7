"""bf16 matrix products: used, and used for nothing else."""

import copy
import warnings
from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.contract.test_all_algorithms import ALL, make, trained_parameters, update


def with_bf16(name: str) -> Any:
    algorithm = make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on processors without bf16 instructions
        algorithm.attach(rl.UpdatePlan(precision=rl.PrecisionParams(amp="bf16")))
    return algorithm


@pytest.mark.parametrize("name", ALL)
def test_bf16_is_near_float32_and_weights_stay_float32(name: str) -> None:
    exact, rounded = make(name), with_bf16(name)
    for seed in range(3):
        one, other = update(exact, seed=seed), update(rounded, seed=seed)
    assert other.floats() == pytest.approx(one.floats(), rel=0.1, abs=0.05)
    parameters = trained_parameters(rounded)
    assert {value.dtype for value in parameters.values()} == {torch.float32}
    assert any(not torch.equal(value, parameters[key]) for key, value in trained_parameters(exact).items())
    assert all(value.dtype == torch.float32 for value in other.metrics.values() if isinstance(value, torch.Tensor))


def test_a_weight_that_a_step_has_changed_is_rounded_anew() -> None:
    # SAC trains the critics and then asks them for the actor's loss, in one step.
    seen = []
    algorithm = with_bf16("sac")
    layer = algorithm.critic.ensemble.layers[0]
    layer.register_forward_hook(lambda _, args, output: seen.append((layer.weight.detach().clone(), args[0], output)))
    update(algorithm)
    for weight, x, output in seen:
        expected = torch.baddbmm(layer.bias.detach().bfloat16() * 0, x.bfloat16(), weight.bfloat16())
        assert (output.detach() - expected - layer.bias.detach()).abs().max() < 0.05
    assert len(seen) == 2
    assert not torch.equal(seen[0][0], seen[1][0])


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_a_copy_of_an_attached_algorithm_trains_itself_and_follows_no_trainer(name: str) -> None:
    algorithm = make(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = rl.UpdatePlan(lambda: 0.5, precision=rl.PrecisionParams(amp="bf16"))
        algorithm.attach(plan)
    copied, before = copy.deepcopy(algorithm), trained_parameters(algorithm)
    update(copied)
    after = trained_parameters(copied)
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(algorithm).items())
    assert any(not torch.equal(before[key], value) for key, value in after.items())
    assert (copied.plan.progress(), algorithm.plan.progress()) == (0.0, 0.5)


def test_a_processor_without_bf16_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    with pytest.warns(
        UserWarning,
        match="this processor has no bf16 instructions; bf16 will be slower than float32, about 1.7 times or more",
    ):
        make("bc").attach(rl.UpdatePlan(precision=rl.PrecisionParams(amp="bf16")))


def test_a_torch_that_cannot_trace_gradients_runs_uncompiled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.execution.execution.can_trace_gradients", lambda: False)
    algorithm = make("bc")
    with pytest.warns(UserWarning, match=r"cannot trace torch\.autograd\.grad .* gradient steps run uncompiled"):
        algorithm.attach(rl.UpdatePlan(runtime=rl.RuntimeParams(compile=True)))
    assert not algorithm.is_compiled
    update(algorithm)
