"""A cheap look at whether networks are still made of the same modules: asked at each collection and update."""

import itertools
from collections.abc import Sequence
from operator import is_not
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


class ModuleTree:
    """The modules of some networks, and a look at them that costs one or two microseconds.

    Args:
        networks: the networks.

    Attributes:
        modules: all modules, each once.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        self._networks = networks
        self._newest_hook, self._hook_numbers = -1, list[int]()
        self._objects, self._seen = list[Any](), list[Any]()
        self._find()

    def look(self) -> list[Any]:
        """Return their modules, parameters and hooks' numbers; the same list as before if they are the same."""
        objects = list(itertools.chain.from_iterable(map(dict.values, self._holders)))
        newest = RemovableHandle.next_id
        if newest != self._newest_hook or self._hook_numbers:  # else there was no hook, and none has come since
            self._newest_hook = newest
            numbers = list(itertools.chain.from_iterable(self._hooks))
            if numbers != self._hook_numbers:
                self._find()
                return self._seen
        if len(objects) != len(self._objects) or any(map(is_not, objects, self._objects)):
            self._find()
        return self._seen

    def _find(self) -> None:
        self.modules = list(dict.fromkeys(part for network in self._networks for part in network.modules()))
        self._holders: list[dict[str, Any]] = [module._modules for module in self.modules]
        self._holders += [module._parameters for module in self.modules if module._parameters]
        self._objects = list(itertools.chain.from_iterable(map(dict.values, self._holders)))
        self._hooks = [hooks for module in self.modules for hooks in hooks_of(module)]
        self._hook_numbers = list(itertools.chain.from_iterable(self._hooks))  # each hook of a program has its own
        self._newest_hook = RemovableHandle.next_id
        self._seen = [*self._objects, *self._hook_numbers]


def hooks_of(module: nn.Module) -> list[Any]:
    """Return the dicts of a module's own hooks, each of which is mostly empty."""
    return [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks]
