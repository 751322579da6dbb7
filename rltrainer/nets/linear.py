"""Linear layers on the CPU: large float32 products are done by oneDNN, which uses all of AVX-512 on any processor.

PyTorch gives float32 products to MKL, which takes its AVX2 kernels on processors of other makers: 350 us instead of 165
for 256 x 256 x 256. The two differ in rounding only.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MIN_PRODUCT = 2**20
"""From this many multiplications on. Below, the call costs more than it saves."""

_HAS_ONEDNN = (
    torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`.

    Args:
        x: [B, in_features], or with further leading axes.
        weight: [out_features, in_features], of any strides.
        bias: [out_features].
    """
    if is_large(x, weight.shape[0]):
        return torch.ops.rltrainer.linear(x, weight, bias)  # type: ignore[no-any-return]  # operators are untyped
    return functional.linear(x, weight, bias)


def is_large(x: Tensor, out_features: int) -> bool:
    """Return whether oneDNN is faster at a layer of this width on x [B, in_features]."""
    return (
        x.numel() * out_features > MIN_PRODUCT  # first: most layers of a collection end here
        and _HAS_ONEDNN
        and x.dim() == 2
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")  # bf16 products are oneDNN's anyway
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # Strides are described to oneDNN: transposed operands, which gradients consist of, are not copied.
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def _shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(len(x), len(weight))


def _keep_operands(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad
    return (
        torch.ops.rltrainer.linear(gradient, weight.t(), None) if of_x else None,
        torch.ops.rltrainer.linear(gradient.t(), x.t(), None) if of_weight else None,
        gradient.sum(0) if of_bias else None,
    )


# An operator of our own, because `_linear_pointwise` has no gradient; a graph holds it as one node.
_LIBRARY = torch.library.Library("rltrainer", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's, as below
_LIBRARY.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.impl("linear", _product, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("rltrainer::linear", _shape, lib=_LIBRARY)
torch.library.register_autograd("rltrainer::linear", _gradients, setup_context=_keep_operands, lib=_LIBRARY)
