"""Signals to a run: the end that one asks for is noted, and made where the run can be saved."""

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

STOPS = (signal.SIGTERM, signal.SIGINT)
SAVE = getattr(signal, "SIGUSR1", None)  # not on Windows


class RunSignals:
    """Handles SIGTERM, SIGINT and SIGUSR1 inside its context; in the main thread, as Python handles none elsewhere.

    Attributes:
        stopped_by: the last signal that asked for the end; 0 before.
        num_stops: how many have.
        wants_save: whether SIGUSR1 came since this was set to False.
        breaks_off: whether the first signal ends what runs at once, as a second one does in any case.
    """

    def __init__(self) -> None:
        self.stopped_by = self.num_stops = 0
        self.wants_save = self.breaks_off = False
        self._process = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.wants_save, self._process = False, os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in (*STOPS, *([] if SAVE is None else [SAVE])):
                # None is a handler that is not Python's, which could not be restored. Who ignores a signal, as nohup
                # and shells do for what runs in the background, means it.
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
        is_late, end = kind is None and self.num_stops > 0, self.end()
        self.stopped_by = self.num_stops = 0
        if is_late:  # it came when all was done
            raise end

    def end(self) -> BaseException:
        """Return what ends the program, as the signal would have without us."""
        return KeyboardInterrupt() if self.stopped_by == signal.SIGINT else SystemExit(128 + self.stopped_by)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork, as of a user's own worker, is no run
            signal.signal(number, self._before[number])
            os.kill(os.getpid(), number)
        elif number == SAVE:
            self.wants_save = True
        else:
            self.stopped_by, self.num_stops = number, self.num_stops + 1
            if self.num_stops > 1 or self.breaks_off:
                raise self.end()
