"""Multi-layer perceptrons: one network, or an ensemble of equal ones as batched matrix products."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rltrainer.nets.chain import apply_linear, is_hooked
from rltrainer.nets.linear import is_large, linear

Activation = Callable[[], nn.Module]


class MLP(nn.Module):
    """Linear layers with an activation after each, the last one too.

    Args:
        sizes: features of the input and of each layer.
        activation: makes the activation.
    """

    def __init__(self, sizes: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, sizes[0]] to [B, sizes[-1]]."""
        activate = self.activation.forward
        for layer in self.layers._modules.values():
            x = activate(apply_linear(layer, x))
        return x


def orthogonal_(module: nn.Module, gain: float) -> nn.Module:
    """Initialise every linear layer orthogonally with zero bias: what on-policy methods learn fastest from.

    Source: Huang et al. 2022, The 37 Implementation Details of PPO, detail 2.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


class EnsembleLinear(nn.Module):
    """E linear layers side by side; each is initialised as `nn.Linear`."""

    def __init__(self, num_members: int, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(num_members, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_members, 1, out_features).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map [E, B, in_features] to [E, B, out_features]."""
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleMLP(nn.Module):
    """E perceptrons of equal shape and scalar output, evaluated together."""

    def __init__(self, num_members: int, in_features: int, hidden_sizes: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.num_members = num_members
        layers: list[nn.Module] = []
        for size_in, size_out in zip((in_features, *hidden_sizes), hidden_sizes, strict=False):
            layers += [EnsembleLinear(num_members, size_in, size_out), activation()]
        last = hidden_sizes[-1] if hidden_sizes else in_features
        self.layers = nn.Sequential(*layers, EnsembleLinear(num_members, last, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map features [B, in_features] to one output per member [E, B]."""
        if self._is_quicker_one_by_one(x):
            members = torch.stack(self._one_by_one(x))
        else:
            members = self.layers(x.expand(self.num_members, *x.shape))
        return members.squeeze(-1).float()

    def _is_quicker_one_by_one(self, x: Tensor) -> bool:
        """Whether single products are large enough to be worth more than batched ones, which oneDNN does not help."""
        linears = [layer for layer in self.layers if isinstance(layer, EnsembleLinear)]
        widest = max(math.prod(layer.weight.shape[1:]) for layer in linears) // x.shape[-1]
        return is_large(x, widest) and not any(is_hooked(layer) for layer in linears)

    def _one_by_one(self, x: Tensor) -> list[Tensor]:
        members = [x] * self.num_members
        for layer in self.layers:
            if isinstance(layer, EnsembleLinear):
                parts = zip(members, layer.weight.unbind(), layer.bias.unbind(), strict=True)
                members = [linear(member, weight.t(), bias.squeeze(0)) for member, weight, bias in parts]
            else:
                members = [layer(member) for member in members]
        return members
