"""Weights for copies of a policy, which act on another device or in another process while the policy is trained.

Versions are counted from 0, the weights of a run's first collection; `Policy.version` of the copy says which it has.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rltrainer.data.storage import require_device
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.interval import Every, as_every
from rltrainer.nets import Policy
from rltrainer.validation.field_rules import NonNegativeInt

Counts = Mapping[str, float]
"""A trainer's counters by their unit."""
EACH_STEP = Every(1, "training_step")


@dataclass
class SyncState:
    """State of a `WeightSync`: the version, and the counter's value at the last look at it."""

    version: NonNegativeInt = 0
    seen: float | None = None


class WeightSync:
    """Publishes weights when they are due, and counts their versions.

    `publish` is called with the version, and gives the copy the policy's present weights. `every` None is each training
    step.
    """

    def __init__(self, owner: str, every: int | Every | None, publish: Callable[[int], None]) -> None:
        self._owner, self._publish = owner, publish
        self._every = EACH_STEP if every is None else as_every(owner, every, "sync_every")
        self.state = SyncState()
        self._is_published = False

    @property
    def version(self) -> int:
        """The version that the copy has, or is given next."""
        return self.state.version

    @property
    def has_stale_data(self) -> bool:
        """Tell whether collections may begin with older weights than the policy's."""
        return self._every != EACH_STEP

    def sync(self, counts: Counts | None) -> bool:
        """Publish the weights if they are due by a trainer's counters, or at once without counters.

        Returns whether the counters are those of a run that begins: its versions count from 0.
        """
        begins = counts is not None and counts.get("training_step") == 0
        if begins:  # wherever another run ended
            self.load(SyncState())
        state, seen = self.state, None
        if counts is not None:
            if self._every.unit != "second" and self._every.unit not in counts:
                rule = f"must be in what the trainer counts ({', '.join(counts)})"
                raise ParamsError(field_error_text(self._owner, "sync_every", rule, self._every))
            seen = self._every.now(counts.get(self._every.unit, 0))
        before, state.seen = state.seen, seen
        if seen is not None and before is not None and seen < before:  # another run begins
            state.version, before, self._is_published = 0, None, False
        is_due = seen is None or (before is not None and self._every.crossed(before, seen))
        if self._is_published or before is not None:
            state.version += is_due
        if is_due:
            self._is_published = False
        self.require()
        return begins

    def require(self) -> None:
        """Publish the weights unless the copy has the present version."""
        if not self._is_published:
            self._publish(self.state.version)
            self._is_published = True

    def load(self, state: SyncState) -> None:
        """Continue with the versions of a saved run, whose weights the next collection acts with."""
        self.state = SyncState(state.version, None if self._every.unit == "second" else state.seen)
        self._is_published = False


def tensors_of(modules: Mapping[str, nn.Module]) -> list[tuple[str, Tensor]]:
    """Return all parameters and buffers of modules with their names, in the same order for a copy."""
    named = []
    for name, module in modules.items():
        of_module: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
        named += [(f"{name}.{path}", tensor) for path, tensor in of_module]
    return named


class CopyElsewhere:
    """A copy of a policy on another device of this process."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        self._policy, self.copy = policy, copy.deepcopy(policy).to(device)
        self._targets, self._sources = (
            [tensor for _, tensor in tensors_of({"policy": one})] for one in (self.copy, policy)
        )

    @torch.no_grad()
    def publish(self, version: int) -> None:
        """Give the copy the present weights, in their format, and the policy's exploration."""
        if self.copy.weight_dtype is not self._policy.weight_dtype:
            self.copy.set_weight_dtype(self._policy.weight_dtype)
        torch._foreach_copy_(self._targets, self._sources)
        mine: Any = self.copy
        mine.version, mine.exploration, mine.progress = version, self._policy.exploration, self._policy.progress


def acting_policy(
    owner: str, policy: Policy, device: torch.device | str | None, every: int | Every | None
) -> tuple[Policy, WeightSync | None]:
    """Return the policy that acts on a device, and the `WeightSync` of it if it is a copy."""
    if device is None:
        if every is not None:
            hint = "Without one the policy itself acts, always with its newest weights."
            raise ParamsError(field_error_text(owner, "sync_every", "needs a device", every, hint))
        return policy, None
    if (there := require_device(owner, device)) == policy.device:
        return policy, None
    copied = CopyElsewhere(policy, there)
    return copied.copy, WeightSync(owner, every, copied.publish)
