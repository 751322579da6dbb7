"""The adapter of envs that are stepped each by itself: some of them at a time, in any order."""

from collections import deque
from typing import Any, ClassVar

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
from rltrainer.errors import ParamsError, SpaceError


class StreamAdapter(EnvAdapter):
    """Steps the envs of a `WorkerVectorEnv` one by one, with the seeds of an `EnvAdapter`.

    Raises:
        ParamsError: an env has no process of its own.
    """

    # adapter.reset()
    # while ...:
    #     adapter.advance_ready()                       # adapter.obs is what the envs in adapter.waiting act on
    #     adapter.send(envs, adapter.convert(action))   # for some of those
    #     step = adapter.receive(timeout, max_steps)    # of envs that have answered; adapter.obs is what they acted on

    history_class: ClassVar[type[ActionHistory]] = StreamHistory

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], device: torch.device | str = "cpu") -> None:
        super().__init__(envs, device)
        if not isinstance(envs, WorkerVectorEnv) or len(envs.group.alive) != self.num_envs:
            rule = f"must have a worker process for each of its {self.num_envs} envs"
            how = f"make_vec(..., backend='workers', num_workers={self.num_envs})"
            hint = f"Make them with {how}; wrappers=[...] wraps them."
            raise ParamsError.about("BatchedCollector", "envs", rule, envs, hint)
        self._workers, self._arrays = envs, envs.arrays.arrays  # [N, ...], each env's last answer until its next call
        self._infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]  # of each env's last step
        self._answers: deque[tuple[int, bool]] = deque()  # which envs have stepped, and whether they were restarted
        self._resets: dict[int, tuple[int | None, int]] = {}  # those under way: seed and number of steps
        self._converters: dict[int, ActionConverter] = {}
        self.num_steps: Rows = np.zeros(self.num_envs, np.int64)  # of each env since its very first episode began
        self.num_sent = 0  # steps that were sent and are not received
        # The envs with steps in the last `receive` [K], and the envs that wait for an action since the last
        # `advance_ready` [K]: all after a reset. Some of `stepped` have ended; some others have started an episode.
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
        self._arrays["action"][envs], self._arrays["skipped"][envs] = env_action, False
        for env, number in zip(envs.tolist(), (self.num_steps[envs] + 1).tolist(), strict=True):
            self._workers.group.alive[env].step(f"step {number}")

    def receive(self, timeout: float | None, max_steps: int, max_episode_steps: int | None = None) -> EnvStep | None:
        """Return the steps of envs that have answered, `valid=False` in rows of other envs; None if there is none."""
        # If none has answered, this waits for the first: `timeout` seconds at most, or as long as it takes. If there
        # are more than `max_steps`, some wait for the next call. An episode of `max_episode_steps` is truncated.
        now, after = self._now, self._next
        assert now is not None, "a collector resets first"
        obs, *outcome = (self._arrays[name] for name in ("obs", "reward", "terminated", "truncated"))
        if begun := self._listen(0.0 if self._answers else timeout):
            now.write_rows(begun, take_rows(obs, begun))
            self._begun = np.concatenate([self._begun, begun])
        answers = [self._answers.popleft() for _ in range(min(max_steps, len(self._answers)))]
        rows = self.stepped = np.array([env for env, _ in answers], np.int64)
        if not len(rows):
            return None
        self.num_sent -= len(rows)
        self.num_steps[rows] += 1
        if self._result is None:
            self._check_step(obs, outcome[0], outcome[1], outcome[2], {})
            self._result = EnvStep.like(*outcome)
        result = self._result
        after.write_rows(rows, take_rows(obs, rows))
        result.next_obs, result.valid = after.obs, np.zeros(self.num_envs, np.bool_)
        result.valid[rows], result.terminated[:], result.truncated[:] = True, False, False
        for values, answer in zip((result.reward, result.terminated, result.truncated), outcome, strict=True):
            values[rows] = answer[rows]
        if restarted := [env for env, was_restarted in answers if was_restarted]:
            # Their episodes are cut in this step, which is no transition.
            after.write_rows(restarted, take_rows(now.obs, restarted))
            result.valid[restarted], result.reward[restarted] = False, 0.0
            result.terminated[restarted], result.truncated[restarted] = False, True
        self._clock.step(rows)  # for other envs no step has passed
        if max_episode_steps is not None:
            result.truncated |= ~result.terminated & result.valid & (self._clock.episode_steps >= max_episode_steps)
        self._ended = np.flatnonzero(result.terminated | result.truncated)
        result.finished = self._ended if len(self._ended) else None
        self._count_end(self._ended, delay=0)
        return result

    def advance_ready(self, wanted: Mask | None = None) -> Rows | None:
        """Make successors the current observations; where an episode ended, let the next start without waiting for it.

        Return the envs [K] among `waiting` that take the first step of an episode next, or None.
        """
        # `wanted` [N] bool are the envs that start another episode; None: all. The others stay at their end until the
        # next `reset`.
        now, begun, stepped, ended = self._now, self._begun, self.stepped, self._ended
        assert now is not None, "a collector resets first"
        self.stepped = self._ended = self._begun = NO_ROWS
        now.write_rows(stepped, take_rows(self._next.obs, stepped))
        if len(ended):
            starting = ended if wanted is None else ended[wanted[ended]]
            self._clock.leave(np.setdiff1d(ended, starting))
            seeds = self._clock.episode_seeds(starting)
            for n in starting.tolist():
                self._reset_env(n, seeds[n], int(self.num_steps[n]))
            stepped = np.setdiff1d(stepped, ended)
        if not now.shares:
            now.upload()
        self.waiting = np.concatenate([stepped, begun])
        return begun if len(begun) else None

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos of an env's last step, as gymnasium gathers them, and its row there."""
        return self._infos[env], 0

    def resume(self, returns: Any = None) -> Rows:
        """Bring the envs to where a loaded state puts them; return the lost ones [K], see `EnvAdapter.resume`."""
        if self._loaded is None:
            return NO_ROWS
        lost = super().resume(returns)
        is_inside = self._clock.episode_steps > 0
        self.stepped, self._begun = np.flatnonzero(is_inside), np.flatnonzero(~is_inside)
        if self._now is not None:  # `advance_ready` takes the observations of envs that have stepped from there
            self._next.write_rows(self.stepped, take_rows(self._now.obs, self.stepped))
        return lost

    def _restart(self) -> ObsMemory:
        while busy := self._busy():  # all answers to what was sent are dropped
            self._workers.group.gather(busy, self._workers.lost(set()))
        self._answers.clear()
        self._resets.clear()
        memory = super()._restart()
        self.num_sent, self.stepped, self._ended = 0, NO_ROWS, NO_ROWS
        self._begun = np.arange(self.num_envs)
        return memory

    def _busy(self) -> list[EnvWorker]:
        return [worker for worker in self._workers.group.alive if worker.is_busy]

    def _reset_env(self, env: int, seed: int | None, number: int) -> None:
        """Let an env start an episode, after so many steps."""
        self._resets[env] = seed, number
        self._workers.group.alive[env].call(f"reset after {number} steps", "reset", [(env, seed)], None)

    def _listen(self, timeout: float | None) -> list[int]:
        """Queue the steps that are answered, and return the envs that start an episode; wait for the first answer."""
        begun: list[int] = []
        restarted: set[int] = set()
        if not (busy := self._busy()):
            return begun
        ready = self._workers.group.ready(busy, timeout)
        results = self._workers.group.gather(ready, self._workers.lost(restarted))
        for env, result in zip([worker.envs.start for worker in ready], results, strict=True):
            if env not in self._resets:
                infos, rewards = result or ({}, None)
                if rewards is not None:
                    text = f"env {env} reward: shape {rewards.shape[1:]} is several agents'; no algorithm trains"
                    hint = "Reduce them to one reward in a wrapper, or test with a Collector."
                    raise SpaceError(f"{text} on them. {hint}")
                self._infos[env] = infos
                self._answers.append((env, env in restarted))
            elif env in restarted:
                self._reset_env(env, *self._resets[env])  # with the same seed: a failure changes no later episode
            else:
                del self._resets[env]
                begun.append(env)
        return begun
