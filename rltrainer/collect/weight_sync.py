"""Weights for copies of a policy, which act on another device or in another process while the policy is trained.

Versions are counted from 0, the weights of a run's first collection; `Policy.version` of the copy says which it has.
"""

import contextlib
import copy
import errno
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rltrainer.device import require_device
from rltrainer.errors import EnvError, ParamsError
from rltrainer.interval import Every, as_every
from rltrainer.nets import Policy
from rltrainer.processes.shared_arrays import SharedArrays
from rltrainer.state.codec import check_like
from rltrainer.validation.field_rules import NonNegativeInt

# A trainer's counters by their unit.
Counts = Mapping[str, float]
# Name, shape and dtype of each tensor.
Layout = list[tuple[str, tuple[int, ...], torch.dtype]]
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
        """Tell whether collections may begin with older weights than the policy's."""
        return self._every != EACH_STEP

    def sync(self, counts: Counts | None) -> bool:
        """Publish the weights if they are due by a trainer's counters, or at once without counters.

        Return whether the counters are those of a run that begins: its versions count from 0.
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
        if seen is not None and before is not None and seen < before:  # another run begins
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
        """Return the weights by name."""
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
    """Return the policy that acts on a device, and the `WeightSync` of it if it is a copy."""
    if device is None:
        if every is not None:
            hint = "Without one the policy itself acts, always with its newest weights."
            raise ParamsError.about(owner, "sync_every", "needs a device", every, hint)
        return policy, None
    if (there := require_device(owner, device)) == policy.device:
        return policy, None
    copied = CopyElsewhere(policy, there)
    return copied.copy, WeightSync(owner, every, copied.publish)


class SharedWeights:
    """The newest weights, in memory that processes share; `file` is another process's descriptor, None makes it.

    Weights are written and read under a lock, so that no worker acts with half of a version.
    """

    def __init__(self, layout: Layout, file: int | None = None) -> None:
        self.layout = layout
        sizes = (dtype.itemsize * math.prod(shape) for _, shape, dtype in layout)
        self._memory = SharedArrays(
            {
                "numbers": np.dtype((np.int64, (2,))),  # serial and version
                "progress": np.dtype((np.float64, (1,))),
                "weights": tuple(np.dtype((np.uint8, (size,))) for size in sizes),
            },
            file,
        )
        arrays = self._memory.arrays
        self.file, self._numbers, self._progress = self._memory.file, arrays["numbers"], arrays["progress"]
        self._views = [
            torch.from_numpy(array).view(dtype).view(shape)
            for array, (_, shape, dtype) in zip(arrays["weights"], layout, strict=True)
        ]

    @torch.no_grad()
    def publish(self, sources: Sequence[Tensor], version: int, progress: float, timeout: float | None) -> None:
        """Write weights, on any device, and the progress on which schedules of exploration depend.

        A worker that reads for more than `timeout` seconds is an `EnvError`; None lets it take any time.
        """
        with _locked(self.file, timeout, is_shared=False):
            torch._foreach_copy_(self._views, list(sources))
            self._numbers[:], self._progress[0] = (self.serial + 1, version), progress

    @torch.no_grad()
    def take(self, targets: Sequence[Tensor]) -> tuple[int, int, float]:
        """Copy the newest weights; return their serial, their version, and the progress of the training."""
        with _locked(self.file, None, is_shared=True):
            torch._foreach_copy_(list(targets), self._views)
            return self.serial, int(self._numbers[1]), float(self._progress[0])

    @property
    def serial(self) -> int:
        """The number of publications; a version may have several, as after a checkpoint was loaded."""
        return int(self._numbers[0])


class Publisher:
    """Publishes the weights of modules, by their paths in a worker, and the policy's progress.

    `weights`, made by `make` for a layout, is the memory that the workers have; None before they have it.
    """

    def __init__(
        self, owner: str, policy: Policy, modules: Mapping[str, nn.Module], make: Any, timeout: float | None
    ) -> None:
        self.weights: Any = None
        self._owner, self._policy, self.modules, self._make, self._timeout = owner, policy, modules, make, timeout

    def begin(self) -> Any:
        """Make the memory; from now on the modules must keep their tensors."""
        self._weight_dtype, named = self._policy.weight_dtype, tensors_of(self.modules)
        self._sources = [tensor for _, tensor in named]
        return self._make(layout_of(named))

    def publish(self, version: int) -> None:
        """Publish the present weights."""
        assert self.weights is not None, "begun"
        if self._policy.weight_dtype is not self._weight_dtype:
            rule = f"must stay in {self._weight_dtype}, which workers have, and is in {self._policy.weight_dtype}"
            raise ParamsError(f"{self._owner}.policy: {rule}. Make the trainer before anything is collected.")
        self.weights.publish(self._sources, version, self._policy.progress(), self._timeout)


def check_layout(expected: Layout, found: Layout, owner: str) -> None:
    """Raise a `ParamsError` that names the first tensor of a copy that differs from its source."""
    mine, other = {name: rest for name, *rest in expected}, {name: rest for name, *rest in found}
    for name in [*mine, *other]:
        if mine.get(name) != other.get(name):
            here, there = (table.get(name, "nothing") for table in (mine, other))
            rule = "must have the same tensors here and in the workers"
            raise ParamsError(f"{owner}: {rule}; {name}: {here} here, {there} there")


@contextlib.contextmanager
def _locked(file: int, timeout: float | None, is_shared: bool) -> Iterator[None]:
    # The lock is the kernel's on the file: a process that dies with it loses it. Readers share it.
    import fcntl  # Windows has none: there rltrainer imports, and has no workers that share weights

    until = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        try:
            fcntl.lockf(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        if timeout is not None and time.monotonic() > until:
            raise EnvError(f"a worker process reads its weights for more than {timeout:g} seconds")
        time.sleep(2e-5)  # a copy of the weights takes some hundred microseconds
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)


def layout_of(tensors: Sequence[tuple[str, Tensor]]) -> Layout:
    """Return the layout of named tensors."""
    return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors]
