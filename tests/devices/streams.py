"""Streams and events of the second device, and what pinned memory holds while a copy to or from it is under way.

The device works at once, in the order in which Python asks for it. Only a copy that the host does not wait for ends
later: once the host has waited for its stream, by a clock of what is known to be over.
"""

from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor


class StreamRace(RuntimeError):
    """Memory was changed while work of a stream still needed it."""


class CaptureError(RuntimeError):
    """What cannot be captured was done during a capture."""


class Copy:
    """A copy between the device and pinned memory under way in a stream."""

    under_way: ClassVar[list["Copy"]] = []

    def __init__(self, pinned: Tensor, values: Tensor) -> None:
        self.pinned, self.values = pinned, values
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


def spoil(target: Tensor, values: Tensor | None = None) -> None:
    """Fill a tensor with numbers that no one expects: NaN, the largest integer, the opposite of truth values."""
    if target.dtype == torch.bool:
        target.copy_(torch.logical_not(target if values is None else values))
    else:
        is_integer = not target.is_floating_point() and not target.is_complex()
        target.fill_(torch.iinfo(target.dtype).max if is_integer else torch.nan)


Clock = dict["Stream", int]
"""For each stream the number of its last piece of work that is known to be over."""


def _advance(clock: Clock, other: Clock) -> None:
    for stream, time in other.items():
        clock[stream] = max(time, clock.get(stream, 0))


class Stream:
    """A stream: work in order, each piece with a number."""

    current: ClassVar["Stream"]
    default: ClassVar["Stream"]
    host: ClassVar[Clock] = {}
    """What the host has waited for."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("cuda", 0)
        self._time = 0
        self._known: Clock = {}

    @classmethod
    def begin(cls) -> None:
        """Forget all streams and copies."""
        cls.default = cls.current = cls()
        cls.host, Copy.under_way = {}, []

    def tick(self) -> int:
        """Return the number of a new piece of work."""
        self._time += 1
        return self._time

    def now(self) -> Clock:
        """Return the clock of everything that is over when the work of this stream is."""
        return self._known | {self: self._time}

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


def wait(clock: Clock | None = None) -> None:
    """Let the host wait for work; for all work of the device if there is no clock."""
    if torch.cuda.is_current_stream_capturing():
        raise CaptureError("CUDA error: operation not permitted when stream is capturing")
    if clock is not None:
        _advance(Stream.host, clock)
    ended = [copy for copy in Copy.under_way if clock is None or copy.time <= Stream.host.get(copy.stream, 0)]
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

    def record(self, stream: Stream | None = None) -> None:
        """Take the work that a stream has now."""
        self.clock = (stream or Stream.current).now()

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for the event."""
        (stream or Stream.current).wait_event(self)

    def query(self) -> bool:
        """Tell whether the work is over, as it is when the host looks."""
        wait(self.clock)
        return True

    def synchronize(self) -> None:
        """Let the host wait for the work."""
        wait(self.clock)

    def elapsed_time(self, other: "Event") -> float:
        """Return some milliseconds."""
        return 1.0
