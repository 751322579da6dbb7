"""Weights for copies of a policy: when they are brought there, and which version they are.

A copy acts elsewhere, on another device or in another process, while the policy is trained. Versions are counted from
0, the weights that the first collection of a run is made with; `Policy.version` of the copy says which one it has.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rltrainer.data.columns import require_device
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.interval import Every
from rltrainer.nets import Policy
from rltrainer.validation.field_rules import NonNegativeInt

Counts = Mapping[str, float]
"""A trainer's counters by the unit that they are in: how many of it are done."""

EACH_STEP = Every(1, "training_step")


@dataclass
class SyncState:
    """State of a `WeightSync`: the version, and where the last look at the counter found it."""

    version: NonNegativeInt = 0
    seen: float | None = None


class WeightSync:
    """Brings weights when they are due, and counts their versions.

    Args:
        owner: whose `sync_every` it is, for errors.
        every: how often weights are due.
        bring: is called with the version, and brings the weights of now.
    """

    def __init__(self, owner: str, every: Every | None, bring: Callable[[int], None]) -> None:
        check_every(owner, every)
        self._owner, self._every, self._bring = owner, every or EACH_STEP, bring
        self.state = SyncState()
        self._is_there = False

    @property
    def version(self) -> int:
        """The version that the copy has, or is brought next."""
        return self.state.version

    @property
    def has_stale_data(self) -> bool:
        """Tell whether collections may begin with older weights than the policy's."""
        return self._every != EACH_STEP

    def sync(self, counts: Counts | None) -> bool:
        """Bring the weights if they are due by a trainer's counters, or at once where nobody counts.

        Returns:
            whether the counters are those of a run that begins: its versions count from 0.

        Raises:
            ParamsError: the trainer does not count what the interval is in.
        """
        begins = counts is not None and counts.get("training_step") == 0
        if begins:  # wherever another run ended
            self.load(SyncState())
        state, seen = self.state, None
        if counts is not None and self._every.unit != "second" and self._every.unit not in counts:
            rule = f"must be in what the trainer counts ({', '.join(counts)})"
            raise ParamsError(field_error_text(self._owner, "sync_every", rule, self._every))
        if counts is not None:
            seen = self._every.now(counts.get(self._every.unit, 0))
        before, state.seen = state.seen, seen
        if seen is not None and before is not None and seen < before:  # another run begins
            state.version, before, self._is_there = 0, None, False
        is_due = seen is None or (before is not None and self._every.crossed(before, seen))
        if self._is_there or before is not None:
            state.version += is_due
        if is_due or not self._is_there:
            self.bring()
        return begins

    def bring(self) -> None:
        """Bring the weights of now as the present version."""
        self._bring(self.state.version)
        self._is_there = True

    def require(self) -> None:
        """Bring the weights unless some are there: nobody who acts shall do so with those of a copy's making."""
        if not self._is_there:
            self.bring()

    def load(self, state: SyncState) -> None:
        """Go on with the versions of a run that was saved; the next collection is brought its weights."""
        self.state = SyncState(state.version, None if self._every.unit == "second" else state.seen)
        self._is_there = False


def check_every(owner: str, every: object) -> None:
    """Raise a `ParamsError` unless a `sync_every` is an interval or None."""
    if every is not None and not isinstance(every, Every):
        hint = 'Write Every(4, "training_step").'
        raise ParamsError(field_error_text(owner, "sync_every", "must be an Every or None", every, hint))


def tensors_of(modules: Mapping[str, nn.Module]) -> list[tuple[str, Tensor]]:
    """Return all parameters and buffers of modules with their names, in an order that a copy's are in too."""
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
    def bring(self, version: int) -> None:
        """Give the copy the weights of now, in their format, and what the policy explores by."""
        if self.copy.weight_dtype is not self._policy.weight_dtype:
            self.copy.set_weight_dtype(self._policy.weight_dtype)
        torch._foreach_copy_(self._targets, self._sources)
        mine: Any = self.copy
        mine.version, mine.exploration, mine.progress = version, self._policy.exploration, self._policy.progress


def acting_policy(
    owner: str, policy: Policy, device: torch.device | str | None, every: Every | None
) -> tuple[Policy, WeightSync | None]:
    """Return the policy that acts on a device, and what brings it weights if it is a copy.

    Raises:
        ParamsError: there is no such device, or an interval without one.
    """
    check_every(owner, every)
    if device is None:
        if every is not None:
            hint = "Without one the policy itself acts, always with its newest weights."
            raise ParamsError(field_error_text(owner, "sync_every", "needs a device", every, hint))
        return policy, None
    if (there := require_device(owner, device)) == policy.device:
        return policy, None
    copied = CopyElsewhere(policy, there)
    return copied.copy, WeightSync(owner, every, copied.bring)
