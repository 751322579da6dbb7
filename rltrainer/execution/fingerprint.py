"""Names for the states of an algorithm or a policy: a graph depends on its state, and does not see it change."""

import contextlib
import dataclasses
import enum
import itertools
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter, is_not
from typing import Any

from torch import Tensor, nn

from rltrainer.nets.linear import ModuleTree, hooks_of
from rltrainer.nets.policy import VERSION
from rltrainer.nets.target import TargetNetwork

_FLAGS, _IS_TRAINING = attrgetter("requires_grad", "_backward_hooks"), attrgetter("training")
_LIBRARIES = ("builtins", "numpy", "rltrainer", "torch")


class Fingerprint:
    """Name for the state of an owner, as far as a graph does not look at it: another state has another name.

    The owner is an algorithm with its networks, or a policy. `tensors` are all that the graph may read or change.
    """

    # A call costs some five microseconds, so there is one per update. It looks at the modules and parameters that there
    # are, at each parameter's memory, `requires_grad` and hooks, at the modules' hooks and replaced methods, and at the
    # classes of the owner, the networks and a user's own modules and attributes. A compiled step itself looks at the
    # numbers, texts, lengths and functions that it has read. A recorded one looks at nothing, so its name also has the
    # modes of the modules, and the plain attributes of the algorithm or of a user's modules in the policy. Names of
    # earlier states are kept in `names`.

    def __init__(
        self, owner: Any, networks: Sequence[nn.Module], tensors: Sequence[Tensor], is_recorded: bool,
        names: dict[Hashable, tuple[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        self._owner, self._is_recorded, self._names = owner, is_recorded, {} if names is None else names
        self._is_policy = isinstance(owner, nn.Module)
        targets = [module for module in networks if isinstance(module, TargetNetwork)]
        networks = [module for module in networks if module not in targets]
        left_out = {parameter for target in targets for parameter in target.parameters()}
        parameters = [x for x in tensors if isinstance(x, nn.Parameter) and x not in left_out]
        self._tensors = tensors if is_recorded else parameters
        self._tree = ModuleTree(networks)
        users = map(type, filter(_is_users, (*self._tree.modules, *vars(owner).values())))
        classes = dict.fromkeys(itertools.chain(*(type(x).__mro__ for x in (owner, *networks)), users))
        self._classes = [vars(cls).values() for cls in classes if cls not in (object, nn.Module)]
        self._seen, self._members, self._state = list[Any](), list[Any](), list[Any]()
        self._name = ""
        self._find_attributes()

    def __call__(self) -> str:
        """Return the name of the current state."""
        seen, members = self._tree.look(), list(itertools.chain.from_iterable(self._classes))
        # Compared as lists of mostly the same objects: a state that did not change is neither hashed nor named.
        state = self._look()
        # By identity: an equal object in place of another may change later, and the graph would not see it.
        is_same = len(members) == len(self._members) and not any(map(is_not, members, self._members))
        if seen is not self._seen or state != self._state or not is_same:
            self._find_attributes()
            state = self._look()
            self._seen, self._members, self._state = seen, members, state
            objects, (num_attributes, memory, flags, *rest) = [*seen, *members], state
            flags = tuple((requires_grad, id(hooks)) for requires_grad, hooks in flags)
            key = (tuple(map(id, objects)), num_attributes, tuple(memory), flags, *map(tuple, rest))
            # The objects are kept, since another one may get the id of one that is gone.
            self._name, _ = self._names.setdefault(key, (f"state {len(self._names)}", objects))
        return self._name

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Run code that is recorded; a `RuntimeError` if a replay would not do all that it does."""
        # Hooks of modules are Python that a replay would not run.
        if any(map(any, map(hooks_of, self._tree.modules))):
            raise RuntimeError("its modules have hooks")
        state = self()
        attributes = [(each, dict(each)) for each in self._plain]
        yield
        if self() != state:
            for each, values_before in attributes:
                each.clear()
                each.update(values_before)
            raise RuntimeError("choosing an action changes its attributes")

    def _find_attributes(self) -> None:
        """Find the attributes of the modules that there are now."""
        self._attributes = list(map(vars, self._tree.modules))
        self._plain = list(map(vars, filter(_is_users, self._tree.modules))) if self._is_policy else [vars(self._owner)]

    def _look(self) -> list[Any]:
        state: list[Any] = [
            sum(map(len, self._attributes)),  # a method that is replaced in a module is one more
            list(map(Tensor.data_ptr, self._tensors)),
            list(map(_FLAGS, self._tensors)),
        ]
        if self._is_recorded:
            left_out = dict.fromkeys(VERSION) if self._is_policy else {}  # of a policy, which each update changes
            plains = [plain({**attributes, **left_out}) for attributes in self._plain]
            state += [list(map(_IS_TRAINING, self._tree.modules)), plains]
        return state


def _is_users(x: object) -> bool:
    """Return whether an object is of a class of the user's."""
    return type(x).__module__.partition(".")[0] not in _LIBRARIES


def names_its_state(value: object) -> bool:
    """Return whether an object, such as an optimizer, says by `state_for_graphs` what a graph of it depends on."""
    return hasattr(type(value), "state_for_graphs")


def plain(value: Any) -> Hashable:
    """Return the numbers, texts and choices in a value, its items or fields."""
    if value is None or isinstance(value, bool | int | float | str | enum.Enum):
        return type(value), value
    if names_its_state(value):
        state: Hashable = value.state_for_graphs()
        return state
    if isinstance(value, dict):
        return tuple((key, plain(item)) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(map(plain, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    return None
