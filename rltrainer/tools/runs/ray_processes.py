"""Several jobs at once in processes of a Ray cluster."""

import asyncio
import collections
import sys
from typing import Any

import torch

from rltrainer.processes.channel import loads
from rltrainer.processes.ray_cluster import connected_ray
from rltrainer.tools.runs.processes import OVER, SECONDS_TO_SAVE, Job, Listener, Parent, Processes
from rltrainer.trainers import Trainer


class Mailbox:
    """Queues by key, in an actor."""

    def __init__(self) -> None:
        self._queues: dict[Any, asyncio.Queue[Any]] = collections.defaultdict(asyncio.Queue)

    async def put(self, key: Any, value: Any) -> None:
        """Append a value."""
        self._queues[key].put_nowait(value)

    async def get(self, key: Any) -> Any:
        """Return the oldest value, once there is one."""
        return await self._queues[key].get()


class _TaskParent(Parent):
    """The parent of a job in a task."""

    load = staticmethod(loads)

    def __init__(self, number: int, mailbox: Any) -> None:
        self._link: Any = self
        self._number, self._mailbox, self._ray = number, mailbox, connected_ray("rl.sweep")

    def ask(self, question: Any) -> Any:
        self._mailbox.put.remote("questions", (self._number, question))
        try:
            return self._ray.get(self._mailbox.get.remote(self._number))
        except self._ray.exceptions.RayError:  # all jobs are ended
            return OVER

    def run(self, trainer: Trainer[Any, Any]) -> Any:
        return trainer.run()  # questions say how far it is


class RayProcesses(Processes):
    """The tasks that run at once, each with its job in a process of its own; `uses_gpu` gives each a GPU."""

    def __init__(self, uses_gpu: bool, owner: str, word: str, limit: int | None, listener: Listener) -> None:
        self._ray = ray = connected_ray(owner)
        super().__init__(owner, word, limit or int(ray.cluster_resources().get("CPU", 1)), listener)
        self._mailbox = ray.remote(num_cpus=0)(Mailbox).remote()
        self._task = ray.remote(num_cpus=1, num_gpus=int(uses_gpu), max_calls=1, max_retries=0)(_do)
        self._tasks: dict[Any, int] = {}
        self._question = self._mailbox.get.remote("questions")

    def _start(self, number: int, job: Job) -> None:
        self._tasks[self._task.remote(self._ray.cloudpickle.dumps(job), number, self._mailbox, sys.orig_argv)] = number

    def _receive_until_fewer_than(self, limit: int) -> None:
        while len(self._tasks) >= limit:
            [result], _ = self._ray.wait([self._question, *self._tasks])
            if result == self._question:
                number, question = self._ray.get(result)
                self._question = self._mailbox.get.remote("questions")
                self._mailbox.put.remote(number, self._listener.answer(number, question))
                continue
            number = self._tasks.pop(result)
            try:
                outcome = self._ray.get(result)
            except self._ray.exceptions.RayError as error:
                outcome = ("failed", f"{type(error).__name__}: {error}")
            self._finish(number, *outcome)

    def _end(self) -> None:
        self._ray.kill(self._mailbox)
        for task in self._tasks:
            self._ray.cancel(task)
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=SECONDS_TO_SAVE)


def _do(job: bytes, number: int, mailbox: Any, command: list[str]) -> tuple[str, Any]:
    torch.set_num_threads(1)
    sys.orig_argv = command  # of the sweep: runs record it as theirs
    return _TaskParent(number, mailbox).do(job)
