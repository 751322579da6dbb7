"""Envs whose episodes depend on nothing but env index, episode index and actions, and what they must yield."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rltrainer.envs import EnvAdapter
from rltrainer.seeding import derive_seed
from rltrainer.tree import leaves, map_tree

SEED = 7
EPISODE_OF_SEED = {derive_seed(SEED, n, episode): (n, episode) for n in range(4) for episode in range(80)}
STRANGER = (-1, -1)
"""Who an env is when it was reset without a seed of the tree: visible in every observation."""

SPACES: dict[str, gym.Space[Any]] = {
    "box": gym.spaces.Box(-100, 100, (4,), np.float32),
    "dict": gym.spaces.Dict(
        {
            "who": gym.spaces.Box(-100, 100, (2,), np.float64),
            "parts": gym.spaces.Tuple([gym.spaces.Discrete(100), gym.spaces.Box(-100, 100, (1,), np.float32)]),
        }
    ),
}
ACTION_SPACE = gym.spaces.Discrete(3)

Cell = tuple[list[float], int, float, list[float], bool, bool]


def length_of(n: int, episode: int) -> int:
    return 1 + (3 * n + 5 * episode) % 6


def make_obs(kind: str, n: int, episode: int, step: int, total: int) -> Any:
    if kind == "box":
        return np.array([n, episode, step, total], np.float32)
    return {"who": np.array([n, episode], np.float64), "parts": (step, np.array([total], np.float32))}


def choose_action(obs: list[float]) -> int:
    """Depends on the env's own history only."""
    return int(sum(obs)) % 3


def advance_state(n: int, episode: int, step: int, total: int, action: int) -> tuple[int, int, float, bool, bool]:
    """Return the next step and total, the reward, terminated and truncated: odd episodes are truncated."""
    ended = step + 1 >= length_of(n, episode)
    is_odd = (n + episode) % 2 == 1
    return step + 1, total + action, action + 0.5 * step, ended and not is_odd, ended and is_odd


def expected_cells(n: int, count: int) -> list[Cell]:
    """The first transitions of env n, worked out without any env."""
    cells: list[Cell] = []
    episode, step, total = 0, 0, 0
    while len(cells) < count:
        obs = [float(n), float(episode), float(step), float(total)]
        action = choose_action(obs)
        step, total, reward, terminated, truncated = advance_state(n, episode, step, total, action)
        next_obs = [float(n), float(episode), float(step), float(total)]
        cells.append((obs, action, reward, next_obs, terminated, truncated))
        if terminated or truncated:
            episode, step, total = episode + 1, 0, 0
    return cells


def flat(obs: Any, n: int) -> list[float]:
    """One env's observation as [n, episode, step, total]."""
    if isinstance(obs, dict):  # gymnasium sorts the keys of a Dict space, so do not rely on their order
        obs = obs["who"], obs["parts"]
    return [float(value) for leaf in leaves(obs) for value in torch.as_tensor(leaf[n]).flatten().tolist()]


def record(adapter: EnvAdapter, num_rows: int) -> list[list[Cell]]:
    """Step with `choose_action`; return each env's valid cells."""
    cells: list[list[Cell]] = [[] for _ in range(adapter.num_envs)]
    for _ in range(num_rows):
        acted_on = [flat(adapter.obs_tensor, n) for n in range(adapter.num_envs)]
        actions = np.array([choose_action(obs) for obs in acted_on])
        step = adapter.step(adapter.to_env(torch.from_numpy(actions)))
        for n in range(adapter.num_envs):
            assert flat(adapter.obs, n) == acted_on[n]  # intact until advance
            if step.valid is None or step.valid[n]:
                outcome = (
                    float(step.reward[n]),
                    flat(step.next_obs, n),
                    bool(step.terminated[n]),
                    bool(step.truncated[n]),
                )
                cells[n].append((acted_on[n], int(actions[n]), *outcome))
            else:
                assert not step.terminated[n]
                assert not step.truncated[n]
                assert step.reward[n] == 0.0
        adapter.advance()
    return cells


class ScriptedEnv(gym.Env[Any, Any]):
    """One env; its seed tells which env and episode it is.

    Args:
        kind: "box" or "dict" observations.
        in_place: return the same array each time, overwritten.
    """

    def __init__(self, kind: str = "box", in_place: bool = False) -> None:
        self.observation_space, self.action_space = SPACES[kind], ACTION_SPACE
        self.kind, self.in_place = kind, in_place
        self.memory = make_obs(kind, 0, 0, 0, 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.n, self.episode = EPISODE_OF_SEED.get(seed if seed is not None else -1, STRANGER)
        self.step_count, self.total = 0, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        state = self.n, self.episode, self.step_count, self.total
        self.step_count, self.total, *outcome = advance_state(*state, int(action))
        return self._obs(), *outcome, {"step_count": self.step_count}

    def _obs(self) -> Any:
        obs = make_obs(self.kind, self.n, self.episode, self.step_count, self.total)
        if not self.in_place:
            return obs
        if self.kind == "dict":  # an integer cannot be overwritten
            self.memory["parts"] = (obs["parts"][0], self.memory["parts"][1])
        for here, there in zip(leaves(self.memory), leaves(obs), strict=True):
            if isinstance(here, np.ndarray):
                here[...] = there
        return self.memory


class ScriptedVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """The same episodes from arrays of its own, in any autoreset mode; everything it returns is overwritten later.

    Args:
        num_envs: how many.
        mode: the autoreset mode; None leaves it out of the metadata.
        kind: "box" or "dict" observations.
        object_info: final observations as an object array of single observations, not as arrays.
    """

    def __init__(self, num_envs: int, mode: Any, kind: str = "box", object_info: bool = False) -> None:
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.mode, self.kind, self.object_info, self.num_envs = mode, kind, object_info, num_envs
        self.single_observation_space, self.single_action_space = SPACES[kind], ACTION_SPACE
        self.observation_space = batch_space(SPACES[kind], num_envs)
        self.action_space = batch_space(ACTION_SPACE, num_envs)
        self.state = [(n, 0, 0, 0) for n in range(num_envs)]
        self.rewards = np.zeros(num_envs)
        self.flags = np.zeros((2, num_envs), np.bool_)
        self.is_pending = np.zeros(num_envs, np.bool_)
        self.seeds: list[Any] = []
        self.memory = self._stack()

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        for n in np.flatnonzero(mask):
            if self.mode is AutoresetMode.DISABLED:
                self.state[n] = (*EPISODE_OF_SEED[seed[n]], 0, 0)
            else:
                self.state[n] = (int(n), 0, 0, 0)
        self.is_pending[mask] = False
        self.flags[:, mask] = False
        obs = self._write()
        for leaf in leaves(obs):
            leaf[~mask] = -50  # nobody may look at the envs that were not reset
        return obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        finals: list[Any] = [None] * self.num_envs
        for n in range(self.num_envs):
            if self.is_pending[n]:
                assert self.mode is not AutoresetMode.DISABLED, "a finished env was not reset"
                self._begin_next(n)
                self.rewards[n], self.flags[:, n], self.is_pending[n] = 99.0, False, False
                continue
            env, episode, step, total = self.state[n]
            step, total, reward, *flags = advance_state(env, episode, step, total, int(actions[n]))
            self.state[n], self.rewards[n], self.flags[:, n] = (env, episode, step, total), reward, flags
            finals[n] = make_obs(self.kind, *self.state[n])
            if any(flags):
                if self.mode is AutoresetMode.SAME_STEP:
                    self._begin_next(n)
                else:
                    self.is_pending[n] = True
        info = {"final_obs": self._final_info(finals)} if self.mode is AutoresetMode.SAME_STEP else {}
        return self._write(), self.rewards, *self.flags, info

    def _begin_next(self, n: int) -> None:
        self.state[n] = (n, self.state[n][1] + 1, 0, 0)

    def _final_info(self, finals: list[Any]) -> Any:
        if not self.object_info:
            return map_tree(lambda *rows: np.stack(rows), *finals)
        array = np.full(self.num_envs, None, dtype=object)
        for n in np.flatnonzero(self.flags.any(axis=0)):
            array[n] = finals[n]
        return array

    def _stack(self) -> Any:
        return map_tree(lambda *rows: np.stack(rows), *(make_obs(self.kind, *state) for state in self.state))

    def _write(self) -> Any:
        for here, there in zip(leaves(self.memory), leaves(self._stack()), strict=True):
            here[...] = there
        return self.memory


class TensorVectorEnv(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Takes and returns tensors; the tensors are overwritten as the arrays below are, where they share memory."""

    supports_masked_reset = True

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], device: str = "cpu") -> None:
        super().__init__(env)
        self.device = device

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, info = super().reset(seed=seed, options=options)
        return self._convert(obs), info

    def step(self, actions: Any) -> Any:
        *outcome, info = super().step(np.asarray(torch.as_tensor(actions).cpu()))
        if "final_obs" in info:
            info = {"final_obs": self._convert(info["final_obs"])}
        return *(self._convert(part) for part in outcome), info

    def _convert(self, tree: Any) -> Any:
        return map_tree(lambda leaf: torch.from_numpy(leaf).to(self.device), tree)
