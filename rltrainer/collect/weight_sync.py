"""Copies of a policy that act elsewhere while the policy is trained, and the times at which they get its weights.

Versions are counted from 0, the weights of a run's first collection; `Policy.version` of the copy says which it has.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltrainer.collect.shared_weights import tensors_of
from rltrainer.device import require_device
from rltrainer.errors import ParamsError
from rltrainer.interval import Every, as_every
from rltrainer.nets import Policy
from rltrainer.state.codec import check_like
from rltrainer.validation.field_rules import NonNegativeInt

# A trainer's counters by their unit.
Counts = Mapping[str, float]
EACH_STEP = Every(1, "training_step")


@dataclass
class SyncState:
    """State of a `WeightSync`: the version, and the counter's value at the last look at it."""

    version: NonNegativeInt = 0
    seen: float | None = None


class WeightSync:
    """Publishes weights when they are due (`every` None: at each training step), and counts their versions.

    `publish` gives the copy the policy's present weights, as this version; `state.version` is the copy's, or its next.
    """

    def __init__(self, owner: str, every: int | Every | None, publish: Callable[[int], None]) -> None:
        self._owner, self._publish = owner, publish
        self._every = EACH_STEP if every is None else as_every(owner, every, "sync_every")
        self.state = SyncState()
        self._is_published = False

    @property
    def has_stale_data(self) -> bool:
        """Return whether collections may start with older weights than the policy's."""
        return self._every != EACH_STEP

    def sync(self, counts: Counts | None) -> bool:
        """Publish the weights if they are due by a trainer's counters, or at once without counters.

        Return whether the counters say that a run starts: its versions count from 0. A `ParamsError` if they do not
        count the unit of `sync_every`.
        """
        begins = counts is not None and counts.get("training_step") == 0
        if begins:  # wherever another run ended
            self.load(SyncState())
        state, seen = self.state, None
        if counts is not None:
            if self._every.unit != "second" and self._every.unit not in counts:
                rule = f"must be in what the trainer counts ({', '.join(counts)})"
                raise ParamsError.about(self._owner, "sync_every", rule, self._every)
            seen = self._every.now(counts.get(self._every.unit, 0))
        before, state.seen = state.seen, seen
        if seen is not None and before is not None and seen < before:  # another run starts
            state.version, before, self._is_published = 0, None, False
        # Multiples of the interval are due: a look that skips one, as after a long collection, publishes once.
        is_due = seen is None or (before is not None and self._every.crossed(before, seen))
        if self._is_published or before is not None:
            state.version += is_due
        if is_due:
            self._is_published = False
        # Weights for each training step wait for `require`, as not each of them asks a worker for rows. It syncs, then
        # collects, then updates: its collection still finds the weights of its sync.
        if counts is None or self._every != EACH_STEP:
            self.require()
        return begins

    def require(self) -> None:
        """Publish the weights unless the copy has the present version."""
        if not self._is_published:
            self._publish(self.state.version)
            self._is_published = True

    def load(self, state: SyncState) -> None:
        """Continue with the versions of a saved run; the next collection acts with its weights."""
        self.state = SyncState(state.version, None if self._every.unit == "second" else state.seen)
        self._is_published = False


class CopyElsewhere:
    """A copy of a policy on another device of this process."""

    def __init__(self, policy: Policy, device: torch.device) -> None:
        self._policy, self.copy = policy, copy.deepcopy(policy).to(device)
        self._targets, self._sources = ([*one.parameters(), *one.buffers()] for one in (self.copy, policy))

    @torch.no_grad()
    def publish(self, version: int) -> None:
        """Give the copy the present weights, in their format, and the policy's exploration."""
        if self.copy.weight_dtype is not self._policy.weight_dtype:
            self.copy.set_weight_dtype(self._policy.weight_dtype)
        torch._foreach_copy_(self._targets, self._sources)
        mine: Any = self.copy
        mine.version, mine.exploration, mine.progress = version, self._policy.exploration, self._policy.progress
        mine.cuda_graph = self._policy.cuda_graph


class OlderWeights:
    """A copy of a policy on CUDA that acts, in a stream of its own, with the weights from before the last update."""

    # `publish`, after a collection, is put behind the update that runs, and before the next one: so the next collection
    # waits for the former only, and its weights are one update old however long an update takes.

    def __init__(self, source: CopyElsewhere) -> None:
        self._source, self.copy = source, source.copy
        self._stream = torch.cuda.Stream(source.copy.device)  # type: ignore[no-untyped-call]  # torch ships no type
        self._is_published: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy without the stream."""
        return type(self), (self._source,)

    def publish(self) -> None:
        """Let the copy act with the present weights from the next collection on."""
        self._source.publish(0)
        self._is_published = torch.cuda.current_stream(self.copy.device).record_event()

    @contextlib.contextmanager
    def acting(self, continues: bool) -> Iterator[None]:
        """Act in this context; `continues` tells that only `publish` has changed anything on the device since."""
        current = torch.cuda.current_stream(self.copy.device)
        if continues and self._is_published is not None:
            self._stream.wait_event(self._is_published)
        else:
            self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def get_state(self) -> dict[str, Tensor]:
        """Return the weights by name, of any shapes."""
        return {name: tensor.detach().clone() for name, tensor in tensors_of({"policy": self.copy})}

    def check_state(self, state: Any) -> None:
        """Raise a `CheckpointError` unless these are weights of the policy."""
        for name, tensor in tensors_of({"policy": self.copy}):
            check_like(f"collector.older.{name}", tensor, dict(state or {}).get(name), "The policy is another.")

    @torch.no_grad()
    def set_state(self, state: Any) -> None:
        """Take over weights that were checked."""
        self.publish()
        for name, tensor in tensors_of({"policy": self.copy}):
            tensor.copy_(state[name])


def acting_policy(
    owner: str, policy: Policy, device: torch.device | str | None, every: int | Every | None
) -> tuple[Policy, WeightSync | None]:
    """Return the policy that acts on a device, and a copy's `WeightSync`; `every` without device is a `ParamsError`."""
    if device is None:
        if every is not None:
            hint = "Without one the policy itself acts, always with its newest weights."
            raise ParamsError.about(owner, "sync_every", "needs a device", every, hint)
        return policy, None
    if (there := require_device(owner, device)) == policy.device:
        return policy, None
    copied = CopyElsewhere(policy, there)
    return copied.copy, WeightSync(owner, every, copied.publish)
