"""What a compiled or recorded gradient step depends on besides its arguments, in a form that can be compared."""

import dataclasses
import enum
import itertools
from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rltrainer.algorithms.optimizer import Optimizer

_FLAGS, _IS_TRAINING = attrgetter("requires_grad", "_backward_hooks"), attrgetter("training")
_HOOKS = attrgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Fingerprint:
    """Names the state of an algorithm as far as a graph does not look at it: another state has another name.

    Calling it costs some five microseconds, so it is called once per update. It looks at each parameter's memory,
    `requires_grad` and hooks, at the modules' hooks, and at the methods of the classes of algorithm and policy.
    A compiled step itself looks at the numbers, texts, lengths and functions that it has read. A recorded one looks at
    nothing, so for it the modes of the modules and the plain attributes of the algorithm are in the name too.

    Args:
        owner: the algorithm.
        tensors: what its gradient step changes.
        modules: its networks.
        names: of the states that were seen before; new ones are added.
        is_recorded: the step runs as a CUDA graph.
    """

    def __init__(
        self,
        owner: Any,
        tensors: Sequence[Tensor],
        modules: Sequence[nn.Module],
        names: dict[Hashable, tuple[str, Any]],
        is_recorded: bool,
    ) -> None:
        self._owner, self._names, self._is_recorded = owner, names, is_recorded
        self._tensors = [tensor for tensor in tensors if is_recorded or isinstance(tensor, nn.Parameter)]
        self._modules = list(dict.fromkeys(part for module in modules for part in module.modules()))
        self._hooks = [hooks for module in self._modules for hooks in _HOOKS(module)]
        classes = dict.fromkeys((*type(owner).__mro__, *type(owner.policy).__mro__))
        of_user = [cls for cls in classes if cls not in (object, nn.Module)]
        self._members = [vars(cls).values() for cls in of_user]
        self._state: list[Any] = []
        self._name, self._newest_hook, self._hook_list = "", -1, list[int]()

    def __call__(self) -> str:
        """Return the name of the current state."""
        members = list(itertools.chain.from_iterable(self._members))
        # Compared as lists: most are the same objects, and a state that did not change is neither hashed nor named.
        state = [
            members,
            list(map(Tensor.data_ptr, self._tensors)),
            list(map(_FLAGS, self._tensors)),
            self._hook_numbers(),
        ]
        if self._is_recorded:
            state += [list(map(_IS_TRAINING, self._modules)), [_plain(vars(self._owner))]]
        if state != self._state:
            self._state, self._name = state, self._find_name(state)
        return self._name

    def _hook_numbers(self) -> list[int]:
        """Return the numbers of all hooks of the modules; each hook of a program has its own."""
        newest = RemovableHandle.next_id
        if newest != self._newest_hook or self._hook_list:  # else there were none, and none has come since
            self._newest_hook = newest
            self._hook_list = list(itertools.chain.from_iterable(self._hooks))
        return self._hook_list

    def _find_name(self, state: list[Any]) -> str:
        members, memory, flags, *rest = state
        flags = [(requires_grad, id(hooks)) for requires_grad, hooks in flags]
        key = (tuple(map(id, members)), tuple(memory), tuple(flags), *map(tuple, rest))
        if key not in self._names:
            # The members are kept, since another object may get the id of one that is gone.
            self._names[key] = f"state {len(self._names)}", members
        return self._names[key][0]


def _plain(value: Any) -> Hashable:
    """Return what is plain in a value: numbers, texts, choices, and those in its items or fields."""
    if value is None or isinstance(value, bool | int | float | str | enum.Enum):
        return type(value), value
    if isinstance(value, Optimizer):
        return value.max_grad_norm  # its learning rate is a tensor
    if isinstance(value, dict):
        return tuple((key, _plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(map(_plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    return None
