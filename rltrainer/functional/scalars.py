"""Numbers that a compiled function needs for every element of a vector."""

import torch
from torch import Tensor


def computed_once(scalar: Tensor) -> Tensor:
    """Return a number `[]` as it is, and have a graph on the CPU compute it before the loops that read it."""
    # Otherwise the compiler computes it again for every 16 elements of a vector: two powers of Adam's bias correction
    # took more time than the rest of the optimizer.
    # A graph stores a number before it reads a view of it by strides. The maximum is a new number: one taken out of a
    # vector would be looked for at the vector's first place.
    is_on_host = torch.compiler.is_compiling() and scalar.is_cpu
    return torch.maximum(scalar, scalar).as_strided((), ()) if is_on_host else scalar
