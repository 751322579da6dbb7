"""Several jobs at once: a worker process of one thread for each, as many at a time as there are cores."""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Self

from rltrainer.errors import EnvError, ParamsError
from rltrainer.loggers.terminal import make_bar
from rltrainer.processes.channel import dumps
from rltrainer.processes.program import Link
from rltrainer.processes.worker import Report, Worker, WorkerGroup, make_context, num_cores
from rltrainer.trainers import Trainer

# Time for ended runs to save before they are killed.
SECONDS_TO_SAVE = 60.0
# Seconds between two reports of progress.
TICK = 0.5
# The answer to a question if the parent ends all jobs, or is gone.
OVER = None
_TRAVEL = "must travel to another process"
_TRAVEL_HINT = "Define it at the top level of a module or script; functools.partial takes more arguments along."


class Parent:
    """The program of a job's process: through it the job asks, and reports to, the process that started it."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def do(self, pickled: bytes) -> tuple[str, Any]:
        """Do a pickled job; return "done" with its result, or why it has none with a traceback."""
        try:
            job: Job = self._link.load(pickled)
        except Exception:
            return "no travel", traceback.format_exc()
        try:
            return "done", job(self)
        except BaseException:  # of a signal, too
            return "failed", traceback.format_exc()

    def close(self) -> None:
        """Do nothing: a job holds what it uses."""

    def ask(self, question: Any) -> Any:
        """Return the answer to a question, or `OVER`."""
        return self._link.ask(("question", question))

    def run(self, trainer: Trainer[Any, Any]) -> Any:
        """Run a trainer, and report its progress."""
        # A thread of its own: no point of a trainer is called twice a second, however long its steps take.
        is_over = threading.Event()
        reports = threading.Thread(target=self._report, args=(trainer, is_over), daemon=True)
        reports.start()
        try:
            return trainer.run()
        finally:
            is_over.set()
            reports.join()

    def _report(self, trainer: Trainer[Any, Any], is_over: threading.Event) -> None:
        while not is_over.wait(TICK):
            state = trainer.state
            share = trainer.params.share_done(*state.num_epochs_and_steps(trainer.step_unit))
            self._link.report(("progress", share, state.best.score))


Job = Callable[[Parent], Any]


class Listener:
    """Receives the news of jobs, by their numbers."""

    def progress(self, number: int, share: float, score: float | None) -> None:
        """Note how far a job is, in [0, 1], and its best score."""

    def answer(self, number: int, question: Any) -> Any:
        """Return the answer to a job's question; None if jobs ask nothing."""
        return None

    def ended(self, number: int, result: Any, error: str | None) -> None:
        """Note the result of a job, or its traceback, or how its process died."""


class Processes:
    """The processes that run at once, each with its job."""

    def __init__(self, owner: str, word: str, limit: int | None, listener: Listener) -> None:
        self._owner, self._word, self._listener, self._limit = owner, word, listener, limit or num_cores()
        self._context = make_context(None, owner)
        self._group = WorkerGroup[Worker](owner)
        self._numbers: dict[Worker, int] = {}

    def run(self, jobs: Iterator[tuple[int, Job]]) -> None:
        """Run all jobs in their order; the next one is asked for when a process is free."""
        try:
            for number, job in jobs:
                self._start(number, job)
                self._receive_until_fewer_than(self._limit)
            self._receive_until_fewer_than(1)
        finally:
            # Ended runs with checkpoints save first; a second interrupt ends them at once.
            self._end()

    def _end(self) -> None:
        self._group.end(SECONDS_TO_SAVE)

    def _receive_until_fewer_than(self, limit: int) -> None:
        while len(running := self._group.workers) >= limit:
            for worker in self._group.ready(list(running), None):
                self._receive(worker)

    def _start(self, number: int, job: Job) -> None:
        try:
            worker = Worker(self._context, f"{self._word} {number}", Parent, seconds_to_save=SECONDS_TO_SAVE)
        except EnvError as error:
            raise EnvError(f'{self._owner}: {error}. A script calls it under `if __name__ == "__main__":`.') from error
        self._group.workers.append(worker)
        self._numbers[worker] = number
        worker.call("its run", "do", dumps(job))

    def _receive(self, worker: Worker) -> None:
        """Take the next message of a process."""
        number, listener = self._numbers[worker], self._listener
        try:
            message = worker.receive()
        except EnvError as error:
            message = ("failed", str(error))
        match message:
            case Report(("progress", share, score)):
                return listener.progress(number, share, score)
            case Report(("question", question)):
                return worker.reply(listener.answer(number, question))
        self._group.workers.remove(worker)
        worker.finish()
        self._finish(number, *message)

    def _finish(self, number: int, outcome: str, value: Any) -> None:
        """Note what a job's `Parent.do` has returned."""
        if outcome == "no travel":
            text = f"{self._owner}.make: {_TRAVEL}; the process of {self._word} {number} cannot import it"
            raise ParamsError(f"{text}. {_TRAVEL_HINT}\n{value}")
        self._listener.ended(number, *((value, None) if outcome == "done" else (None, value)))


class Bar:
    """One progress bar for all jobs, if it is wanted: a context."""

    def __init__(self, title: str, num_jobs: int, is_shown: bool) -> None:
        layout = "{l_bar}{bar}| {n:.2f}/{total} [{elapsed}<{remaining}{postfix}]"
        self._bar = make_bar(total=num_jobs, desc=title, bar_format=layout, disable=not is_shown)
        self._is_shown, self._shares = is_shown, dict[int, float]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def move(self, number: int, share: float, **words: str) -> None:
        """Move the bar by a job's progress, and show words by their names."""
        self._shares[number] = share
        if words:
            self._bar.set_postfix({name.replace("_", " "): text for name, text in words.items()}, refresh=False)
        self._bar.update(sum(self._shares.values()) - self._bar.n)

    def write(self, text: str) -> None:
        """Print a line above the bar."""
        if self._is_shown:
            self._bar.write(text)


def check_program(owner: str, make: object) -> None:
    """Raise a `ParamsError` in a process that imports the program, or if `make` cannot travel to one."""
    # A new process imports the program under this name, so the call stands at the program's top level.
    frames = (frame for frame, _ in traceback.walk_stack(None))
    if any(frame.f_globals.get("__name__") == "__mp_main__" and frame.f_code.co_name == "<module>" for frame in frames):
        hint = 'Call it under `if __name__ == "__main__":`.'
        raise ParamsError(f"{owner}: was called while one of its processes imports the program. {hint}")
    check_travels(owner, "make", make)


def check_travels(owner: str, field: str, value: object) -> None:
    """Raise a `ParamsError` if a value cannot be sent to another process."""
    try:
        pickled = dumps(value)
    except Exception as error:
        raise ParamsError.about(owner, field, _TRAVEL, value, _TRAVEL_HINT) from error
    if b"__main__" in pickled and not hasattr(sys.modules["__main__"], "__file__"):  # no process can import a notebook
        hint = "Write what a cell defines to a file, with %%writefile my_module.py, and import it from there."
        raise ParamsError.about(owner, field, _TRAVEL, value, hint)
