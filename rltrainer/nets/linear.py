"""Modules without the overhead of `nn.Module`, and large products by the faster library, by private API of torch."""

import itertools
import logging
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_not
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

Library = Literal["torch", "onednn"]

# Multiplications; in smaller products, the call costs more than it saves.
MIN_PRODUCT = 2**20
_HAS_ONEDNN: bool = torch.backends.mkldnn.is_available() and hasattr(  # type: ignore[no-untyped-call]  # torch's
    torch.ops.mkldnn, "_linear_pointwise"
)


# PyTorch gives float32 products to MKL, which takes its AVX2 kernels on processors of other makers: 350 us instead of
# oneDNN's 165 for 256 x 256 x 256 on an AMD EPYC of family 26 (Zen 5). One of family 25 (Zen 4) runs an instruction of
# AVX-512 as two halves: 336 us with MKL, 341 with oneDNN, and smaller products take MKL half to nine tenths of the
# time. On an Intel Xeon with AVX-512, MKL takes all of it, and oneDNN makes a step of SAC or TD3 1.2 to 1.5 times
# slower. The two differ in rounding only.
def faster_library(instructions: str, processor: str) -> Library:
    """Return the library that multiplies large float32 matrices faster, by a rule, as no measurement is repeatable."""
    family = re.search(r"Family (\d+)", processor)
    is_wide = "AuthenticAMD" in processor and family is not None and int(family[1]) >= 26
    return "onednn" if is_wide and instructions == "AVX512" and _HAS_ONEDNN else "torch"


def choose_library(asked: Literal["auto"] | Library, chosen: Literal["auto"] | Library) -> Library:
    """Return a run's library. `chosen` is `asked` in a new run, and the earlier library in a resumed run."""
    log = logging.getLogger("rltrainer")
    if chosen == "auto":
        log.info("matrix_library='auto': large float32 products on the CPU are left to %r", _FASTER)
        return _FASTER
    if chosen == "onednn" and not _HAS_ONEDNN:
        text = "matrix_library=%r: large products were oneDNN's, which this PyTorch lacks; sums may round differently"
        log.warning(text, asked)
        return "torch"
    return chosen


@contextmanager
def large_products_by(library: Library) -> Iterator[None]:
    """Give large products to this library inside."""
    global _uses_onednn
    before, _uses_onednn = _uses_onednn, library == "onednn"
    try:
        yield
    finally:
        _uses_onednn = before


class Linear(nn.Linear):
    """`nn.Linear` by `linear`, with parameters found in 0.1 us instead of the 1 us of `nn.Module`'s lookup."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        own = self._parameters
        if "weight" in own and "bias" in own:
            return linear(x, own["weight"], own["bias"])  # type: ignore[arg-type]  # a Linear's
        return linear(x, self.weight, self.bias)  # pruned or parametrised: one of them is computed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias` [..., out_features] for x [..., in_features] and a weight of any strides."""
    # Most layers are small: the two cheap conditions come first, and save the call.
    if _uses_onednn and x.numel() * weight.shape[0] > MIN_PRODUCT and is_large(x, weight.shape[0]):
        return torch.ops.rltrainer.linear(x, weight, bias)  # type: ignore[no-any-return]  # operators are untyped
    return functional.linear(x, weight, bias)


def is_large(x: Tensor, out_features: int) -> bool:
    """Return whether oneDNN computes a layer of this width on x [B, in_features]."""
    return (
        x.numel() * out_features > MIN_PRODUCT
        and _uses_onednn
        and x.dim() == 2
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")  # bf16 products are oneDNN's anyway
    )


def _processor() -> str:
    """Return a text with the processor's family and maker, such as `Family 26, AuthenticAMD`."""
    cpuinfo = Path("/proc/cpuinfo")  # on Linux; elsewhere the platform's text may hold both
    text = cpuinfo.read_text(errors="replace") if cpuinfo.is_file() else ""
    found = dict(re.findall(r"^(vendor_id|cpu family)\s*: (.+)$", text, re.MULTILINE))
    return f"Family {found['cpu family']}, {found['vendor_id']}" if len(found) == 2 else platform.processor()


_FASTER = faster_library(torch.backends.cpu.get_cpu_capability(), _processor())
_uses_onednn = _FASTER == "onednn"


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
# oneDNN is given the strides: the transposed operands of gradients are not copied.
_LIBRARY.impl("linear", lambda *args: torch.ops.mkldnn._linear_pointwise(*args, "none", [], ""), "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("rltrainer::linear", lambda x, w, bias: x.new_empty(len(x), len(w)), lib=_LIBRARY)
torch.library.register_autograd(
    "rltrainer::linear", _gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2]),
    lib=_LIBRARY,
)  # fmt: skip


class HasBatchStats(nn.Module):
    """Parent of modules with a second argument, `batch_stats`: whether they use the statistics of the batch."""

    # An argument and no mode of the module: one step passes through a network with either, and a bool is a constant of
    # a compiled step.


class Chain(nn.Sequential):
    """`nn.Sequential` by `run_through`, which hands `batch_stats` on to the modules that take it."""

    def forward(self, x: Any, batch_stats: bool = False) -> Any:
        """Apply the modules in turn."""
        if not batch_stats:
            return run_through(self._modules.values(), x)
        for module in self:
            x = module(x, True) if isinstance(module, HasBatchStats | Chain) else module(x)
        return x


def run_through(modules: Iterable[nn.Module], x: Any) -> Any:
    """Apply modules in turn; while no hook was ever set, 0.6 us a module sooner than by calls."""
    if RemovableHandle.next_id or torch.compiler.is_compiling():
        for module in modules:
            x = module(x)
    else:
        for module in modules:
            x = module.forward(x)
    return x


def hooks_of(module: nn.Module) -> list[Any]:
    """Return the dicts of a module's own hooks."""
    return [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks]


class ModuleTree:
    """The modules of some networks, each once (`modules`), and a check for changes of 1 to 2 us (`look`)."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._networks, self._newest_hook = networks, -1
        self._find()

    def look(self) -> list[Any]:
        """Return modules, parameters and hook numbers; the same list object while nothing has changed."""
        objects = list(itertools.chain.from_iterable(map(dict.values, self._holders)))
        newest = RemovableHandle.next_id
        has_changed = len(objects) != len(self._objects) or any(map(is_not, objects, self._objects))
        if newest != self._newest_hook or self._hook_numbers:  # else there was no hook, and none was added since
            self._newest_hook = newest
            has_changed |= list(itertools.chain.from_iterable(self._hooks)) != self._hook_numbers
        if has_changed:
            self._find()
        return self._seen

    def _find(self) -> None:
        self.modules = list(dict.fromkeys(part for network in self._networks for part in network.modules()))
        self._holders: list[dict[str, Any]] = [module._modules for module in self.modules]
        self._holders += [module._parameters for module in self.modules if module._parameters]
        self._objects = list(itertools.chain.from_iterable(map(dict.values, self._holders)))
        self._hooks = [hooks for module in self.modules for hooks in hooks_of(module)]
        self._hook_numbers = list(itertools.chain.from_iterable(self._hooks))  # unique in a program
        self._newest_hook = RemovableHandle.next_id
        self._seen: list[Any] = [*self._objects, *self._hook_numbers]
