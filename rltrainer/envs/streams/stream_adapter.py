"""The adapter of envs that are stepped each by itself: some of them at a time, in any order."""

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

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
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.workers.worker import Worker
from rltrainer.envs.workers.worker_envs import INFOS, RESET, STEP, StepResult
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv
from rltrainer.errors import ParamsError, SpaceError, field_error_text
from rltrainer.tree import Tree, map_tree

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Answers:
    """The envs that have done what they were told.

    Args:
        stepped: whose step is done, those that failed in it too.
        restarted: that failed in their step and were made anew: no transition took place.
        begun: that have begun an episode.
    """

    stepped: list[int]
    restarted: list[int]
    begun: list[int]


class EnvStreams(Protocol):
    """N envs that are told what to do and asked later; an env is told nothing before it has answered.

    Attributes:
        obs: tree [N, ...].
        reward: [N].
        terminated, truncated: [N] bool. All four hold what each env's last answer brought, until it is told something
            else.
    """

    obs: Tree
    reward: Array
    terminated: Array
    truncated: Array

    def step(self, envs: list[int], actions: Array, numbers: list[int]) -> None:
        """Let envs take a step with actions [K, ...]; the numbers of these steps are for errors."""

    def reset(self, env: int, seed: int | None, number: int) -> None:
        """Let an env begin an episode, after so many steps."""

    def receive(self, timeout: float | None, max_steps: int) -> Answers:
        """Hear who has answered, but of steps only so many; where nobody has, wait for the first.

        Args:
            timeout: seconds to wait at most; None waits as long as it takes.
            max_steps: what is beyond is heard the next time.

        Raises:
            EnvError: an env failed.
            SpaceError: an env returned what does not fit its spaces, or the rewards of several agents.
        """

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos that an env's last step came with, gathered as gymnasium does, and its row there."""

    def drain(self) -> None:
        """Wait until all have answered, and forget it; errors are those of `receive`."""


def several_agents(env: int, shape: tuple[int, ...]) -> SpaceError:
    """Return the error of an env that rewards several agents."""
    return SpaceError(
        f"env {env} reward: shape {shape} is several agents'; no algorithm trains on them. Reduce them to one reward "
        "in a wrapper, or test with a Collector."
    )


class StreamAdapter(EnvAdapter):
    """Steps single envs; episodes have the seeds that they have in an `EnvAdapter`.

    ```
    adapter.reset()
    while ...:
        waiting, begun = adapter.advance()            # after a reset all of them; adapter.obs is what they act on
        adapter.send(envs, adapter.convert(action))   # for some of those that wait
        step = adapter.receive(timeout, max_steps)    # of those that have answered; adapter.obs is what they acted on
    ```

    Args:
        envs: made by `make_vec`, with a worker process for each, or in this process.
        device: where the policy is.

    Attributes:
        num_steps: steps that each env has taken since its very first episode began [N].
        num_sent: steps that were sent and are not received.
        stepped: the envs whose steps came with the last `receive` [K].

    Raises:
        ParamsError: the envs cannot be stepped each by itself.
    """

    history_class: ClassVar[type[ActionHistory]] = StreamHistory

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], device: torch.device | str = "cpu") -> None:
        super().__init__(envs, device)
        self._streams = _streams_of(envs)
        self._converters: dict[int, ActionConverter] = {}
        self.num_steps: Rows = np.zeros(self.num_envs, np.int64)
        self.num_sent = 0
        self.stepped = self._ended = self._begun = NO_ROWS

    def reset(self, first_episode: bool = False) -> None:
        """Start all envs anew, once all have answered; see `EnvAdapter.reset`."""
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
        """Hear the envs that have answered; where none has, wait for the first.

        Args:
            timeout: seconds to wait at most; None waits as long as it takes.
            max_steps: steps that are heard at most; others wait for the next call.
            max_episode_steps: an episode that gets as long is truncated.

        Returns:
            the steps that are done: in rows of other envs `valid` is False. None if none is.

        Raises:
            EnvError, SpaceError: an env failed, or returned what does not fit its spaces.
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
            self._break_off(result, answers.restarted)
        self._clock.step(rows)
        done = result.terminated | result.truncated
        if max_episode_steps is not None:
            result.truncated |= ~done & result.valid & (self._clock.episode_steps >= max_episode_steps)
            done = result.terminated | result.truncated
        self._ended = np.flatnonzero(done)
        result.finished = self._ended if len(self._ended) else None
        self._count_end(self._ended, delay=0)
        return result

    def advance(self, wanted: Mask | None = None) -> tuple[Rows, Rows]:  # type: ignore[override]  # another protocol
        """Make successors the current observations; where an episode ended, let the next begin: nobody waits for it.

        Args:
            wanted: [N] bool, which envs shall begin another episode; None: all. The others stay at their end until the
                next `reset`.

        Returns:
            the envs that now wait for an action [K], and those of them that have begun an episode.
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
        return np.concatenate([stepped, begun]), begun

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos that an env's last step came with; see `EnvStreams`."""
        return self._streams.last_info(env)

    def _break_off(self, result: EnvStep, restarted: list[int]) -> None:
        """End the episodes of envs that were made anew in a step: as a truncation, without a transition."""
        assert self._now is not None, "a collector resets first"
        self._next.write_rows(restarted, take_rows(self._now.obs, restarted))
        result.valid[restarted], result.reward[restarted] = False, 0.0
        result.terminated[restarted], result.truncated[restarted] = False, True

    def resume(self, returns: Any = None) -> Rows:
        """Bring the envs to where a state that was loaded has put them; see `EnvAdapter.resume`."""
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


def _streams_of(envs: gym.vector.VectorEnv[Any, Any, Any]) -> EnvStreams:
    rule, hint = "must be made by make_vec, with backend='workers' or 'sync'", "Wrap the single envs: wrappers=[...]."
    if isinstance(envs, SyncVectorEnv):
        return SyncStreams(envs)
    if isinstance(envs, WorkerVectorEnv):
        if len(envs._pool.workers) == envs.num_envs:
            return WorkerStreams(envs)
        rule = f"must have a worker process for each of its {envs.num_envs} envs"
        hint = f"Make them with make_vec(..., num_workers={envs.num_envs})."
    raise ParamsError(field_error_text("BatchedCollector", "envs", rule, envs, hint))


class SyncStreams:
    """Steps the envs of a `SyncVectorEnv` when they are told to; see `EnvStreams`."""

    def __init__(self, envs: SyncVectorEnv) -> None:
        self._envs, num_envs = envs, envs.num_envs
        self.obs = envs.memory = map_tree(np.zeros_like, envs._obs)
        self.reward = np.zeros(num_envs)
        self.terminated, self.truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._stepped: deque[int] = deque()
        self._begun: list[int] = []

    def step(self, envs: list[int], actions: Array, numbers: list[int]) -> None:
        """Step envs one after the other."""
        num_envs = self._envs.num_envs
        for env, action, number in zip(envs, actions, numbers, strict=True):
            self._envs._num_steps = number - 1
            self._envs._parked, self._envs._needs_reset = {*range(num_envs)} - {env}, set()
            _, rewards, terminated, truncated, _ = self._envs.step([action] * num_envs)
            if rewards.ndim > 1:
                raise several_agents(env, rewards.shape[1:])
            self.reward[env], self.terminated[env], self.truncated[env] = rewards[env], terminated[env], truncated[env]
            self._infos[env] = self._envs.infos[env]
            self._stepped.append(env)

    def reset(self, env: int, seed: int | None, number: int) -> None:
        """Reset an env."""
        self._envs._when = f"reset after {number} steps"
        self._envs.begin({env: seed}, None)
        self._begun.append(env)

    def receive(self, timeout: float | None, max_steps: int) -> Answers:
        """Return what is done."""
        stepped = [self._stepped.popleft() for _ in range(min(max_steps, len(self._stepped)))]
        begun, self._begun = self._begun, []
        return Answers(stepped, [], begun)

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos of all envs' last steps, and the env's row there."""
        return self._envs._gathered(self._infos), env

    def drain(self) -> None:
        """Forget what is done."""
        self._stepped.clear()
        self._begun = []


class WorkerStreams:
    """Tells the workers of a `WorkerVectorEnv` what to do, each by itself; see `EnvStreams`.

    Args:
        envs: has a worker for each env.
    """

    def __init__(self, envs: WorkerVectorEnv) -> None:
        self._pool, arrays = envs._pool, envs._arrays
        self.obs, self._action, self._skipped = arrays.obs, arrays.action, arrays.skipped
        self.reward, self.terminated, self.truncated = arrays.reward, arrays.terminated, arrays.truncated
        self._info = arrays.info
        self._results: list[Any] = [None] * envs.num_envs  # of each env's last step
        self._stepped: deque[tuple[int, bool]] = deque()  # who has answered and was not told of, and was it restarted
        self._due: dict[int, tuple[int | None, int]] = {}  # the resets under way: seed and number of steps

    def step(self, envs: list[int], actions: Array, numbers: list[int]) -> None:
        """Send actions."""
        self._action[envs], self._skipped[envs] = actions, False
        for env, number in zip(envs, numbers, strict=True):
            self._pool.send(env, f"step {number}", STEP)

    def reset(self, env: int, seed: int | None, number: int) -> None:
        """Send a seed."""
        self._due[env] = seed, number
        self._pool.send(env, f"reset after {number} steps", RESET, [(env, seed)], None)

    def receive(self, timeout: float | None, max_steps: int) -> Answers:
        """Hear the workers that have answered."""
        begun: list[int] = []
        if busy := self._busy():
            for worker, result, is_new in self._pool.poll(busy, 0.0 if self._stepped else timeout):
                env = worker.number
                if env not in self._due:
                    if isinstance(result, StepResult) and result.rewards is not None:
                        raise several_agents(env, result.rewards.shape[1:])
                    self._results[env] = result
                    self._stepped.append((env, is_new))
                elif is_new:  # with the same seed again
                    self.reset(env, *self._due[env])
                else:
                    del self._due[env]
                    begun.append(env)
        heard = [self._stepped.popleft() for _ in range(min(max_steps, len(self._stepped)))]
        return Answers([env for env, _ in heard], [env for env, is_new in heard if is_new], begun)

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos of a worker's last step, from its answer or from shared memory, and the row there."""
        result, schema = self._results[env], self._pool.workers[env].schema
        if isinstance(result, StepResult):
            return result.infos, 0
        return (schema.read(self._info[env : env + 1]) if result == INFOS and schema is not None else {}), 0

    def drain(self) -> None:
        """Hear all that are busy."""
        while busy := self._busy():
            self._pool.poll(busy, None)
        self._stepped.clear()
        self._due.clear()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._pool.workers if worker.is_busy]
