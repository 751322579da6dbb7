"""Collection by actors of a Ray cluster that act while the learner updates; lost actors are replaced."""

import contextlib
import math
import os
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rltrainer.collect.async_collector import AsyncCollector
from rltrainer.collect.async_rows import RowQueue
from rltrainer.collect.async_worker import CollectingProgram, CollectingTeam, CollectingWorker
from rltrainer.collect.shared_weights import Layout, Publisher
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.errors import EnvError
from rltrainer.interval import Every
from rltrainer.nets import Exploration, Policy
from rltrainer.processes.channel import FAILED, dumps, loads
from rltrainer.processes.program import IDLE, answer
from rltrainer.processes.ray_cluster import connected_ray
from rltrainer.processes.worker import GRACE, WorkerLostError
from rltrainer.seeding import derive_seed
from rltrainer.validation.field_rules import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, checked

SET_UP = ("make", "begin", "configure", "record_episodes")  # calls that the next actor gets again


class SentWeights:
    """The newest weights as one object of the cluster, `ref`; published as `SharedWeights` are."""

    def __init__(self, ray: Any, layout: Layout) -> None:
        self._ray, self.layout, self.ref, self.file, self._serial = ray, layout, None, None, 0

    def publish(self, sources: Sequence[Tensor], version: int, progress: float, timeout: float | None) -> None:
        """Store weights, of any shapes and device, and the progress on which schedules of exploration depend."""
        self._serial += 1
        arrays = [x.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for x in sources]
        self.ref = self._ray.put((self._serial, version, progress, arrays))


class ActorProgram(CollectingProgram):
    """A `CollectingProgram` in an actor; it is also the link, without a pulse, and holds the weights that come."""

    def __init__(self, owner: str, make_envs: bytes, number: int | str, seed: int) -> None:
        torch.set_num_threads(1)
        self.load, self.pulse, self.serial = loads, np.zeros(1, np.int64), 0
        link: Any = self
        super().__init__(link, owner, make_envs, number, seed)

    def serve(self, calls: list[bytes], weights: Any) -> tuple[bytes, ...]:
        """Call methods, with the newest weights; return the last one's result or the first exception, as a message."""
        if weights is not None:
            self.serial, *self._message = weights
        for data in calls:
            message = answer(self, self._link, *loads(data))
            if message[0] == FAILED:
                break
        return message

    def receive_weights(self, layout: Layout) -> Any:
        """Return itself, which is read as `SharedWeights` are."""
        self.layout = layout
        return self

    @torch.no_grad()
    def take(self, targets: Sequence[Tensor]) -> tuple[int, int, float]:
        """Copy the newest weights, of any shapes; return their serial, their version, and the training's progress."""
        version, progress, arrays = self._message
        for target, array, (_, shape, dtype) in zip(targets, arrays, self.layout, strict=True):
            target.copy_(torch.from_numpy(array.copy()).view(dtype).view(shape))  # Ray's memory cannot be written
        return self.serial, version, progress


@dataclass(slots=True)
class _Call:
    when: str
    name: str
    data: bytes
    num_rows: int
    result: Any = None


class RayWorker(CollectingWorker):
    """An actor, and the next one when it is lost: it is set up alike, and gets the calls that have no answer.

    `publisher` has the newest weights; `options` are Ray's for an actor; `RayCollector` explains the others.
    """

    def __init__(
        self, ray: Any, publisher: Publisher, options: dict[str, Any], max_restarts: int, owner: str, make_envs: bytes,
        timeout: float | None, number: int, seed: int,
    ) -> None:  # fmt: skip
        self.number, self.queue, self.num_env_restarts, self.num_losses = number, RowQueue(), 0, 0
        self.ray, self.timeout, self.is_busy = ray, timeout, False
        self._publisher, self._max_restarts, self._seed = publisher, max_restarts, seed
        self._actor_class, self._arguments = ray.remote(ActorProgram).options(**options), (owner, make_envs)
        self._num_envs = self._num_in_vain = 0
        self.calls, self._set_up = deque[_Call](), dict[str, bytes]()
        self.actor = self._actor_class.remote(*self._arguments, number, seed)

    @property
    def num_asked_rows(self) -> int | None:
        """Rows on their way; None if there are two collections, one of which runs while the other travels."""
        return None if len(self.calls) == 2 else sum(call.num_rows for call in self.calls)

    def who(self, pulse: int = IDLE) -> str:
        """Name the actor."""
        return f"actor {self.number}"

    def call(self, when: str, name: str, *arguments: Any, file: int | None = None) -> None:
        """Call a method; see `Worker.call`."""
        if name != "collect":
            self.calls.clear()  # an interrupt kept their answers from being received
        if arguments[:1] == ("seed",):
            self._seed = arguments[1]
        num_rows = arguments[0].num_rows or 0 if name == "collect" else 0
        self._send_call(_Call(when, name, dumps((name, arguments)), num_rows))

    def _receive_message(self, watch: Callable[[], None]) -> tuple[bytes, bytes | None]:
        while True:
            call = self.calls[0]
            self.when = call.when
            try:
                if not self.ray.wait([call.result], timeout=self.timeout)[0]:
                    raise EnvError(f"no answer within call_timeout={self.timeout:g} seconds")
                kind, *data = self.ray.get(call.result)
            except (EnvError, self.ray.exceptions.RayError) as error:
                self._replace(error)
                continue
            self.calls.popleft()
            self.is_busy, self._num_in_vain = bool(self.calls), 0
            if kind != FAILED and call.name in SET_UP:
                self._set_up[call.name] = call.data
                if call.name == "make":
                    self._num_envs = loads(data[0])[1]
            return kind, data[0] if data else None

    def _send_call(self, call: _Call, before: Sequence[bytes] = ()) -> None:
        weights = getattr(self._publisher.weights, "ref", None)
        call.result, self.is_busy = self.actor.serve.remote([*before, call.data], weights), True
        self.calls.append(call)

    def _replace(self, error: Exception) -> None:
        """Start the next actor; its envs start again with other seeds."""
        self.ray.kill(self.actor)
        if self._num_in_vain == self._max_restarts:
            text = f"lost after max_restarts={self._max_restarts} replacements in a row"
            raise WorkerLostError(f"{self.who()}, during {self.when}: {text}\n{type(error).__name__}: {error}")
        self._num_in_vain, self.num_losses = self._num_in_vain + 1, self.num_losses + 1
        self.num_lost_envs = self.num_env_restarts = self.num_env_restarts + self._num_envs
        self.queue.clear()  # the next actor does not continue their trajectories
        seed = derive_seed(self._seed, "restart", self.num_losses)
        reseed = [dumps(("call", ("seed", seed)))] if "begin" in self._set_up else []
        self.actor = self._actor_class.remote(*self._arguments, f"{self.number}.{self.num_losses}", seed)
        unanswered, self.calls = self.calls, deque()
        for call in unanswered:
            self._send_call(call, [] if self.calls else [*self._set_up.values(), *reseed])


def end_actors(actors: list[Any], owner: int, grace: float = GRACE) -> None:
    """Let actors close their envs, end them and empty the list; see `end_workers`."""
    ending, actors[:] = list(actors), []
    with contextlib.suppress(Exception):
        if ending and os.getpid() == owner and ending[0].ray.is_initialized():  # a call would start another cluster
            for actor in ending:
                actor.call("its end", "close")
            ending[0].ray.wait([each.calls[0].result for each in ending], num_returns=len(ending), timeout=grace)
            for actor in ending:
                actor.ray.kill(actor.actor)


class RayTeam(CollectingTeam):
    """Actors that collect; nodes may have the code at other places."""

    here, end_all = None, staticmethod(end_actors)

    def ready(self, workers: Sequence[CollectingWorker], timeout: float | None) -> list[CollectingWorker]:
        """Return a busy actor among these that has answered or is lost; if there is none, wait for the first."""
        actors: Any = workers
        busy = {actor.calls[0].result: actor for actor in actors}
        seconds = actors[0].timeout if busy and timeout is None else timeout
        found = actors[0].ray.wait(list(busy), timeout=seconds)[0] if busy else []
        return [busy[each] for each in found] or actors[: timeout is None]


class RayCollector(AsyncCollector):
    """Collects by actors of a Ray cluster, each with the program of a worker of an `AsyncCollector`.

    ```
    make_envs = functools.partial(rl.make_vec, "HalfCheetah-v5", num_envs=8)
    collector = rl.RayCollector(algorithm.policy, make_envs, num_actors=32, buffer=buffer)
    ```

    Each version of the weights is one object of the cluster. An actor has at most two collections to make. If it is
    lost, alone or with its node, another one starts new episodes in its place: rows that were not collected are
    dropped, and its envs count in `num_env_restarts`. The log has `actor_restarts` and `refused_env_steps`. State is as
    of an `AsyncCollector`; with `max_ahead=0` a run without losses resumes bit for bit.

    Args:
        num_actors: together they have N envs, the first actor's first.
        max_version_lag: versions that the weights of a row may be older than the newest; older rows are dropped. None
            takes all. Off policy, with a few rows per training step, pass 16 or more.
        max_ahead: see `AsyncCollector`; None lets no row become too old.
        num_cpus, num_gpus: that Ray gives each actor, or parts of one.
        call_timeout: seconds to wait for an actor's answer before it counts as lost; None for any time.
        max_restarts: how many actors may be lost in a row before one answers.
        policy, make_envs, buffer, exploration, sync_every, modules, info_keys: see `AsyncCollector`, also for errors.
    """

    owner: ClassVar[str] = "RayCollector"

    def __init__(
        self, policy: Policy, make_envs: Callable[[], gym.vector.VectorEnv[Any, Any, Any]], num_actors: int = 1,
        buffer: ReplayBuffer | RolloutBuffer | None = None, exploration: Exploration | None = None, *,
        max_version_lag: int | None = 1, max_ahead: int | None = None, sync_every: Every | None = None,
        modules: Mapping[str, nn.Module] | None = None, info_keys: Sequence[str] = (), num_cpus: float = 1.0,
        num_gpus: float = 0.0, call_timeout: float | None = 600.0, max_restarts: int = 3,
    ) -> None:  # fmt: skip
        num_actors = checked(self.owner, "num_actors", num_actors, PositiveInt)
        max_lag = checked(self.owner, "max_version_lag", max_version_lag, NonNegativeInt | None)
        self._max_lag = math.inf if max_lag is None else max_lag
        sizes = {"num_cpus": num_cpus, "num_gpus": num_gpus}
        self._options = {name: checked(self.owner, name, value, NonNegativeFloat) for name, value in sizes.items()}
        call_timeout = checked(self.owner, "call_timeout", call_timeout, PositiveFloat | None)
        self._max_restarts = checked(self.owner, "max_restarts", max_restarts, NonNegativeInt)
        super().__init__(
            policy, make_envs, num_actors, buffer, exploration, sync_every=sync_every, modules=modules,
            max_ahead=max_ahead, step_timeout=call_timeout, info_keys=info_keys,
        )  # fmt: skip

    def _connect(self, num_workers: int) -> None:
        self._ray = ray = connected_ray(self.owner)
        if (num := num_workers * self._options["num_cpus"]) > ray.cluster_resources().get("CPU", 0):
            warnings.warn(f"{self.owner}.num_actors: some wait until the cluster has {num:g} CPUs", stacklevel=4)
        self._pack, self._make_weights = ray.cloudpickle.dumps, partial(SentWeights, ray)

    def _make_team(
        self, make_envs: bytes, num_workers: int, method: str | None, timeout: float | None
    ) -> CollectingTeam:
        arguments = self._publisher, self._options, self._max_restarts, self.owner, make_envs, timeout
        return RayTeam(self.owner, partial(RayWorker, self._ray, *arguments), num_workers, self._sync.require)

    def settings(self) -> dict[str, float]:
        """Return what an `AsyncCollector` logs, the actors that were lost, and the env steps that were refused."""
        team: Any = self._team
        losses = float(sum(worker.num_losses for worker in team.workers))
        return super().settings() | {"actor_restarts": losses, "refused_env_steps": float(team.num_refused)}
