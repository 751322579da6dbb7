"""Modules one after another, with as little around them as possible.

Around layers as small as a policy's, the call of a module and `nn.Module`'s attribute lookup cost more than the
arithmetic. Both are left out where nothing is hooked to the module.
"""

from typing import Any

from torch import Tensor, nn

from rltrainer.nets.linear import linear


class Chain(nn.Sequential):
    """`nn.Sequential` that costs less around its modules."""

    def forward(self, x: Any) -> Any:
        """Apply the modules in order."""
        for module in self._modules.values():
            x = module(x) if is_hooked(module) else module.forward(x)
        return x

    def after(self, features: Any) -> Any:
        """Apply the modules behind the first, whose output is given."""
        for module in list(self._modules.values())[1:]:
            features = module(features)
        return features


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`, at less cost if it is a plain `nn.Linear`."""
    if type(layer) is not nn.Linear or is_hooked(layer):
        return layer(x)  # type: ignore[no-any-return]  # nn.Module
    parameters = layer._parameters
    return linear(x, parameters["weight"], parameters["bias"])  # type: ignore[arg-type]  # a Linear's


def is_hooked(module: nn.Module) -> bool:
    """Return whether something waits for the module to be called."""
    if module._forward_hooks or module._forward_pre_hooks:
        return True
    return bool(module._backward_hooks or module._backward_pre_hooks)
