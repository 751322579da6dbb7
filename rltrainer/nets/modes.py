"""Eval mode for acting, at almost no cost for policies of layers that do not look at their mode."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import is_not
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from rltrainer.nets.linear import hooks_of
from rltrainer.nets.mlp import Dropout


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


_WITHOUT_MODES = {
    nn.Conv2d, nn.ELU, nn.Flatten, nn.GELU, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LayerNorm, nn.LeakyReLU,
    nn.Linear, nn.Mish, nn.ModuleDict, nn.ModuleList, nn.PReLU, nn.RMSNorm, nn.ReLU, nn.ReLU6, nn.SELU, nn.Sequential,
    nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Tanh,
}  # fmt: skip
"""Classes of torch that compute the same in train and eval mode: exactly these, a subclass may do anything."""


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put all modules into eval mode, and afterwards those back that were in train mode."""
    in_training = [part for part in module.modules() if part.training]
    try:
        for part in in_training:
            part.training = False
        yield
    finally:
        for part in in_training:
            part.training = True


class EvalMode:
    """Puts a policy into eval mode while it acts, or while its actions are valued, unless that makes no difference.

    Args:
        policy: may be changed between two collections.
    """

    def __init__(self, policy: nn.Module) -> None:
        self._policy, self._tree = policy, ModuleTree([policy])
        self._seen, self._matters = self._tree.look(), _depends_on_mode(policy)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy by looking at the copied policy."""
        return type(self), (self._policy,)

    @contextmanager
    def while_on(self) -> Iterator[None]:
        """Switch, and afterwards put the modules back into train mode that were in it."""
        switched = self.switch()
        try:
            yield
        finally:
            for module in switched:
                module.training = True

    def switch(self) -> list[nn.Module]:
        """Return the modules that were in train mode, to be put back into it."""
        seen = self._tree.look()
        if seen is not self._seen:
            self._seen, self._matters = seen, _depends_on_mode(self._policy)
        if not self._matters:
            return []
        switched = [module for module in self._policy.modules() if module.training]
        for module in switched:
            module.training = False
        return switched


def _depends_on_mode(policy: nn.Module) -> bool:
    modules = [policy]
    for module in modules:  # which grows meanwhile
        is_ours = type(module).__module__.startswith("rltrainer.nets.") and not isinstance(module, Dropout)
        if (is_ours or type(module) in _WITHOUT_MODES) and not (module._forward_pre_hooks or module._forward_hooks):
            modules += module._modules.values()  # type: ignore[arg-type]  # a module that was taken out leaves None
        elif module is not None:
            return True
    return False
