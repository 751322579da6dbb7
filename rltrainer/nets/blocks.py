"""Layers that hold features or weights at a scale: batch norms, rows of unit length, and networks of them.

Each layer is of one network, or of E members apart, whose tensors have an axis of members in front.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional

from rltrainer.nets.linear import Chain, HasBatchStats, Linear, is_large, linear
from rltrainer.nets.mlp import Activation, EnsembleLinear, make_activation, orthogonal_weight_
from rltrainer.nets.weight_dtype import full_precision

EPS = 1e-8  # the least length that a vector is divided by
RENORM_AFTER = 100_000  # passes (CrossQ)
SHIFT = 3.0  # c of SimbaV2


class BatchNorm(HasBatchStats):
    """Batch normalisation of F features.

    With `batch_stats`, features are standardised by mean and variance of the batch, through which the gradient flows,
    and the running statistics follow. Without it, which is what acting does, running statistics standardise and nothing
    changes. Variances are biased.

    With `renorm_after`, this is batch renormalisation (Ioffe 2017) from that many passes with `batch_stats` on: the
    result is brought near what the running statistics would give, by a factor r and a shift d without gradient.

    The constants are CrossQ's (Bhatt et al. 2024). Its authors' code leaves `EPS` out where it computes the shift; here
    it is the equation of the paper on batch renormalisation.
    """

    MOMENTUM, EPS = 0.01, 1e-3
    MAX_FACTOR, MAX_SHIFT = 3.0, 5.0  # r is in [1 / 3, 3], d in [-5, 5]
    not_negative = ("running_var", "num_passes")
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    num_passes: Tensor

    def __init__(
        self, num_features: int, num_members: int | None = None, renorm_after: int | None = None, bias: bool = True
    ) -> None:  # fmt: skip
        super().__init__()
        shape, self.renorm_after = _shape(num_features, num_members), renorm_after
        self.weight, zeros = nn.Parameter(torch.ones(shape)), torch.zeros(shape)
        if bias:
            self.bias = nn.Parameter(zeros)
        else:
            self.register_buffer("bias", zeros)
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("num_passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, batch_stats: bool = False) -> Tensor:
        """Map [B, F], or [E, B, F], to the same; without `batch_stats`, x may be of the first members."""
        x = full_precision(x)
        if not batch_stats:
            weight, bias = _first(x, self.weight), _first(x, self.bias)
            mean, var = _first(x, self.running_mean), _first(x, self.running_var)
            return (x - mean) * (weight / (var + self.EPS).sqrt()) + bias
        mean = x.mean(-2, keepdim=True)
        centred = x - mean
        var = centred.square().mean(-2, keepdim=True)
        std = (var + self.EPS).sqrt()
        weight, bias = self.weight, self.bias
        if self.renorm_after is not None:
            is_warm = self.num_passes >= self.renorm_after
            factor, shift = self._correction(mean.view_as(bias), std.view_as(bias), is_warm)
            weight, bias = weight * factor, weight * shift + bias
        self._follow(mean.view_as(bias), var.view_as(bias), x.shape[-2])
        return centred * (weight / std) + bias

    @torch.no_grad()
    def _correction(self, mean: Tensor, std: Tensor, is_warm: Tensor) -> tuple[Tensor, Tensor]:
        """Return r and d of a batch's mean and standard deviation (Ioffe 2017, algorithm 1); 1 and 0 before."""
        running_std = (self.running_var + self.EPS).sqrt()
        factor = (std / running_std).clamp(1 / self.MAX_FACTOR, self.MAX_FACTOR)
        shift = ((mean - self.running_mean) / running_std).clamp(-self.MAX_SHIFT, self.MAX_SHIFT)
        return torch.where(is_warm, factor, 1.0), torch.where(is_warm, shift, 0.0)

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, num_rows: int) -> None:
        """Move the running statistics towards a batch's; what is not finite there would stay for good."""
        is_finite = torch.isfinite(var)
        self.running_mean.lerp_(torch.where(is_finite, mean, self.running_mean), self.MOMENTUM)
        self.running_var.lerp_(torch.where(is_finite, var, self.running_var), self.MOMENTUM)
        self.num_passes += 1


class UnitBatchNorm(BatchNorm):
    """Batch normalisation in which weight and bias together have the length sqrt(F), after each step.

    As in FlashSAC (Kim et al. 2026), the running variance is unbiased, and epsilon smaller.
    """

    EPS = 1e-5

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, num_rows: int) -> None:
        super()._follow(mean, var * (num_rows / max(num_rows - 1, 1)), num_rows)

    @torch.no_grad()
    def project_(self) -> None:
        """Bring weight and bias back to their length."""
        length = torch.linalg.vector_norm(torch.cat([self.weight, self.bias], -1), dim=-1, keepdim=True)
        factor = math.sqrt(self.weight.shape[-1]) / length.clamp(min=EPS)
        self.weight.mul_(factor)
        self.bias.mul_(factor)


class UnitLinear(nn.Module):
    """A linear layer with rows of length 1, which start orthogonal and are brought back after each step.

    A layer before a norm learns nothing from its rows' lengths. If they may grow, its learning rate falls in effect.
    """

    def __init__(self, in_features: int, out_features: int, num_members: int | None = None, bias: bool = False) -> None:
        super().__init__()
        members = () if num_members is None else (num_members,)
        self.weight = nn.Parameter(torch.empty(*members, out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(_shape(out_features, num_members))) if bias else None
        with torch.no_grad():
            for rows in self.weight.view(-1, out_features, in_features):
                orthogonal_weight_(rows)
        self.project_()

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, in_features] to [B, out_features], or [E, B, in_features] of the first E members alike."""
        if self.weight.dim() == 2:
            return linear(x, self.weight, self.bias)
        weight = _first(x, self.weight)
        if is_large(x[0], weight.shape[1]):
            product = torch.stack([linear(*member, None) for member in zip(x, weight, strict=True)])
        else:
            product = x @ weight.mT
        return product if self.bias is None else product + _first(x, self.bias)

    @torch.no_grad()
    def project_(self) -> None:
        """Bring the rows back to length 1."""
        self.weight.copy_(unit(self.weight))


class Scaler(nn.Module):
    """Factors of F features that start at `initial`, and learn as a parameter that starts at `start` would.

    The parameter is the factor times `start / initial`: a small `start` makes Adam's steps large beside it.
    """

    def __init__(self, num_features: int, initial: float, start: float, num_members: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(_shape(num_features, num_members), start))
        self.ratio = initial / start

    def forward(self, x: Tensor) -> Tensor:
        """Scale [B, F], or [E, B, F]."""
        return x * (_first(x, self.weight) * self.ratio)


class Unit(nn.Module):
    """Scale features to length 1; with a `shift`, which is appended before, what the length was stays to be seen."""

    def __init__(self, shift: float | None = None) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., F] to the same, or to [..., F + 1] with a shift."""
        return unit(x if self.shift is None else functional.pad(x, (0, 1), value=self.shift))


class LerpBlock(nn.Module):
    """One step on the unit sphere from x towards a perceptron's output, at a learned rate of each feature: SimbaV2."""

    # h = f(x) / |f(x)|, x <- (x + a (h - x)) / |...| (Lee et al. 2025).
    def __init__(
        self, size: int, num_blocks: int, activation: Activation, num_members: int | None, expansion: int = 4
    ) -> None:  # fmt: skip
        super().__init__()
        wide, scale = expansion * size, math.sqrt(2 / size) / math.sqrt(expansion)
        self.widen = UnitLinear(size, wide, num_members)
        self.scaler = Scaler(wide, scale, scale, num_members)
        self.activation = make_activation(activation, wide, "NetParams", num_members)
        self.narrow = UnitLinear(wide, size, num_members)
        self.rate = Scaler(size, 1 / (num_blocks + 1), 1 / math.sqrt(size), num_members)

    def forward(self, x: Tensor) -> Tensor:
        """Map unit vectors [B, size], or [E, B, size], to the same."""
        hidden = self.activation(self.scaler(self.widen(x))) + EPS  # a vector of zeros has no direction
        return unit(x + self.rate(unit(self.narrow(hidden)) - x))


class UnitRMSNorm(nn.Module):
    """Scale features to a root mean square of 1, then by a weight, which has the length sqrt(F) after each step."""

    EPS = 1e-6

    def __init__(self, num_features: int, num_members: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_shape(num_features, num_members)))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, F], or [E, B, F], to the same."""
        x = full_precision(x)
        return x * (x.square().mean(-1, keepdim=True) + self.EPS).rsqrt() * _first(x, self.weight)

    @torch.no_grad()
    def project_(self) -> None:
        """Bring the weight back to its length."""
        self.weight.copy_(unit(self.weight) * math.sqrt(self.weight.shape[-1]))


class HiddenLayers(HasBatchStats):
    """The hidden layers of one network."""

    def __init__(self, layers: Iterator[nn.Module], out_features: int) -> None:
        super().__init__()
        self.layers, self.out_features = Chain(*layers), out_features

    def forward(self, x: Tensor, batch_stats: bool = False) -> Tensor:
        """Map [B, F] to [B, out_features]."""
        return self.layers(x, batch_stats)  # type: ignore[no-any-return]  # of what the layers make


class ResidualBlock(HiddenLayers):
    """Adds to x a perceptron's output, which has a batch norm before each activation: FlashSAC."""

    # x <- x + relu(BN(U relu(BN(U x)))), with U of unit rows (Kim et al. 2026).
    def __init__(self, size: int, activation: Activation, num_members: int | None, expansion: int = 4) -> None:
        def layers() -> Iterator[nn.Module]:
            for size_in, size_out in itertools.pairwise((size, expansion * size, size)):
                yield from (UnitLinear(size_in, size_out, num_members), UnitBatchNorm(size_out, num_members))
                yield make_activation(activation, size_out, "NetParams", num_members)

        super().__init__(layers(), size)

    def forward(self, x: Tensor, batch_stats: bool = False) -> Tensor:
        """Map [B, size], or [E, B, size], to the same."""
        return x + super().forward(x, batch_stats)


class SideBySide(nn.ModuleList):
    """Modules of the same input, with their outputs one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, F] to [B, features of all]."""
        return torch.cat([module(x) for module in self], -1)


def make_layers(
    norm: str, sizes: Sequence[int], activation: Activation, num_members: int | None = None
) -> Iterator[nn.Module]:  # fmt: skip
    """Yield the hidden layers of a `norm` of `NetParams`; `sizes` are the features of the input and of each layer."""
    size_in, *widths = sizes
    if norm == "unit_lerp":
        size = widths[0]
        scale = math.sqrt(2 / size)
        yield from (Unit(SHIFT), UnitLinear(size_in + 1, size, num_members), Scaler(size, scale, scale, num_members))
        yield Unit()
        yield from (LerpBlock(size, len(widths), activation, num_members) for size in widths)
    elif norm == "unit_residual":
        yield from (UnitBatchNorm(size_in, num_members), UnitLinear(size_in, widths[0], num_members))
        yield from (ResidualBlock(size, activation, num_members) for size in widths)
        yield UnitRMSNorm(widths[-1], num_members)
    else:
        yield from _normed_layers(norm, sizes, activation, num_members)


def make_output(norm: str, in_features: int, num_outputs: int, num_members: int | None = None) -> nn.Module:
    """Return the layer, or layers, from the last hidden layer to the outputs."""
    if norm == "unit_lerp":  # without an activation between them
        first = UnitLinear(in_features, in_features, num_members), Scaler(in_features, 1.0, 1.0, num_members)
        return Chain(*first, UnitLinear(in_features, num_outputs, num_members, bias=True))
    return _linear(norm, in_features, num_outputs, num_members)


def _linear(norm: str, size_in: int, size_out: int, num_members: int | None, bias: bool = True) -> nn.Module:
    if has_unit_rows(norm):
        return UnitLinear(size_in, size_out, num_members, bias)
    return Linear(size_in, size_out) if num_members is None else EnsembleLinear(num_members, size_in, size_out)


def _normed_layers(
    norm: str, sizes: Sequence[int], activation: Activation, num_members: int | None
) -> Iterator[nn.Module]:  # fmt: skip
    is_before = not norm.endswith("renorm")  # before the activation, where a bias would do nothing
    make_norm = partial(BatchNorm, num_members=num_members, renorm_after=None if is_before else RENORM_AFTER)
    # The norm behind the first linear layer takes a shift of the input away: Adam would make steps of its roundings.
    yield make_norm(sizes[0], bias=not is_before)
    for size_in, size_out in itertools.pairwise(sizes):
        yield _linear(norm, size_in, size_out, num_members, bias=not is_before)
        after = [make_activation(activation, size_out, "NetParams", num_members), make_norm(size_out)]
        yield from reversed(after) if is_before else after


def has_unit_rows(norm: str | None) -> TypeGuard[str]:
    """Return whether the weights of each unit have length 1, with this `norm` of `NetParams`."""
    return norm is not None and norm.startswith("unit")


def unit(x: Tensor) -> Tensor:
    """Scale vectors [..., F] to length 1."""
    return functional.normalize(full_precision(x), dim=-1, eps=EPS)


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether a network has a norm that updates must pass `batch_stats` to."""
    return any(isinstance(part, BatchNorm) for part in module.modules())


def _shape(num_features: int, num_members: int | None) -> tuple[int, ...]:
    return (num_features,) if num_members is None else (num_members, 1, num_features)


def _first(x: Tensor, tensor: Tensor) -> Tensor:
    """Return a layer's tensor for x: of the first E members, if x [E, B, F] has fewer than the layer."""
    return tensor[: len(x)] if tensor.dim() == 3 and len(x) < len(tensor) else tensor
