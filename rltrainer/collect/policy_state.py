"""The state of a policy that a CUDA graph would not see change: a graph is recorded for each such state."""

import contextlib
from collections.abc import Hashable, Iterator
from types import SimpleNamespace
from typing import Any

from rltrainer.nets import Policy
from rltrainer.nets.linear import hooks_of
from rltrainer.updates.compiled_step import Fingerprint, plain


class PolicyState:
    """Returns the state of a policy: its modules, hooks, modes and memory of weights, attributes of a user's policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        owner = SimpleNamespace(  # the part of an algorithm that is a policy
            policy=policy, _networks=lambda: [policy], _tensors=lambda: [*policy.parameters(), *policy.buffers()]
        )
        self._fingerprint = Fingerprint(owner, {}, is_recorded=True)
        self._name, self._own = "", list[dict[str, Any]]()

    def __call__(self) -> Hashable:
        """Return all that a graph would not see change, as far as it can be compared."""
        if (name := self._fingerprint()) != self._name:
            libraries, modules = ("rltrainer", "torch"), self._policy.modules()
            users = [each for each in modules if type(each).__module__.partition(".")[0] not in libraries]
            self._name, self._own = name, [vars(module) for module in users]
        return name, *(plain({**attributes, "version": None}) for attributes in self._own)

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[None]:
        """Run code that is recorded; a `RuntimeError` if a replay would not do all that it does."""
        # Hooks of modules are Python that a replay would not run.
        if any(map(any, map(hooks_of, self._policy.modules()))):
            raise RuntimeError("its modules have hooks")
        state = self()
        attributes = [(each, dict(each)) for each in self._own]
        yield
        if self() != state:
            for each, values_before in attributes:
                each.clear()
                each.update(values_before)
            raise RuntimeError("choosing an action changes its attributes")
