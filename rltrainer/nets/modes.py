"""Eval mode for acting, at almost no cost for policies of layers that do not look at their mode."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn

from rltrainer.nets.linear import ModuleTree, hooks_of
from rltrainer.nets.mlp import Dropout

# Classes of torch that compute the same in train and eval mode: exactly these, as a subclass may do anything.
_WITHOUT_MODES = {
    nn.Conv2d, nn.ELU, nn.Flatten, nn.GELU, nn.Hardswish, nn.Hardtanh, nn.Identity, nn.LayerNorm, nn.LeakyReLU,
    nn.Linear, nn.Mish, nn.ModuleDict, nn.ModuleList, nn.PReLU, nn.RMSNorm, nn.ReLU, nn.ReLU6, nn.SELU, nn.Sequential,
    nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Tanh,
}  # fmt: skip


_NO_CHANGE = nullcontext()


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put all modules into eval mode, and restore their modes at the exit."""
    in_training = [part for part in module.modules() if part.training]
    for part in in_training:
        part.training = False
    try:
        yield
    finally:
        for part in in_training:
            part.training = True


class EvalMode:
    """Puts a policy into eval mode while it acts or its actions are valued, unless that makes no difference."""

    # The policy may be changed between two collections, so each switch looks at its tree.
    def __init__(self, policy: nn.Module) -> None:
        self._policy, self._tree = policy, ModuleTree([policy])
        self._seen, self._matters = self._tree.look(), _depends_on_mode(policy)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy by looking at the copied policy."""
        return type(self), (self._policy,)

    def while_on(self) -> AbstractContextManager[None]:
        """Switch, and restore the modes at the exit."""
        seen = self._tree.look()
        if seen is not self._seen:
            self._seen, self._matters = seen, _depends_on_mode(self._policy)
        return eval_mode(self._policy) if self._matters else _NO_CHANGE


def _depends_on_mode(policy: nn.Module) -> bool:
    for module in policy.modules():
        is_ours = type(module).__module__.startswith("rltrainer.nets.") and not isinstance(module, Dropout)
        if not (is_ours or type(module) in _WITHOUT_MODES) or any(hooks_of(module)):
            return True
    return False
