"""Modules one after another, with as little around them as possible."""

from typing import Any

from torch import nn


class Chain(nn.Sequential):
    """`nn.Sequential` that calls its modules' `forward`: a module's call costs as much as a small layer's arithmetic.

    Forward hooks belong on the chain; those on the modules in it are not called.
    """

    def forward(self, x: Any) -> Any:
        """Apply the modules in order."""
        for module in self._modules.values():
            x = module.forward(x)
        return x
