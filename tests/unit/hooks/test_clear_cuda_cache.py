"""Unused memory goes back to the GPU at intervals."""

import math
from typing import Any

import pytest
import torch

from rltrainer.errors import ParamsError
from rltrainer.hooks import ClearCudaCache
from tests.unit.hooks.fake_run import FakeRun


@pytest.mark.parametrize(("has_cuda", "cleared_after"), [(True, [2, 4]), (False, [])])
def test_at_intervals_where_there_is_a_gpu(
    has_cuda: bool, cleared_after: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, run, cleared = ClearCudaCache(every=2), FakeRun(), list[int]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: cleared.append(run.training_step))
    for _ in range(5):
        run.advance()
        hook.post_steps(run)
    assert cleared == cleared_after


@pytest.mark.gpu
def test_memory_is_given_back() -> None:
    hook, run = ClearCudaCache(every=1), FakeRun()
    held = torch.zeros(1 << 26, device="cuda")
    del held
    before = torch.cuda.memory_reserved()
    run.advance()
    hook.post_steps(run)
    assert torch.cuda.memory_reserved() <= before - (1 << 28)


@pytest.mark.parametrize("value", [-1, 0, math.inf, math.nan, "", None, True, []])
def test_the_interval(value: Any) -> None:
    with pytest.raises(ParamsError, match=r"ClearCudaCache\.every: must be a positive integer, of training steps, or"):
        ClearCudaCache(every=value)
