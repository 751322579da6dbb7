"""Streams and events of the second device: which work has to be over before other work begins, and races between them.

The device works at once, in the order in which Python asks for it. Only a copy to pinned memory for which the host does
not wait ends later. Races are found by clocks: every piece of work has a number in its stream, and each stream and the
host know up to which number the work of the other streams is over.
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor


class StreamRace(RuntimeError):
    """Memory was used while work that was not waited for read or wrote it."""


class CaptureError(RuntimeError):
    """What cannot be captured was done during a capture."""


Clock = dict["Stream", int]
"""For each stream the number of the last piece of its work that is over."""


class Copy:
    """A copy between the device and pinned memory under way in a stream."""

    under_way: ClassVar[list["Copy"]] = []

    def __init__(self, pinned: Tensor, values: Tensor) -> None:
        self.pinned, self.values = alias(pinned), values
        self.stream, self.time = Stream.current, Stream.current.tick()
        Copy.under_way.append(self)

    def end(self) -> None:
        """Let it end."""
        raise NotImplementedError


class Download(Copy):
    """A copy to pinned memory, which holds other numbers until it has ended."""

    def __init__(self, pinned: Tensor, source: Tensor) -> None:
        super().__init__(pinned, torch.empty_like(pinned).copy_(source))
        spoil(pinned, self.values)

    def end(self) -> None:
        """Let it end: the numbers arrive."""
        self.pinned.copy_(self.values)


class Upload(Copy):
    """A copy from pinned memory, done at once; the memory must stay the same until it has ended."""

    def __init__(self, target: Tensor, pinned: Tensor) -> None:
        super().__init__(pinned, pinned.clone())
        target.copy_(pinned)

    def end(self) -> None:
        """Let it end: was it given the time?"""
        if not torch.equal(_as_bytes(self.pinned), _as_bytes(self.values)):
            raise StreamRace("pinned memory was overwritten before the copy from it to the device had ended")


def _as_bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def alias(x: Tensor) -> Tensor:
    """Return a tensor of the same memory, without its gradient."""
    made: Tensor = torch.ops.aten.detach.default(x)
    return made


def spoil(target: Tensor, values: Tensor | None = None) -> None:
    """Fill a tensor with numbers that no one expects: NaN, the largest integer, the opposite of truth values."""
    if target.dtype == torch.bool:
        target.copy_(torch.logical_not(target if values is None else values))
    else:
        is_integer = not target.is_floating_point() and not target.is_complex()
        target.fill_(torch.iinfo(target.dtype).max if is_integer else torch.nan)


def _advance(clock: Clock, other: Clock) -> None:
    for stream, time in other.items():
        clock[stream] = max(time, clock.get(stream, 0))


class Stream:
    """A stream: work in order, each piece with a number."""

    current: ClassVar["Stream"]
    default: ClassVar["Stream"]
    host: ClassVar[Clock] = {}
    """What the host has waited for."""
    made: ClassVar[list["Stream"]] = []
    is_alone: ClassVar[bool]
    """Whether there is only the default stream: no work is noted until there is another."""
    time_alone: ClassVar[int]

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("cuda", 0)
        self._time = 0
        self._known: Clock = {}
        self.freed: list[Clock] = []
        Stream.made.append(self)
        if Stream.is_alone:
            Stream.is_alone, Stream.time_alone = False, Stream.default.tick()

    @classmethod
    def begin(cls) -> None:
        """Forget all streams and copies."""
        cls.made, cls.is_alone = [], False
        cls.default = cls.current = cls()
        cls.host, cls.is_alone, Copy.under_way = {}, True, []

    def tick(self) -> int:
        """Return the number of a new piece of work."""
        self._time += 1
        return self._time

    def now(self) -> Clock:
        """Return the clock of everything that is over when the work of this stream is."""
        return self._known | {self: self._time}

    def knows(self, stream: "Stream", time: int) -> bool:
        """Tell whether work of a stream is over when the next work of this one begins."""
        return stream is self or time <= max(self._known.get(stream, 0), Stream.host.get(stream, 0))

    def wait_stream(self, stream: "Stream") -> None:
        """Begin new work only after all work that another stream has now."""
        _advance(self._known, stream.now())

    def wait_event(self, event: "Event") -> None:
        """Begin new work only after an event."""
        _advance(self._known, event.clock)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Record an event."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Tell whether all work is over, as it is when the host looks."""
        wait(self.now())
        return True

    def synchronize(self) -> None:
        """Let the host wait for all work."""
        wait(self.now())


class Uses:
    """The last uses of a piece of memory; `home` is the stream that gets it again when it is freed."""

    def __init__(self, written: Clock | None = None) -> None:
        self._written: Clock = written or {}
        self._read: Clock = {}
        self.home: Stream | None = None

    def __del__(self) -> None:
        if self.home is not None:
            self.home.freed.append(self._written | self._read)

    def note(self, stream: Stream, time: int, is_written: bool) -> None:
        """Note work, which must begin after the last work that wrote the memory, or that read what is now written."""
        before = self._written | self._read if is_written else self._written
        if not all(stream.knows(*use) for use in before.items()):
            done = "written" if is_written else "read"
            raise StreamRace(f"memory is {done} in a stream while another stream uses it: wait_stream is missing")
        if is_written:
            self._written, self._read = {stream: time}, {}
        else:
            self._read[stream] = time


def uses_of(x: Tensor, is_new: bool = False) -> Uses:
    """Return the uses of a tensor's memory."""
    storage: Any = x.untyped_storage()
    if is_new or not hasattr(storage, "uses"):
        storage.uses = Uses({} if is_new else {Stream.default: Stream.time_alone})
    uses: Uses = storage.uses
    return uses


def note_new(x: Tensor) -> None:
    """Note that the current stream makes a tensor, in memory that it may have had before."""
    stream, uses = Stream.current, uses_of(x, is_new=True)
    note_work([], [uses])
    uses.home = stream
    freed, stream.freed = stream.freed, []
    if not all(stream.knows(*use) for clock in freed for use in clock.items()):
        raise StreamRace("memory of a stream was freed while another stream uses it: record_stream is missing")


def note_work(read: Iterable[Uses], written: Iterable[Uses]) -> None:
    """Note the memory that the current stream reads and writes in a piece of work; raise a `StreamRace`."""
    stream, time = Stream.current, Stream.current.tick()
    for uses in read:
        uses.note(stream, time, False)
    for uses in written:
        uses.note(stream, time, True)


def wait(clock: Clock | None = None) -> None:
    """Let the host wait for work; for all work of the device if there is no clock."""
    if torch.cuda.is_current_stream_capturing():
        raise CaptureError("CUDA error: operation not permitted when stream is capturing")
    for each in [stream.now() for stream in Stream.made] if clock is None else [clock]:
        _advance(Stream.host, each)
    ended = [copy for copy in Copy.under_way if copy.time <= Stream.host.get(copy.stream, 0)]
    Copy.under_way = [copy for copy in Copy.under_way if copy not in ended]
    with torch.inference_mode():
        for copy in ended:
            copy.end()


class StreamContext:
    """Makes a stream the current one."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = Stream.current
        Stream.current = self._stream or self._before

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        Stream.current = self._before


class Event:
    """An event: the work of a stream when it was recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.clock: Clock = {}
        self._was_asked = False

    def record(self, stream: Stream | None = None) -> None:
        """Take the work that a stream has now."""
        self.clock, self._was_asked = (stream or Stream.current).now(), False

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for the event."""
        (stream or Stream.current).wait_event(self)

    def query(self) -> bool:
        """Tell whether the work is over: not yet when the host looks for the first time, unless it has waited."""
        is_over = self._was_asked or all(time <= Stream.host.get(stream, 0) for stream, time in self.clock.items())
        self._was_asked = True
        if is_over:
            wait(self.clock)
        return is_over

    def synchronize(self) -> None:
        """Let the host wait for the work."""
        wait(self.clock)

    def elapsed_time(self, other: "Event") -> float:
        """Return some milliseconds."""
        return 1.0
