"""The adapter of envs that are stepped each by itself: some of them at a time, in any order."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.envs.adapter.actions import ActionConverter
from rltrainer.envs.adapter.adapter import EnvAdapter
from rltrainer.envs.adapter.env_step import EnvStep
from rltrainer.envs.adapter.episode_seeds import Mask, Rows
from rltrainer.envs.adapter.observation_memory import ObsMemory, take_rows
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.resuming.action_trail import ActionTrail, StreamTrail
from rltrainer.envs.resuming.adapter_state import NO_ROWS
from rltrainer.envs.streams.env_streams import EnvStreams
from rltrainer.envs.streams.sync_streams import SyncStreams
from rltrainer.envs.streams.worker_streams import WorkerStreams
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv
from rltrainer.errors import ParamsError, field_error_text


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

    trail_class: ClassVar[type[ActionTrail]] = StreamTrail

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
        if isinstance(self._trail, StreamTrail):
            self._trail.put(envs, self._clock.episode_steps[envs], env_action)
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
