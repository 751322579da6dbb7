"""Eval mode for acting, at almost no cost for policies of layers that do not look at their mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from rltrainer.nets.dropout import Dropout
from rltrainer.nets.module_tree import ModuleTree

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
