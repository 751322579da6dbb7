"""Multi-layer perceptrons: one network, or an ensemble of equal ones as batched matrix products."""

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rltrainer.errors import ParamsError
from rltrainer.functional.scalars import computed_once
from rltrainer.nets.linear import MIN_PRODUCT, Chain, HasBatchStats, Linear, hooks_of, is_large, run_through
from rltrainer.nets.weight_dtype import full_precision

# Makes the activation of one layer, as `nn.ReLU`, or `nn.LayerNorm` from the number of the layer's features.
Activation = Callable[[], nn.Module] | Callable[[int], nn.Module]
# Members of an ensemble: each may have objects of its own, and a file could ask for any number of them.
MAX_MEMBERS = 1000
SQRT_2 = 2**0.5
TModule = TypeVar("TModule", bound=nn.Module)


class MLP(nn.Module):
    """Linear layers of these sizes, the input's first, with an activation after each, the last one too."""

    def __init__(self, sizes: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.out_features = sizes[-1]
        self.layers = nn.ModuleList(Linear(*pair) for pair in itertools.pairwise(sizes))
        self.activations = nn.ModuleList(make_activation(activation, size, "MLP") for size in sizes[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, sizes[0]] to [B, sizes[-1]]."""
        parts = self._modules  # without `nn.Module`'s attribute lookup: 2 us of a forward pass
        pairs = zip(parts["layers"]._modules.values(), parts["activations"]._modules.values(), strict=True)  # type: ignore[union-attr]  # both are there
        modules = itertools.chain.from_iterable(pairs)
        return run_through(modules, x)  # type: ignore[no-any-return]  # of whatever the modules make


def make_activation(
    activation: Activation, num_features: int, owner: str, num_members: int | None = None
) -> nn.Module:  # fmt: skip
    """Return a new activation for a layer of this width; a `ParamsError` in the name of `owner` if it is no module.

    `num_members` networks share one, or have one each where it has weights or mixes the rows of a batch.
    """
    if num_members is not None:
        first = make_activation(activation, num_features, owner)
        mixes_rows = any(isinstance(part, nn.BatchNorm1d | nn.InstanceNorm1d) for part in first.modules())
        if not mixes_rows and not [*first.parameters(), *first.buffers()]:
            return first
        others = (make_activation(activation, num_features, owner) for _ in range(num_members - 1))
        return PerMember([first, *others])
    make: Any = activation
    made = cause = None
    needs_width = False
    # Not callable, or written in C without a signature: the call's own error says more.
    with contextlib.suppress(TypeError, ValueError):
        required = [p.kind for p in inspect.signature(make).parameters.values() if p.default is p.empty]
        needs_width = sum(kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD) for kind in required) == 1
    try:
        made = make(num_features) if needs_width else make()
    except TypeError as error:
        cause = error
    if not isinstance(made, nn.Module) or any(map(nn.parameter.is_lazy, made.parameters())):
        rule = "must make a module, from no argument or from the number of a layer's features"
        hint = "Pass a class such as nn.ReLU or nn.LayerNorm, no instance, function or lazy module."
        raise ParamsError.about(owner, "activation", rule, activation, hint) from cause
    return made


def orthogonal_(module: TModule, gain: float) -> TModule:
    """Initialise every linear layer and convolution orthogonally with zero bias, and return the module."""
    # Huang et al. 2022, The 37 Implementation Details of PPO, detail 2 of the core and of the Atari details.
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            orthogonal_weight_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def orthogonal_weight_(weight: Tensor, gain: float = 1.0) -> None:
    """Initialise one weight orthogonally."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # by more, a decomposition rounds otherwise: a network must not depend on its machine
    try:
        nn.init.orthogonal_(weight, gain)
    finally:
        torch.set_num_threads(num_threads)


class EnsembleLinear(nn.Module):
    """E linear layers side by side; each is initialised as `nn.Linear`."""

    def __init__(self, num_members: int, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(num_members, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, out_features).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map [E, B, in_features] to [E, B, out_features]; a shorter x is for the first members."""
        if len(x) < len(self.weight):
            return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])
        return torch.baddbmm(self.bias, x, self.weight)


class PerMember(nn.ModuleList):
    """One activation for each of E members, which share neither its weights nor its statistics."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [E, B, features] to the same; a shorter x is for the first members."""
        return torch.stack([activation(member) for activation, member in zip(self, x, strict=False)])


class Ensemble(nn.Module):
    """E networks with K outputs, evaluated together; more than `MAX_MEMBERS` are a `ParamsError`.

    The tensors of `layers` have an axis of members in front.
    """

    def __init__(self, num_members: int, num_outputs: int, layers: Iterator[nn.Module]) -> None:
        super().__init__()
        if num_members > MAX_MEMBERS:
            rule = f"must be at most {MAX_MEMBERS}"
            raise ParamsError.about(type(self).__name__, "num_members", rule, num_members)
        self.num_members, self.num_outputs = num_members, num_outputs
        self.layers: nn.Sequential = Chain(*layers)
        sizes = [layer.weight[0].numel() for layer in self.layers if isinstance(layer, EnsembleLinear)]
        self._widest = max(sizes, default=0)

    def forward(self, x: Tensor, num_members: int | None = None, batch_stats: bool = False) -> Tensor:
        """Map [B, in_features] to outputs [E, B], or [E, B, K] for K > 1, of all or of the first `num_members`.

        `batch_stats` uses the statistics of the batch, in layers that have such, and is for all members.
        """
        members = [x] * (num_members or self.num_members)
        # Single products may be large enough for oneDNN, which does not help batched ones.
        is_one_by_one = len(x) * self._widest > MIN_PRODUCT and is_large(x, self._widest // x.shape[-1])
        if is_one_by_one:  # unless a hook waits for a call
            hooks = [hooks_of(layer) for layer in self.layers if isinstance(layer, EnsembleLinear)]
            is_one_by_one = not any(map(any, hooks))
        if is_one_by_one:
            outputs = self._one_by_one(members, batch_stats)
        else:
            outputs = self.layers(x.expand(len(members), *x.shape), batch_stats)
        return full_precision(outputs.squeeze(-1) if self.num_outputs == 1 else outputs)

    def _one_by_one(self, members: list[Tensor], batch_stats: bool) -> Tensor:
        for layer in self.layers:
            if isinstance(layer, EnsembleLinear):
                # The other conditions of `is_large` were checked for the widest layer.
                is_small = members[0].numel() * layer.weight.shape[2] <= MIN_PRODUCT
                product: Any = functional.linear if is_small else torch.ops.rltrainer.linear
                parts = zip(members, layer.weight.unbind(), layer.bias.unbind(), strict=False)
                members = [product(member, weight.t(), bias.squeeze(0)) for member, weight, bias in parts]
            elif isinstance(layer, HasBatchStats):
                members = list(layer(torch.stack(members), batch_stats))
            else:
                activations = layer if isinstance(layer, PerMember) else [layer] * len(members)
                members = [activation(member) for activation, member in zip(activations, members, strict=False)]
        return torch.stack(members)


class EnsembleMLP(Ensemble):
    """E perceptrons; `sizes` are the features of the input and of each hidden layer."""

    def __init__(self, num_members: int, sizes: Sequence[int], activation: Activation, num_outputs: int = 1) -> None:
        def layers() -> Iterator[nn.Module]:
            for size_in, size_out in itertools.pairwise(sizes):
                yield EnsembleLinear(num_members, size_in, size_out)  # first: it draws random numbers, as Dropout
                yield make_activation(activation, size_out, "EnsembleMLP", num_members)
            yield EnsembleLinear(num_members, sizes[-1], num_outputs)

        super().__init__(num_members, num_outputs, layers())


class Dropout(nn.Module):
    """Sets each number to 0 with probability p in train mode, and scales the others by 1 / (1 - p)."""

    # No random number of torch's is drawn: each mask follows from a counter, which is saved with the weights and grows
    # by one with every mask. So compiled and uncompiled steps drop the same units, and a resumed run continues with the
    # next mask. Several streams count alike, each from its own offset. Source: Srivastava et al. 2014, Dropout.
    num_masks: Tensor
    stream: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        # A random start, so that each layer draws its own masks.
        self.register_buffer("num_masks", torch.randint(2**31, ()))
        # A tensor, so that all streams run the same compiled code; not saved.
        self.register_buffer("stream", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, ...] to the same."""
        if not self.training:
            return x
        self.num_masks += 1
        position = torch.arange(x.numel(), device=x.device)
        # A graph that hashes the counter again for each number takes twice as long to compile, and longer to run.
        seed = computed_once(_mix(self.num_masks + self.stream * 0x9E3779B1))  # golden ratio: far apart modulo 2**32
        number = _mix(seed + position).view(x.shape)
        return torch.where(number >= self.p * 2**32, x / (1 - self.p), 0.0)


def _mix(x: Tensor) -> Tensor:
    """Hash integers to pseudo-random ones in [0, 2**32), in int64 without overflow."""
    for _ in range(2):
        x = x & 0xFFFFFFFF
        x = ((x >> 16) ^ x) * 0x45D9F3B
    x = x & 0xFFFFFFFF
    return (x >> 16) ^ x
