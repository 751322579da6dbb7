"""TF32: set while a trainer runs, restored afterwards, whoever set it how."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.resume.runs import build

MATMUL: Any = torch.backends.cuda.matmul
CUDNN: Any = torch.backends.cudnn


def flags() -> tuple[Any, ...]:
    return MATMUL.fp32_precision, CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = flags()
    yield
    MATMUL.allow_tf32, CUDNN.allow_tf32 = before[0] == "tf32", before[1] == "tf32"
    MATMUL.fp32_precision, CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision = before
    assert flags() == before


def seen_in_a_run(tf32: bool | None, error: bool = False) -> list[tuple[Any, ...]]:
    """Return the flags during a run, in a training step and in a test step."""
    seen: list[Any] = []

    def look(epoch: int, env_step: int) -> None:
        seen.append((MATMUL.allow_tf32, CUDNN.allow_tf32, *flags()))
        if error:
            raise ZeroDivisionError

    trainer = build("ppo", max_epochs=1, precision=rl.PrecisionParams(tf32=tf32), training_fn=look)
    with pytest.raises(ZeroDivisionError) if error else nullcontext():
        trainer.run()
    return seen


@pytest.mark.parametrize("error", [False, True])
def test_it_is_set_while_the_trainer_runs(error: bool) -> None:
    before = flags()
    seen = seen_in_a_run(True, error)
    assert set(seen) == {(True, True, "tf32", "tf32", "tf32")}
    assert flags() == before
    seen = seen_in_a_run(False, error)
    assert {flag[:2] for flag in seen} == {(False, False)}
    assert "tf32" not in seen[0]
    assert flags() == before
    assert (MATMUL.allow_tf32, CUDNN.allow_tf32) == (before[0] == "tf32", before[1] == "tf32")


def test_what_another_program_set_is_restored_and_none_leaves_it() -> None:
    MATMUL.fp32_precision = "tf32"  # after which the older flag cannot be read
    before = flags()
    seen_in_a_run(False)
    assert flags() == before
    MATMUL.allow_tf32 = False
    before = flags()
    seen_in_a_run(True)
    assert flags() == before
    assert not MATMUL.allow_tf32
    assert {flag[2:] for flag in seen_in_a_run(None)} == {before}
