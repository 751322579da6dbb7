"""The way from `trainer.run` to a gradient is short: who reads a training step, or its profile, meets few frames."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.resume.runs import RUNS, build

OURS = str(Path(rl.__file__).parent)
ON_POLICY = 8  # run, execute_epoch, _update, update, run, _step, gradient_step, step
OFF_POLICY = 9


def frames_of_ours() -> list[str]:
    """Return our functions on the stack, the outermost first; a comprehension is one of them."""
    found, frame = [], sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back  # type: ignore[assignment]  # None after the last
    return found[::-1]


@pytest.mark.parametrize("name", RUNS)
def test_few_frames_lie_between_the_run_and_a_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[str] = []
    grad = torch.autograd.grad

    def counted(*args: Any, **options: Any) -> Any:
        found = frames_of_ours()
        if found[-1] == "Optimizer.step":  # else a trust region, whose conjugate gradients are a way of their own
            longest[:] = max(longest, found, key=len)
        return grad(*args, **options)

    trainer = build(name, max_epochs=1)
    monkeypatch.setattr("torch.autograd.grad", counted)
    trainer.run()
    assert longest[0] == "Trainer.run"
    assert len(longest) <= (ON_POLICY if isinstance(trainer, rl.OnPolicyTrainer) else OFF_POLICY), longest
