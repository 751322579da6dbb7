"""Envs of worker processes as streams, one in each."""

from collections import deque
from typing import Any

from rltrainer.envs.streams.env_streams import Answers, Array, several_agents
from rltrainer.envs.workers.worker import Worker
from rltrainer.envs.workers.worker_envs import INFOS, RESET, STEP, StepResult
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv


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
