"""The adapter of envs that are stepped each by itself: some of them at a time, in any order."""

from collections import deque
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.envs.adapter.action_history import ActionHistory, StreamHistory
from rltrainer.envs.adapter.actions import ActionConverter
from rltrainer.envs.adapter.adapter import EnvAdapter
from rltrainer.envs.adapter.env_state import NO_ROWS
from rltrainer.envs.adapter.episode_clock import Mask, Rows
from rltrainer.envs.adapter.observations import EnvStep, ObsMemory, take_rows
from rltrainer.envs.workers.worker_vector_env import EnvWorker, WorkerVectorEnv
from rltrainer.errors import ParamsError, SpaceError, field_error_text

Array = np.ndarray[Any, Any]


class Answers(NamedTuple):
    """The envs that have answered: stepped, those included that were restarted in it; or begun an episode."""

    stepped: list[int]
    restarted: list[int]
    begun: list[int]


class EnvStreams:
    """Steps the envs of a `WorkerVectorEnv`, a worker each, by themselves; an env gets no call before it has answered.

    `obs` [N, ...], `reward`, `terminated` and `truncated` [N] hold each env's last answer until its next call.
    """

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        num_envs = envs.num_envs
        if not isinstance(envs, WorkerVectorEnv) or len(envs.group.alive) != num_envs:
            rule = f"must have a worker process for each of its {num_envs} envs"
            hint = (
                f"Make them with make_vec(..., backend='workers', num_workers={num_envs}); wrappers=[...] wraps them."
            )
            raise ParamsError(field_error_text("BatchedCollector", "envs", rule, envs, hint))
        self._envs, self._group, self._arrays = envs, envs.group, envs.arrays.arrays
        self.obs, self.reward = self._arrays["obs"], self._arrays["reward"]
        self.terminated, self.truncated = self._arrays["terminated"], self._arrays["truncated"]
        self._results: list[Any] = [None] * num_envs  # of each env's last step
        self._stepped: deque[tuple[int, bool]] = deque()  # which envs have answered, and whether they were restarted
        self._due: dict[int, tuple[int | None, int]] = {}  # the resets under way: seed and number of steps

    def step(self, envs: list[int], actions: Array, numbers: list[int]) -> None:
        """Let envs take a step with actions [K, ...]; the numbers of these steps are for errors."""
        self._arrays["action"][envs], self._arrays["skipped"][envs] = actions, False
        for env, number in zip(envs, numbers, strict=True):
            self._group.alive[env].step(f"step {number}")

    def reset(self, env: int, seed: int | None, number: int) -> None:
        """Let an env begin an episode, after so many steps."""
        self._due[env] = seed, number
        self._group.alive[env].call(f"reset after {number} steps", "reset", [(env, seed)], None)

    def receive(self, timeout: float | None, max_steps: int) -> Answers:
        """Return which envs have answered, of steps only `max_steps`; where none has, wait for the first."""
        begun: list[int] = []
        restarted: set[int] = set()
        if busy := self._busy():
            ready = self._group.ready(busy, 0.0 if self._stepped else timeout)
            results = self._group.gather(ready, self._envs.lost(restarted))
            for env, result in zip([worker.envs.start for worker in ready], results, strict=True):
                if env not in self._due:
                    if result is not None and result.rewards is not None:
                        raise _several_agents(env, result.rewards.shape[1:])
                    self._results[env] = result
                    self._stepped.append((env, env in restarted))
                elif env in restarted:
                    self.reset(env, *self._due[env])  # with the same seed: a failure changes no later episode
                else:
                    del self._due[env]
                    begun.append(env)
        stepped = [self._stepped.popleft() for _ in range(min(max_steps, len(self._stepped)))]
        return Answers([env for env, _ in stepped], [env for env, is_new in stepped if is_new], begun)

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos of an env's last step, as gymnasium gathers them, and its row there."""
        result = self._results[env]
        return ({} if result is None else result.infos), 0

    def drain(self) -> None:
        """Wait until all have answered, and drop the answers."""
        while busy := self._busy():
            self._group.gather(busy, self._envs.lost(set()))
        self._stepped.clear()
        self._due.clear()

    def _busy(self) -> list[EnvWorker]:
        return [worker for worker in self._group.alive if worker.is_busy]


def _several_agents(env: int, shape: tuple[int, ...]) -> SpaceError:
    return SpaceError(
        f"env {env} reward: shape {shape} is several agents'; no algorithm trains on them. Reduce them to one reward "
        "in a wrapper, or test with a Collector."
    )


class StreamAdapter(EnvAdapter):
    """Steps single envs; episodes have the seeds that they have in an `EnvAdapter`.

    ```
    adapter.reset()
    while ...:
        adapter.advance()                             # adapter.obs is what the envs in adapter.waiting act on
        adapter.send(envs, adapter.convert(action))   # for some of those
        step = adapter.receive(timeout, max_steps)    # of those that have answered; adapter.obs is what they acted on
    ```

    Args:
        envs: a `WorkerVectorEnv` with a process for each; others are a `ParamsError`.
        device: where the policy is.

    Attributes:
        num_steps: steps that each env has taken since its very first episode began [N].
        num_sent: steps that were sent and are not received.
        stepped: the envs whose steps came with the last `receive` [K].
        waiting: the envs that wait for an action since the last `advance` [K]; all after a reset.
    """

    history_class: ClassVar[type[ActionHistory]] = StreamHistory

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], device: torch.device | str = "cpu") -> None:
        super().__init__(envs, device)
        self._streams = EnvStreams(envs)
        self._converters: dict[int, ActionConverter] = {}
        self.num_steps: Rows = np.zeros(self.num_envs, np.int64)
        self.num_sent = 0
        self.stepped = self.waiting = self._ended = self._begun = NO_ROWS

    def reset(self, first_episode: bool = False) -> None:
        """Reset all envs, once all have answered; see `EnvAdapter.reset`."""
        if first_episode:
            self.num_steps[:] = 0
        super().reset(first_episode)

    def convert(self, action: Tensor) -> Any:
        """Return what envs receive for a policy's actions [K, ...]; see `ActionConverter`."""
        num_rows = len(action) if isinstance(action, Tensor) and action.ndim else self.num_envs
        if num_rows not in self._converters:
            self._converters[num_rows] = ActionConverter(self.action_space, num_rows)
        return self._converters[num_rows](action)

    def send(self, envs: Rows, env_action: Any) -> None:
        """Let envs [K] take a step with what `convert` returned."""
        self.num_sent += len(envs)
        if isinstance(self._history, StreamHistory):
            self._history.put(envs, self._clock.episode_steps[envs], env_action)
        self._streams.step(envs.tolist(), env_action, (self.num_steps[envs] + 1).tolist())

    def receive(self, timeout: float | None, max_steps: int, max_episode_steps: int | None = None) -> EnvStep | None:
        """Return the steps of envs that have answered; where none has, wait for the first.

        Args:
            timeout: seconds to wait at most; None waits as long as it takes.
            max_steps: further steps wait for the next call.
            max_episode_steps: an episode that gets as long is truncated.

        Returns:
            the steps, with `valid=False` in rows of other envs; None if none has come.
        """
        streams, now, after = self._streams, self._now, self._next
        assert now is not None, "a collector resets first"
        answers = streams.receive(timeout, max_steps)
        if answers.begun:
            begun = np.array(answers.begun, np.int64)
            now.write_rows(begun, take_rows(streams.obs, begun))
            self._begun = np.concatenate([self._begun, begun])
        rows = self.stepped = np.array(answers.stepped, np.int64)
        if not len(rows):
            return None
        self.num_sent -= len(rows)
        self.num_steps[rows] += 1
        if self._result is None:
            self._check_step(streams.obs, streams.reward, streams.terminated, streams.truncated)
            self._result = EnvStep.like(streams.reward, streams.terminated, streams.truncated)
        result = self._result
        after.write_rows(rows, take_rows(streams.obs, rows))
        result.next_obs, result.valid = after.obs, np.zeros(self.num_envs, np.bool_)
        result.valid[rows] = True
        result.reward[rows] = streams.reward[rows]
        for flag, answer in ((result.terminated, streams.terminated), (result.truncated, streams.truncated)):
            flag[:] = False
            flag[rows] = answer[rows]
        if answers.restarted:
            self._cut(result, answers.restarted)
        self._clock.step(rows)  # for other envs no step has passed
        done = result.terminated | result.truncated
        if max_episode_steps is not None:
            result.truncated |= ~done & result.valid & (self._clock.episode_steps >= max_episode_steps)
            done = result.terminated | result.truncated
        self._ended = np.flatnonzero(done)
        result.finished = self._ended if len(self._ended) else None
        self._count_end(self._ended, delay=0)
        return result

    def advance(self, wanted: Mask | None = None) -> Rows | None:
        """Make successors the current observations; where an episode ended, let the next begin, without waiting for it.

        Args:
            wanted: [N] bool, which envs shall begin another episode; None: all. The others stay at their end until the
                next `reset`.

        Returns:
            the envs among `waiting` whose next step is the first of an episode [K]; None if there is none.
        """
        now, begun, stepped, ended = self._now, self._begun, self.stepped, self._ended
        assert now is not None, "a collector resets first"
        self.stepped = self._ended = self._begun = NO_ROWS
        now.write_rows(stepped, take_rows(self._next.obs, stepped))
        if len(ended):
            starting = ended if wanted is None else ended[wanted[ended]]
            self._clock.leave(np.setdiff1d(ended, starting))
            seeds = self._clock.episode_seeds(starting)
            for n in starting.tolist():
                self._streams.reset(n, seeds[n], int(self.num_steps[n]))
            stepped = np.setdiff1d(stepped, ended)
        if not now.shares:
            now.upload()
        self.waiting = np.concatenate([stepped, begun])
        return begun if len(begun) else None

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos that an env's last step came with; see `EnvStreams`."""
        return self._streams.last_info(env)

    def _cut(self, result: EnvStep, restarted: list[int]) -> None:
        """Truncate the episodes of envs that were restarted in a step, which is no transition."""
        assert self._now is not None, "a collector resets first"
        self._next.write_rows(restarted, take_rows(self._now.obs, restarted))
        result.valid[restarted], result.reward[restarted] = False, 0.0
        result.terminated[restarted], result.truncated[restarted] = False, True

    def resume(self, returns: Any = None) -> Rows:
        """Bring the envs to where a loaded state puts them; see `EnvAdapter.resume`."""
        if self._loaded is None:
            return NO_ROWS
        lost = super().resume(returns)
        is_inside = self._clock.episode_steps > 0
        self.stepped, self._begun = np.flatnonzero(is_inside), np.flatnonzero(~is_inside)
        if self._now is not None:  # `advance` takes the observations of those that have stepped from there
            self._next.write_rows(self.stepped, take_rows(self._now.obs, self.stepped))
        return lost

    def _restart(self) -> ObsMemory:
        self._streams.drain()
        memory = super()._restart()
        self.num_sent, self.stepped, self._ended = 0, NO_ROWS, NO_ROWS
        self._begun = np.arange(self.num_envs)
        return memory
