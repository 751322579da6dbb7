"""Flags of PyTorch while a trainer runs: set inside, restored afterwards, also after an exception."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config

import rltrainer as rl
from rltrainer.errors import NonFiniteError, ParamsError
from rltrainer.trainers.torch_settings import check_deterministic
from tests.resume.runs import build, digest


def flags() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark, config.deterministic,
        torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(), torch.get_num_threads(),
    )  # fmt: skip


def with_runtime(name: str, *, fails: bool = False, **runtime: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """Return a trainer that notes the flags of its training steps and of what acts in them and in test steps."""
    seen: list[Any] = []

    def note(epoch: int, env_step: int) -> None:
        seen.append(flags())
        if fails:
            raise KeyError("from a callback")

    trainer = build(name, runtime=rl.RuntimeParams(**runtime), training_fn=note)
    trainer.algorithm.policy.register_forward_pre_hook(lambda *_: seen.append(flags()))
    return trainer, seen


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(("runtime", "inside"), [
    ({"deterministic": True, "num_threads": 3}, (2, True, False, True, False, True, 3)),
    ({"detect_anomaly": True, "num_threads": 1}, (0, False, True, False, True, True, 1)),
    ({"num_threads": 1}, (0, False, True, False, False, True, 1)),
])  # fmt: skip
def test_flags_hold_while_training_and_are_restored(
    runtime: dict[str, Any], inside: tuple[Any, ...], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = flags()
    trainer, seen = with_runtime("ppo", fails=fails, **runtime)
    with pytest.raises(KeyError, match="from a callback") if fails else nullcontext():
        trainer.run()
    assert set(seen) == {inside}
    assert flags() == before


def test_what_was_deterministic_before_stays_so() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = flags()
        with_runtime("ppo", deterministic=True)[0].run()
        assert flags() == before
        assert (before[0], before[3]) == (1, True)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["ppo", "sac", "offline_iql"])
@pytest.mark.parametrize("field", ["deterministic", "detect_anomaly", "profiler"])
def test_a_run_that_is_watched_gives_the_same_bits(name: str, field: str, tmp_path: Path) -> None:
    value = rl.ProfilerParams(folder=str(tmp_path / "profile"), wait=0, active=2) if field == "profiler" else True
    plain, other = build(name), with_runtime(name, **{field: value})[0]
    plain.run()
    other.run()
    other.state.runtime = plain.state.runtime  # which holds the params
    assert digest(plain) == digest(other)


def watched(algorithm: type[rl.DQN], **runtime: Any) -> rl.OffPolicyTrainer:
    made = build("dqn", runtime=rl.RuntimeParams(**runtime))
    return rl.OffPolicyTrainer(algorithm(made.algorithm.policy, made.algorithm.params), made.params)


def test_an_operation_without_a_deterministic_form_is_an_error() -> None:
    class OutOfOrder(rl.DQN):
        def loss(self, batch: Any, noise: Any) -> Any:
            torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))  # of two values for one place, either may stay
            return super().loss(batch, noise)

    watched(OutOfOrder).run()
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        watched(OutOfOrder, deterministic=True).run()


class Roots(rl.DQN):
    """Its losses are as they were; their gradients are 0 / 0."""

    def loss(self, batch: Any, noise: Any) -> Any:
        loss, td_error = super().loss(batch, noise)
        return loss + 0 * torch.sqrt(0 * loss), td_error


@pytest.mark.parametrize("compile_", ["auto", False])
def test_the_operation_that_made_a_nan_is_named(compile_: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.execution.execution.LONG_RUN", 1)  # "auto" would compile
    trainer = watched(Roots, compile=compile_, detect_anomaly=True)
    text = r"(?s)Traceback of forward call that caused the error:.* in loss\n.*torch.sqrt"
    with (
        pytest.warns(UserWarning, match=text),
        pytest.raises(RuntimeError, match="Function 'SqrtBackward0' returned nan values in its 0th output"),
    ):
        trainer.run()
    assert trainer.algorithm.plan.runtime.compile is False
    if compile_ is False:
        with pytest.raises(NonFiniteError, match="the gradient of"):
            watched(Roots, compile=False).run()


def test_a_run_is_restored_to_be_looked_at_more_closely(tmp_path: Path) -> None:
    first = build("sac")
    first.execute_epoch()
    first.state.runtime = dataclasses.replace(first.state.runtime, compile=True)  # as that of a long run
    first.save(tmp_path / "checkpoint")
    profiler = rl.ProfilerParams(folder=str(tmp_path / "profile"), wait=0, active=1)
    again, seen = with_runtime("sac", detect_anomaly=True, profiler=profiler)
    again.restore(tmp_path / "checkpoint")
    again.run()
    assert {flag[4] for flag in seen} == {True}
    assert again.algorithm.plan.runtime.compile is False
    assert (tmp_path / "profile" / "trace.json").exists()
    again.save(tmp_path / "second")
    build("sac").restore(tmp_path / "second")
    with pytest.raises(rl.errors.CheckpointError, match=r"runtime was .* when it was saved"):
        with_runtime("sac", deterministic=True)[0].restore(tmp_path / "second")


def test_cuda_needs_its_workspace_to_be_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, runtime = torch.device("cuda", 0), rl.RuntimeParams(deterministic=True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    check_deterministic(runtime, torch.device("cpu"))
    check_deterministic(rl.RuntimeParams(), cuda)
    with pytest.raises(ParamsError) as caught:
        check_deterministic(runtime, cuda)
    assert str(caught.value) == (
        "RuntimeParams.deterministic: needs the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8 for networks on "
        "cuda:0; got True (bool). Set it before the program starts."
    )
    for value in (":4096:8", ":16:8"):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
        check_deterministic(runtime, cuda)
