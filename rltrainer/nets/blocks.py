"""Layers with statistics of the batch: batch renormalisation, and perceptrons that hold it."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rltrainer.nets.linear import Chain, HasBatchStats, Linear
from rltrainer.nets.mlp import Activation, EnsembleMLP, make_activation
from rltrainer.nets.weight_dtype import full_precision


class BatchRenorm(HasBatchStats):
    """Batch renormalisation (Ioffe 2017) of F features, of one network or of E members apart.

    With `batch_stats`, features are standardised by mean and variance of the batch, through which the gradient flows,
    and the running statistics follow. After `warmup` such passes the result is brought near what the running statistics
    would give, by a factor r and a shift d without gradient; before, this is plain batch normalisation. Without
    `batch_stats`, which is what acting does, running statistics standardise and nothing changes.

    The constants are CrossQ's (Bhatt et al. 2024). Its authors' code leaves `EPS` out where it computes the shift; here
    it is the equation of the paper on batch renormalisation. Variances are biased, as in that code.
    """

    MOMENTUM, EPS = 0.01, 1e-3
    MAX_FACTOR, MAX_SHIFT = 3.0, 5.0  # r is in [1 / 3, 3], d in [-5, 5]
    not_negative = ("running_var", "num_passes")
    running_mean: Tensor
    running_var: Tensor
    num_passes: Tensor

    def __init__(self, num_features: int, num_members: int | None = None, warmup: int = 100_000) -> None:
        super().__init__()
        shape = (num_features,) if num_members is None else (num_members, 1, num_features)
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.warmup = warmup
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("num_passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, batch_stats: bool = False) -> Tensor:
        """Map [B, F], or [E, B, F] of E members, to the same; without `batch_stats`, x may be of the first members."""
        x = full_precision(x)
        if not batch_stats:
            parts: list[Tensor] = [self.weight, self.bias, self.running_mean, self.running_var]
            if self.weight.dim() == 3 and len(x) < len(self.weight):
                parts = [part[: len(x)] for part in parts]
            weight, bias, mean, var = parts
            return (x - mean) * (weight / (var + self.EPS).sqrt()) + bias
        mean = x.mean(-2, keepdim=True)
        centred = x - mean
        var = centred.square().mean(-2, keepdim=True)
        std = (var + self.EPS).sqrt()
        with torch.no_grad():
            factor, shift = self._correction(mean.view_as(self.weight), std.view_as(self.weight))
            self._follow(mean.view_as(self.weight), var.view_as(self.weight))
        return centred * (self.weight * factor / std) + (self.weight * shift + self.bias)

    def _correction(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Return r and d of a batch's mean and standard deviation (Ioffe 2017, algorithm 1); 1 and 0 at first."""
        running_std = (self.running_var + self.EPS).sqrt()
        factor = (std / running_std).clamp(1 / self.MAX_FACTOR, self.MAX_FACTOR)
        shift = ((mean - self.running_mean) / running_std).clamp(-self.MAX_SHIFT, self.MAX_SHIFT)
        is_warm = self.num_passes >= self.warmup
        return torch.where(is_warm, factor, 1.0), torch.where(is_warm, shift, 0.0)

    def _follow(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics towards a batch's; what is not finite there would stay for good."""
        is_finite = torch.isfinite(var)
        self.running_mean.lerp_(torch.where(is_finite, mean, self.running_mean), self.MOMENTUM)
        self.running_var.lerp_(torch.where(is_finite, var, self.running_var), self.MOMENTUM)
        self.num_passes += 1


class NormedMLP(HasBatchStats):
    """A norm of the input, then a linear layer, its activation and a norm for each size: the layers of CrossQ."""

    def __init__(self, sizes: Sequence[int], activation: Activation) -> None:
        super().__init__()
        modules: list[nn.Module] = [BatchRenorm(sizes[0])]
        for size_in, size_out in itertools.pairwise(sizes):
            modules += [Linear(size_in, size_out), make_activation(activation, size_out, "NormedMLP")]
            modules.append(BatchRenorm(size_out))
        self.layers, self.out_features = Chain(*modules), sizes[-1]

    def forward(self, x: Tensor, batch_stats: bool = False) -> Tensor:
        """Map [B, sizes[0]] to [B, sizes[-1]]."""
        return self.layers(x, batch_stats)  # type: ignore[no-any-return]  # of norms


class NormedEnsembleMLP(EnsembleMLP):
    """E perceptrons with the layers of `NormedMLP` and K outputs, evaluated together."""

    def __init__(self, num_members: int, sizes: Sequence[int], activation: Activation, num_outputs: int = 1) -> None:
        super().__init__(num_members, sizes, activation, num_outputs)
        *hidden, output = self.layers
        modules: list[nn.Module] = [BatchRenorm(sizes[0], num_members)]
        for i, size in enumerate(sizes[1:]):
            modules += [*hidden[2 * i : 2 * i + 2], BatchRenorm(size, num_members)]
        self.layers = Chain(*modules, output)
