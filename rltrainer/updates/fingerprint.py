"""A name for the state that a compiled or recorded gradient step depends on besides its arguments."""

import dataclasses
import enum
import itertools
from collections.abc import Hashable
from operator import attrgetter, is_not
from typing import Any

from torch import Tensor, nn

from rltrainer.nets.module_tree import ModuleTree
from rltrainer.nets.target import TargetNetwork
from rltrainer.updates.adam import Adam
from rltrainer.updates.optimizer import Optimizer

_FLAGS, _IS_TRAINING = attrgetter("requires_grad", "_backward_hooks"), attrgetter("training")


class Fingerprint:
    """Names the state of an algorithm as far as a graph does not look at it: another state has another name.

    Calling it costs some five microseconds, so it is called once per update. It looks at which modules and parameters
    there are, at each parameter's memory, `requires_grad` and hooks, at the modules' hooks and replaced methods, and at
    the classes of the algorithm, the policy and a user's own modules and attributes. A compiled step itself looks at
    the numbers, texts, lengths and functions that it has read. A recorded one looks at nothing, so for it the modes of
    the modules and the plain attributes of the algorithm are in the name too.

    Args:
        owner: the algorithm. Its target networks, which nobody changes, are left out.
        names: of the states that were seen before; new ones are added.
        is_recorded: the step runs as a CUDA graph.
    """

    def __init__(self, owner: Any, names: dict[Hashable, tuple[str, Any]], is_recorded: bool) -> None:
        self._owner, self._names, self._is_recorded = owner, names, is_recorded
        targets = [module for module in owner._modules() if isinstance(module, TargetNetwork)]
        left_out = {parameter for target in targets for parameter in target.parameters()}
        parameters = [x for x in owner._tensors() if isinstance(x, nn.Parameter) and x not in left_out]
        self._tensors = owner._tensors() if is_recorded else parameters
        self._tree = ModuleTree([module for module in owner._modules() if module not in targets])
        self._attributes = list(map(vars, self._tree.modules))
        objects = (*self._tree.modules, *vars(owner).values())
        classes = dict.fromkeys((*type(owner).__mro__, *type(owner.policy).__mro__, *map(type, objects)))
        self._classes = [vars(cls).values() for cls in classes if _is_looked_at(cls, owner)]
        self._seen, self._members, self._state = list[Any](), list[Any](), list[Any]()
        self._name = ""

    def __call__(self) -> str:
        """Return the name of the current state."""
        seen, members = self._tree.look(), list(itertools.chain.from_iterable(self._classes))
        # Compared as lists of mostly the same objects: a state that did not change is neither hashed nor named.
        state = [
            sum(map(len, self._attributes)),  # a method that is replaced in a module is one more
            list(map(Tensor.data_ptr, self._tensors)),
            list(map(_FLAGS, self._tensors)),
        ]
        if self._is_recorded:
            state += [list(map(_IS_TRAINING, self._tree.modules)), [_plain(vars(self._owner))]]
        # By identity: an equal object in place of another may change later, and the graph would not see it.
        is_same = len(members) == len(self._members) and not any(map(is_not, members, self._members))
        if seen is not self._seen or state != self._state or not is_same:
            self._attributes = list(map(vars, self._tree.modules))
            self._seen, self._members, self._state = seen, members, state
            self._name = self._find_name()
        return self._name

    def _find_name(self) -> str:
        _, memory, flags, *rest = self._state
        flags = [(requires_grad, id(hooks)) for requires_grad, hooks in flags]
        num_attributes = sum(map(len, self._attributes))
        objects = [*self._seen, *self._members]
        key = (tuple(map(id, objects)), num_attributes, tuple(memory), tuple(flags), *map(tuple, rest))
        if key not in self._names:
            # The objects are kept, since another one may get the id of one that is gone.
            self._names[key] = f"state {len(self._names)}", objects
        return self._names[key][0]


def _is_looked_at(cls: type, owner: Any) -> bool:
    """Return whether a class is the algorithm's, the policy's, or a user's own of a module or attribute."""
    if cls in type(owner).__mro__ or cls in type(owner.policy).__mro__:
        return cls not in (object, nn.Module)
    return cls.__module__.partition(".")[0] not in ("builtins", "numpy", "rltrainer", "torch")


def _plain(value: Any) -> Hashable:
    """Return what is plain in a value: numbers, texts, choices, and those in its items or fields."""
    if value is None or isinstance(value, bool | int | float | str | enum.Enum):
        return type(value), value
    if isinstance(value, Optimizer):
        # Its learning rate is a tensor.
        return *dataclasses.astuple(value.limit), isinstance(value.method, Adam) and value.method.counts_differ
    if isinstance(value, dict):
        return tuple((key, _plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(map(_plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    return None
