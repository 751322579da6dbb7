"""Envs of this process as streams: they answer at once, so that all of them go in step."""

from collections import deque
from typing import Any

import numpy as np

from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.streams.env_streams import Answers, Array, several_agents
from rltrainer.tree import map_tree


class SyncStreams:
    """Steps the envs of a `SyncVectorEnv` when they are told to; see `EnvStreams`."""

    def __init__(self, envs: SyncVectorEnv) -> None:
        self._envs, self._group, num_envs = envs, envs._group, envs.num_envs
        self.obs = map_tree(np.zeros_like, envs._obs)
        self.reward = np.zeros(num_envs)
        self.terminated, self.truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self._stepped: deque[int] = deque()
        self._begun: list[int] = []

    def step(self, envs: list[int], actions: Array, numbers: list[int]) -> None:
        """Step envs one after the other."""
        num_envs = self._envs.num_envs
        for env, action, number in zip(envs, actions, numbers, strict=True):
            self._envs._when = f"step {number}"
            others = [i for i in range(num_envs) if i != env]
            rewards, terminated, truncated, infos = self._group.step(self.obs, [action] * num_envs, others)
            if self._group.reward_shape:
                raise several_agents(env, self._group.reward_shape)
            self.reward[env], self.terminated[env], self.truncated[env] = rewards[env], terminated[env], truncated[env]
            self._infos[env] = infos[env]
            self._stepped.append(env)

    def reset(self, env: int, seed: int | None, number: int) -> None:
        """Reset an env."""
        self._envs._when = f"reset after {number} steps"
        self._group.reset(self.obs, [(env, seed)], None)
        self._begun.append(env)

    def receive(self, timeout: float | None, max_steps: int) -> Answers:
        """Return what is done."""
        stepped = [self._stepped.popleft() for _ in range(min(max_steps, len(self._stepped)))]
        begun, self._begun = self._begun, []
        return Answers(stepped, [], begun)

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos of all envs' last steps, and the env's row there."""
        return self._group.gather(self._infos), env

    def drain(self) -> None:
        """Forget what is done."""
        self._stepped.clear()
        self._begun = []
