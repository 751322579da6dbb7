"""Several jobs at once: a process of one thread for each, as many at a time as there are cores."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any, Protocol

from tqdm import tqdm  # type: ignore[import-untyped]  # tqdm ships no types

from rltrainer.envs.workers.by_value import dumps, loads
from rltrainer.envs.workers.start_methods import make_context
from rltrainer.errors import EnvError, ParamsError, field_error_text
from rltrainer.loggers.terminal import make_bar
from rltrainer.tools.runs.job_process import OVER, Job, Report, run_job

SECONDS_TO_SAVE = 60.0
"""For what ended runs save, before they are killed."""
_TRAVEL = "must travel to another process"
_TRAVEL_HINT = "Define it at the top level of a module or script; functools.partial takes more arguments along."


class Listener(Protocol):
    """The receiver of the news of jobs, each by its number."""

    def progress(self, number: int, share: float, score: float | None) -> None:
        """Hear how far a job is, in [0, 1], and its best score."""

    def answer(self, number: int, question: Any) -> Any:
        """Return the answer to what a job asks."""

    def ended(self, number: int, result: Any, error: str | None) -> None:
        """Hear the result of a job, or its traceback, or how its process died."""


class Processes:
    """The processes that run at a time, each with its job.

    Args:
        owner: the function of ours that runs them, for error texts.
        word: what a job is there: "seed", "trial".
        limit: how many at a time; None takes as many as this process may use cores.
        listener: who is told of them.
    """

    def __init__(self, owner: str, word: str, limit: int | None, listener: Listener) -> None:
        self._owner, self._word, self._listener = owner, word, listener
        self._limit = limit or _num_cores()
        self._context: Any = make_context(None, owner)
        self._running: dict[Any, tuple[int, Any]] = {}  # by connection

    def run(self, jobs: Iterator[tuple[int, Job]]) -> None:
        """Run them all in their order; the next one is asked for when there is a process for it."""
        has_more = True
        try:
            while has_more or self._running:
                while has_more and len(self._running) < self._limit:
                    has_more = self._start(jobs)
                for pipe in wait(list(self._running)) if self._running else ():
                    self._hear(pipe)
        except BaseException:
            self._end()
            raise

    def _start(self, jobs: Iterator[tuple[int, Job]]) -> bool:
        """Start the next job; return False if there is none."""
        if (following := next(jobs, None)) is None:
            return False
        number, job = following
        pipe, theirs = self._context.Pipe()
        process = self._context.Process(target=run_job, args=(theirs, dumps(job), sys.orig_argv))
        try:
            process.start()
        except (OSError, EOFError) as error:
            hint = 'A script calls it under `if __name__ == "__main__":`.'
            text = f"{self._owner}: the process of {self._word} {number} cannot be started ({error!r})"
            raise EnvError(f"{text}. {hint}") from error
        finally:
            theirs.close()
        self._running[pipe] = number, process
        return True

    def _hear(self, pipe: Any) -> None:
        """Take in what a process tells."""
        number, process = self._running[pipe]
        try:
            report: Report = loads(pipe.recv_bytes())
        except (EOFError, OSError):
            process.join()
            report = Report("failed", f"its process died with exit code {process.exitcode}")
        match report.kind:
            case "progress":
                self._listener.progress(number, *report.value)
                return
            case "question":
                answer = dumps(self._listener.answer(number, report.value))
                with contextlib.suppress(OSError):  # who died meanwhile is heard of next
                    pipe.send_bytes(answer)
                return
            case "no travel":
                text = f"{self._owner}.make: {_TRAVEL}; the process of {self._word} {number} cannot import it"
                raise ParamsError(f"{text}. {_TRAVEL_HINT}\n{report.value}")
        del self._running[pipe]
        pipe.close()
        process.join()
        result, error = (report.value, None) if report.kind == "done" else (None, report.value)
        self._listener.ended(number, result, error)

    def _end(self) -> None:
        """End all; a second interrupt does so at once."""
        processes = [process for _, process in self._running.values()]
        try:
            for pipe, process in zip(self._running, processes, strict=True):
                process.terminate()
                with contextlib.suppress(OSError):
                    pipe.send_bytes(dumps(OVER))  # it may wait for an answer
            for process in processes:
                process.join(SECONDS_TO_SAVE)
        finally:
            for pipe, (_, process) in self._running.items():
                process.kill()
                with contextlib.suppress(OSError):
                    pipe.close()


class Bar:
    """One progress bar for all jobs, where it is wanted: a context.

    Args:
        title, num_jobs: before it, and what is all of it.
        is_shown: whether it is wanted.
    """

    def __init__(self, title: str, num_jobs: int, is_shown: bool) -> None:
        self._title, self._num_jobs, self._is_shown = title, num_jobs, is_shown
        self._shares: dict[int, float] = {}

    def __enter__(self) -> "Bar":
        layout = "{l_bar}{bar}| {n:.2f}/{total} [{elapsed}<{remaining}{postfix}]"
        self._bar = make_bar(total=self._num_jobs, desc=self._title, bar_format=layout, disable=not self._is_shown)
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def move(self, number: int, share: float, **words: str) -> None:
        """Move the bar by what a job has done, and show words by their names."""
        self._shares[number] = share
        if words:
            self._bar.set_postfix({name.replace("_", " "): text for name, text in words.items()}, refresh=False)
        self._bar.update(sum(self._shares.values()) - self._bar.n)

    def write(self, text: str) -> None:
        """Print a line above the bar."""
        if self._is_shown:
            self._bar.write(text)

    @staticmethod
    def complain(text: str) -> None:
        """Print lines above the bar to where errors go, whether the bar is shown or not."""
        tqdm.write(text, file=sys.stderr)


def check_program(owner: str, make: object) -> None:
    """Check that this is no process that imports the program, and that `make` can travel to one."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        hint = 'Call it under `if __name__ == "__main__":`.'
        raise ParamsError(f"{owner}: was called while one of its processes imports the program. {hint}")
    try:
        dumps(make)
    except Exception as error:
        raise ParamsError(field_error_text(owner, "make", _TRAVEL, make, _TRAVEL_HINT)) from error


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
