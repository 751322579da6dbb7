"""The settings of PyTorch that hold while a trainer runs, and are restored afterwards."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, cast

import torch

from rltrainer.nets.linear import Library, large_products_by
from rltrainer.plan import RuntimeParams
from rltrainer.updates.compiled_step import tracing_gradients

WORKSPACES = (":4096:8", ":16:8")
"""Values of CUBLAS_WORKSPACE_CONFIG with which cuBLAS gives the same bits each time."""


@contextlib.contextmanager
def running_as(chosen: RuntimeParams, asked: RuntimeParams, tf32: bool | None = None) -> Iterator[None]:
    """Compute inside with the threads, the library and the flags that `asked`, a run's `RuntimeParams`, came to.

    Args:
        chosen: what they came to.
        asked: what was asked for.
        tf32: `PrecisionParams.tf32`.
    """
    count, before = cast(int | None, chosen.num_threads), torch.get_num_threads()
    if count is None or (count > before and asked.num_threads == "auto"):
        count = before
    with contextlib.ExitStack() as restored:
        if count != before:
            restored.callback(torch.set_num_threads, before)
            torch.set_num_threads(count)
        restored.enter_context(large_products_by(cast(Library, chosen.matrix_library)))
        if asked.deterministic:
            restored.enter_context(_deterministic())
        if tf32 is not None:
            restored.enter_context(_tf32(tf32))
        if chosen.compile is True:
            restored.enter_context(tracing_gradients())
        if asked.detect_anomaly:
            restored.enter_context(torch.autograd.set_detect_anomaly(True))
        yield


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    from torch._inductor import config  # which has a flag of its own, as kernels are chosen by measuring

    cudnn, mode = torch.backends.cudnn, torch.get_deterministic_debug_mode()
    before = config.deterministic, cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        config.deterministic, cudnn.deterministic, cudnn.benchmark = before


@contextlib.contextmanager
def _tf32(is_allowed: bool) -> Iterator[None]:
    matmul, cudnn = torch.backends.cuda.matmul, cast(Any, torch.backends.cudnn)  # torch types only the older flags
    before = matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    # PyTorch has an older flag beside, refuses to read it where the two differ, and reads it itself when it compiles.
    matmul.allow_tf32 = cudnn.allow_tf32 = is_allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before[0] == "tf32", before[1] == "tf32"
        matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before


def check_deterministic(runtime: RuntimeParams, device: torch.device) -> None:
    """Check that `RuntimeParams.deterministic` can be had on a device.

    Raises:
        ParamsError: cuBLAS was not told to give the same bits each time, which it is by an environment variable that
            it reads once.
    """
    if runtime.deterministic and device.type == "cuda" and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in WORKSPACES:
        rule = f"needs the environment variable CUBLAS_WORKSPACE_CONFIG={WORKSPACES[0]} for networks on {device}"
        runtime.raise_invalid("deterministic", rule, "Set it before the program starts.")
