"""Processes of lives: forked from one that has imported everything, and watched from outside."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.life import LONGEST

ENDS = {signal.SIGTERM: (143,), signal.SIGINT: (-signal.SIGINT,)}
"""Exit statuses of a run that a signal ended, as `subprocess` tells them."""


class Born(BaseException):
    """Leaves all frames of the conductor in a forked process, so that its life ends as a program's would."""

    def __init__(self, live: Callable[[], None]) -> None:
        self.live = live


@dataclass
class Life:
    """A life, as it is seen from outside.

    Args:
        live: what the process does.
        journal, errors: where it notes how far it has come, and where its standard error goes.
        longest: seconds that it may take.
    """

    live: Callable[[], None]
    journal: Path
    errors: Path
    longest: float = LONGEST
    pid: int = 0
    status: int | None = None

    def start(self) -> "Life":
        self.pid = os.fork()
        if self.pid == 0:
            raise Born(self.live)
        return self

    @property
    def is_over(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def wait(self, until: Callable[[], bool] = lambda: False, seconds: float | None = None) -> bool:
        """Wait until something holds, or the life is over, or is ended for taking so long; return whether it holds."""
        deadline = time.monotonic() + (self.longest + 5.0 if seconds is None else seconds)
        while not self.is_over:
            if until():
                return True
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL, to_all=True)
                os.waitpid(self.pid, 0)
                self.status = TOO_LONG
                return False
            time.sleep(0.002)
        return until()

    def sleep(self, seconds: float) -> None:
        """Let so much time pass, if the life goes on so long."""
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > until)

    def signal(self, number: int, to_all: bool = False) -> bool:
        """Send a signal to the process, or to all of its session; return whether it was there to get it."""
        if self.is_over:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if to_all else os.kill)(self.pid, number)
            return True
        return False

    def notes(self, kind: str) -> list[list[str]]:
        """Return the words of each note of a kind."""
        text = self.journal.read_text() if self.journal.exists() else ""
        return [words[1:] for line in text.splitlines() if (words := line.split()) and words[0] == kind]

    @property
    def has_begun(self) -> bool:
        return self.journal.exists() and self.journal.stat().st_size > 0

    @property
    def steps(self) -> list[int]:
        """The training steps that have begun."""
        return [int(words[0]) for words in self.notes("step")]

    @property
    def stderr(self) -> str:
        return self.errors.read_text(errors="replace") if self.errors.exists() else ""

    @property
    def error(self) -> str:
        """What a traceback ends with, if an exception has ended it."""
        found = re.findall(
            r"^(?:[\w.]+\.)?(\w*(?:Error|Exit|Interrupt|Exception)(?:: .*)?)$", self.stderr, re.MULTILINE
        )
        return found[-1] if found else ""

    @property
    def warnings(self) -> list[str]:
        """The warnings that it was told."""
        return re.findall(r"^[^\n]*\w*Warning: (.*)$", self.stderr, re.MULTILINE)


TOO_LONG = 999


def processes_of(session: int) -> list[int]:
    """Return the processes of a session that run."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, of, *_ = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(of) == session and state != "Z":
                    found.append(int(name))
    return found
