"""The number format of weights: float32, or float64 where a trainer says so (`PrecisionParams.weights`)."""

from typing import Annotated, TypeVar

import torch
from torch import Tensor, nn

from rltrainer.errors import CheckpointError, readable
from rltrainer.tree import map_tensors
from rltrainer.types import State
from rltrainer.validation.field_rules import Rule

# Networks, their statistics, optimizers and the computations of updates are in it. Observations, actions, memories,
# buffers and random numbers are always float32: acting, and the start of an update, cast them.
FULL = (torch.float32, torch.float64)
# The key in files; files of float32 lack it.
ENTRY = "weight_dtype"
IsFull = Rule("torch.float32 or torch.float64", lambda v: isinstance(v, torch.dtype) and v in FULL)
WeightDtype = Annotated[torch.dtype, IsFull]
T = TypeVar("T")


def full_precision(x: Tensor) -> Tensor:
    """Return the output [...] of a network in float32 at least, for distributions and losses."""
    return x if x.dtype in FULL else x.float()


def convert(tensor: Tensor, dtype: torch.dtype) -> None:
    """Convert a parameter or vector, of any shape, in place; half precisions and integers stay."""
    # Scalars that are no parameters, such as counts, stay float32: PyTorch 2.13 takes a float64 scalar of a compiled
    # graph for a number of Python's, and leaves out operations on it in place.
    if tensor.dtype in FULL and (tensor.dim() or isinstance(tensor, nn.Parameter)):
        tensor.data = tensor.data.to(dtype)


def cast(value: T, dtype: torch.dtype) -> T:
    """Return a value with its float32 and float64 tensors in a format, also in its items and fields."""
    made: T = map_tensors(lambda x: x.to(dtype) if x.dtype in FULL else x, value)
    return made


def set_weight_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Convert parameters and buffers in place, except those in `keeps_dtype`, and set all `weight_dtype`."""
    for part in module.modules():
        own: list[tuple[str, Tensor]] = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, tensor in own:
            if name not in getattr(part, "keeps_dtype", ()):
                convert(tensor, dtype)
        if hasattr(type(part), "weight_dtype"):
            part.weight_dtype = dtype  # type: ignore[assignment]  # of a policy or an encoder


def dtype_entry(dtype: torch.dtype) -> State:
    """Return the entry of a saved state; empty for float32."""
    return {} if dtype is torch.float32 else {ENTRY: dtype_name(dtype)}


def saved_dtype(name: str, state: State, own: torch.dtype | None = None) -> torch.dtype:
    """Return the format of a saved state; a `CheckpointError` if there is no such, or if it is not `own`."""
    found = state.get(ENTRY, "float32")
    dtype = next((dtype for dtype in FULL if found == dtype_name(dtype)), None)
    if dtype is None:
        raise CheckpointError(f"{name}.{ENTRY}: expected 'float32' or 'float64', found {readable(found)}")
    if own not in (None, dtype):
        text = f"expected weights in {dtype_name(own)}, found {found}"
        raise CheckpointError(f"{name}: {text}. Call set_weight_dtype({dtype}) before, or make it with rl.load.")
    return dtype


def dtype_name(dtype: torch.dtype | None) -> str:
    """Return the name without the module: `float64`."""
    return str(dtype).removeprefix("torch.")
