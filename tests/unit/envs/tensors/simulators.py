"""Simulators with the interfaces of mjlab, Isaac Lab, Genesis, MuJoCo Playground and ManiSkill, and two numbers each.

Env n of N observes (n, step). Its episodes terminate after n + 2 steps, and all episodes are truncated after 3.
"""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

LIMIT = 3


class Groups(Mapping[str, Any]):
    """What a TensorDict is to us: a mapping, and no dict."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


class Simulator:
    """The part that all have; observations are overwritten in place."""

    def __init__(self, num_envs: int = 3, dtype: torch.dtype = torch.float32) -> None:
        self.num_envs, self.num_actions, self.device = num_envs, 2, "cpu"
        self.obs = torch.zeros(num_envs, 2, dtype=dtype)
        self.seeds: list[int | None] = []
        self.actions: list[Tensor] = []
        self.is_closed = False
        self.restart()

    def restart(self) -> None:
        self.obs[:, 0], self.obs[:, 1] = torch.arange(self.num_envs), 0

    def advance(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Step and reset; return the final observations, and whether each env terminated and timed out."""
        self.actions.append(actions)
        self.obs[:, 1] += 1
        final = self.obs.clone()
        terminated = self.obs[:, 1] >= self.obs[:, 0] + 2
        timed_out = self.obs[:, 1] >= LIMIT
        self.obs[terminated | timed_out, 1] = 0
        return final, terminated, timed_out & ~terminated

    def close(self) -> None:
        self.is_closed = True


class MjlabEnv(Simulator):
    """mjlab's `RslRlVecEnvWrapper`: a TensorDict of groups, `reset` with extras, flags long and bool."""

    def seed(self, seed: int = -1) -> int:
        self.seeds.append(seed)
        return seed

    def reset(self) -> Any:
        self.restart()
        return self.get_observations(), {}

    def get_observations(self) -> Any:
        return Groups({"policy": self.obs, "critic": self.obs.double().sum(1, keepdim=True)})

    def step(self, actions: Tensor) -> Any:
        _, terminated, timed_out = self.advance(actions)
        done = (terminated | timed_out).to(torch.long)
        return self.get_observations(), torch.ones(self.num_envs), done, {"time_outs": timed_out, "log": {}}


class FinalEnv(MjlabEnv):
    """Isaac Lab's since August 2026, or as RSL-RL-SAC asks for: final observations by a name, in steps with ends."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__()

    def step(self, actions: Tensor) -> Any:
        final, terminated, timed_out = self.advance(actions)
        done, extras = terminated | timed_out, {"time_outs": timed_out}
        if (done if self.key == "final_obs" else timed_out).any():
            extras[self.key] = Groups({"policy": final, "critic": final.double().sum(1, keepdim=True)})
        return self.get_observations(), torch.ones(self.num_envs), done.to(torch.long), extras


class IsaacLabEnv(MjlabEnv):
    """Isaac Lab's: without a `reset` of its own, and here of a task with a finite horizon, without `time_outs`."""

    reset = property()  # type: ignore[assignment]  # as if there were none

    def __init__(self) -> None:
        self.env = SimpleNamespace(reset=self.restart)
        super().__init__()

    def step(self, actions: Tensor) -> Any:
        return *super().step(actions)[:3], {}


class GenesisEnv(MjlabEnv):
    """Genesis' examples: tensors, (obs, extras), flags that are numbers, nothing to close."""

    seed = close = property()  # type: ignore[assignment]

    def get_observations(self) -> Any:
        return self.obs, {"observations": {}}

    def step(self, actions: Tensor) -> Any:
        _, reward, done, extras = super().step(actions)
        return self.obs, reward, done.int(), {"time_outs": extras["time_outs"].float()}


class PlaygroundEnv(MjlabEnv):
    """MuJoCo Playground's `RSLRLBraxWrapper`: `seed` is a number, one group, `done` a float."""

    seed = 5  # type: ignore[assignment]

    def get_observations(self) -> Any:
        return Groups({"state": self.obs})

    def step(self, actions: Tensor) -> Any:
        obs, reward, done, extras = super().step(actions)
        return obs, reward, done.float(), {"time_outs": extras["time_outs"].float()}


class IsaacLabGymEnv(gym.Env[Any, Any]):
    """Isaac Lab's `DirectRLEnv`: batches in a `gymnasium.Env`, a dict, flags in memory that is overwritten."""

    def __init__(self) -> None:
        self.simulator = Simulator()
        self.num_envs, self.device = 3, "cpu"
        self.single_action_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.flags = torch.zeros(2, 3, dtype=torch.bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.simulator.seeds.append(seed)
        self.simulator.restart()
        return {"policy": self.simulator.obs}, {}

    def step(self, action: Tensor) -> Any:
        _, self.flags[0], self.flags[1] = self.simulator.advance(action)
        return {"policy": self.simulator.obs}, torch.ones(3), self.flags[0], self.flags[1], {}


class ManiSkillEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """ManiSkill's `ManiSkillVectorEnv`: no autoreset mode; `final_observation` in infos of steps that end episodes."""

    def __init__(self) -> None:
        self.simulator = Simulator()
        self.num_envs, self.device = 3, torch.device("cpu")
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.simulator.seeds.append(seed)
        self.simulator.restart()
        return self._obs(self.simulator.obs), {}

    def step(self, actions: Tensor) -> Any:
        final, terminated, timed_out = self.simulator.advance(actions)
        info = {}
        if (terminated | timed_out).any():
            info = {"final_observation": self._obs(final), "_final_observation": terminated | timed_out}
        return self._obs(self.simulator.obs), torch.ones(3), terminated, timed_out.numpy(), info

    def close_extras(self, **kwargs: Any) -> None:
        self.simulator.close()

    def _obs(self, numbers: Tensor) -> Any:
        return {"agent": {"qpos": numbers.clone()}, "rgb": numbers.to(torch.uint8)[:, None]}
