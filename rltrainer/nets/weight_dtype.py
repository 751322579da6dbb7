"""The number format of weights: float32, or float64 where a trainer says so (`PrecisionParams.weights`).

Networks, their statistics, optimizers and what updates compute are in it. What comes in and goes out is float32 as
ever: observations, actions, memories, buffers and random numbers. So who asks a policy need not know its format.

Scalars that are no parameters, such as counts, stay float32. PyTorch 2.13 takes a float64 scalar that a compiled graph
is given for a number of Python's, and leaves out what is done to it in place.
"""

import dataclasses
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from rltrainer.errors import CheckpointError, readable
from rltrainer.types import State
from rltrainer.validation.field_rules import Rule

FULL = (torch.float32, torch.float64)
WeightDtype = Annotated[
    torch.dtype, Rule("torch.float32 or torch.float64", lambda v: isinstance(v, torch.dtype) and v in FULL)
]
ENTRY = "weight_dtype"
"""The name in files; those of float32 do without."""
T = TypeVar("T")


def full_precision(x: Tensor) -> Tensor:
    """Return a tensor in float32 at least: what networks give to distributions and losses."""
    return x if x.dtype in FULL else x.float()


def convert(tensor: Tensor, dtype: torch.dtype) -> None:
    """Bring a parameter or vector to a format in place: it stays the same object; half precisions and integers stay."""
    if tensor.dtype in FULL and (tensor.dim() or isinstance(tensor, nn.Parameter)):
        tensor.data = tensor.data.to(dtype)


def cast(value: T, dtype: torch.dtype) -> T:
    """Return a value whose float32 and float64 tensors are in a format; those in its items or fields, too."""
    made: Any = value
    if isinstance(value, Tensor):
        made = value.to(dtype) if value.dtype in FULL else value
    elif isinstance(value, dict):
        made = {name: cast(item, dtype) for name, item in value.items()}
    elif isinstance(value, list | tuple):
        items = [cast(item, dtype) for item in value]
        made = type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        made = dataclasses.replace(value, **{name: cast(getattr(value, name), dtype) for name in names})
    return made  # type: ignore[no-any-return]  # of the same type as the value


def set_weight_dtype(module: nn.Module, dtype: torch.dtype) -> None:
    """Bring parameters and buffers to a format in place, but for those that a module keeps (`keeps_dtype`).

    What has an attribute `weight_dtype`, such as an encoder, is told.
    """
    part: Any
    for part in module.modules():
        kept = getattr(part, "keeps_dtype", ())
        own: list[tuple[str, Tensor]] = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, tensor in own:
            if name not in kept:
                convert(tensor, dtype)
        if hasattr(type(part), "weight_dtype"):
            part.weight_dtype = dtype


def dtype_entry(dtype: torch.dtype) -> State:
    """Return what a saved state says of its format: nothing of float32."""
    return {} if dtype is torch.float32 else {ENTRY: dtype_name(dtype)}


def saved_dtype(name: str, state: State) -> torch.dtype:
    """Return the format that a saved state says it is in.

    Raises:
        CheckpointError: there is no such format; the text begins with `name`.
    """
    found = state.get(ENTRY, "float32")
    dtype = next((dtype for dtype in FULL if isinstance(found, str) and found == dtype_name(dtype)), None)
    if dtype is None:
        raise CheckpointError(f"{name}.{ENTRY}: expected 'float32' or 'float64', found {readable(found)}")
    return dtype


def check_dtype(name: str, own: torch.dtype, state: State) -> None:
    """Check that a saved state is in a policy's or algorithm's own format.

    Raises:
        CheckpointError: it is not; the text begins with `name`, and says what to do.
    """
    saved = saved_dtype(name, state)
    if saved is not own:
        text = f"expected weights in {dtype_name(own)}, found {dtype_name(saved)}"
        raise CheckpointError(f"{name}: {text}. Call set_weight_dtype({saved}) before, or make it with rl.load.")


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name without the module: `float64`."""
    return str(dtype).removeprefix("torch.")
