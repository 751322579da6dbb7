"""A gradient step as a plan asks for it: its number format, its groups, and the norms of gradients as metrics."""

import contextlib
import platform
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rltrainer.nets.target import Accumulation
from rltrainer.plan import UpdatePlan
from rltrainer.types import UpdateResult
from rltrainer.updates.optimizer import Optimizer

Step = Callable[..., Any]


def add_norms(result: object, optimizers: Mapping[str, Optimizer]) -> None:
    """Add to the metrics of a step the norms of its gradients, for the optimizers that took one."""
    for name, optimizer in optimizers.items():
        if optimizer.grad_norm is not None and isinstance(result, UpdateResult):
            result.metrics[f"{name}_grad_norm".lstrip("_")] = optimizer.grad_norm
        optimizer.grad_norm = None


def planned_step(
    step: Step, plan: UpdatePlan, device: torch.device, optimizers: Mapping[str, Optimizer], groups: Accumulation | None
) -> Step:
    """Return a step in the number format of a plan, with the norms of its optimizers as metrics, and in its groups."""
    amp, logged = plan.precision.amp, optimizers if plan.update.logs_norms else {}
    is_x86 = amp == "bf16" and device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64")
    if is_x86 and not torch.cpu.get_capabilities().get("avx512_bf16"):
        # Seen on an Intel Xeon with AVX-512 and without bf16: SAC's eager step; compiled ones lose more.
        text = "this processor has no bf16 instructions; bf16 will be slower than float32, about 1.7 times or more"
        warnings.warn(f"PrecisionParams.amp: {text}. Leave amp out, it is None then.", stacklevel=4)
    if amp is None and groups is None and not logged:
        return step

    def step_of_plan(*args: Any) -> Any:
        if groups is not None:
            *args, groups.applies = args  # type: ignore[assignment]  # the last argument: whether its group is full
        with autocast(device, amp):
            result = step(*args)
        add_norms(result, logged)
        if groups is not None:
            groups.applies = True
        return result

    return step_of_plan


def autocast(device: torch.device, amp: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which products have a format ("bf16", "fp16"); None changes nothing."""
    # No cache: it would keep the rounded copies of weights that the step itself changes.
    dtype = torch.bfloat16 if amp == "bf16" else torch.float16
    return contextlib.nullcontext() if amp is None else torch.autocast(device.type, dtype=dtype, cache_enabled=False)
