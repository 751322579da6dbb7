"""PettingZoo's parallel envs: their protocol, and the parent of gymnasium envs that step and check all their agents."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltrainer.envs.checks import check_flag, check_info, check_obs, check_reward, describe
from rltrainer.errors import EnvError, ParamsError, SpaceError
from rltrainer.spaces import ACTION_MASK, Array, Space, leaf_shape, leaf_spaces
from rltrainer.tree import Tree, map_tree


class ParallelEnv(Protocol):
    """A PettingZoo parallel env: all agents act at the same time. Its methods return dicts by agent."""

    possible_agents: list[Any]  # the names of all agents that there may be
    agents: list[Any]  # the ones that act next

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Start an episode; return observations and infos."""

    def step(self, actions: dict[Any, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Return observations, rewards, terminations, truncations and infos."""

    def observation_space(self, agent: Any) -> Space:
        """Return an agent's observation space."""

    def action_space(self, agent: Any) -> Space:
        """Return an agent's action space."""

    def render(self) -> Any:
        """Return a frame."""

    def close(self) -> None:
        """End the env."""


class OfAllAgents(gym.Env[Any, Any]):
    """A gymnasium env of all agents of a parallel env, in the order of `possible_agents`; its children observe them."""

    owner: ClassVar[str]

    def __init__(self, env: ParallelEnv) -> None:
        _require_parallel(self.owner, env)
        self.parallel_env, self.agents = env, tuple(env.possible_agents)
        self.agent_obs_spaces = [_with_binary_mask(env.observation_space(name)) for name in self.agents]
        self.agent_action_spaces = [env.action_space(name) for name in self.agents]
        self._obs_trees = [leaf_spaces(space) for space in self.agent_obs_spaces]
        self.metadata, self.render_mode = dict(getattr(env, "metadata", {})), getattr(env, "render_mode", None)
        self.here = np.zeros(len(self.agents), np.bool_)  # the agents that act next [A]
        self._num_steps = 0
        self._clear()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of all agents; an `EnvError` if there are none."""
        super().reset(seed=seed)
        obs, infos = self.parallel_env.reset(seed=seed, options=options)
        self._num_steps = 0
        self._clear()
        self.here[:] = self._listed()
        if not self.here.any():
            raise EnvError("the env has no agents after its reset: env.agents is empty")
        self._observe(self.here, obs, infos)
        return self.joint_obs(), self.joint_info()

    def joint_obs(self) -> Any:
        """Return the observation of all agents."""
        raise NotImplementedError

    def joint_info(self) -> dict[str, Any]:
        """Return the infos of all agents."""
        raise NotImplementedError

    def render(self) -> Any:
        """Return the frame."""
        return self.parallel_env.render()

    def close(self) -> None:
        """Close the env."""
        self.parallel_env.close()

    def _act(self, actions: Sequence[Any]) -> None:
        """Step with the actions of all agents [A]; the actions of agents that are gone are ignored."""
        # PettingZoo wants an action of each agent in its list, which may hold some that are done already.
        listed, acted = self._listed(), self.here.copy()
        given = {name: action for name, action, is_in in zip(self.agents, actions, listed, strict=True) if is_in}
        obs, rewards, terminations, truncations, infos = self.parallel_env.step(given)
        self._num_steps += 1
        self._clear()
        listed = self._listed()
        for i, name in enumerate(self.agents):
            if acted[i]:
                reward = self._of("rewards", name, rewards)
                check_reward(f"agent {name!r} reward", reward)
                if np.shape(reward):
                    raise SpaceError(f"agent {name!r} reward: expected a number, got {describe(reward)}")
                self.reward[i] = reward
                self.terminated[i] = self._flag("terminations", name, terminations)
                # An agent that leaves without a flag was not at an end of the task.
                is_cut = self._flag("truncations", name, truncations)
                self.truncated[i] = is_cut or (not listed[i] and not self.terminated[i])
            is_done = self.terminated[i] or self.truncated[i]
            if not acted[i]:  # some envs keep who is done in their list
                is_done = any(isinstance(flags, dict) and flags.get(name) for flags in (terminations, truncations))
            self.here[i] = listed[i] and not is_done
        # The last observation of a terminated agent is not used, and not every env returns it.
        has_obs = [isinstance(obs, dict) and name in obs for name in self.agents]
        self._observe(self.here | self.truncated | (acted & has_obs), obs, infos)

    def _clear(self) -> None:
        num_agents = len(self.agents)
        # None of agents that neither act next nor acted last; the others are 0 and False of all that did not act.
        self.obs: list[Tree | None] = [None] * num_agents
        self.reward = np.zeros(num_agents)
        self.terminated, self.truncated = np.zeros(num_agents, np.bool_), np.zeros(num_agents, np.bool_)
        self.infos: dict[Any, dict[str, Any]] = {}

    def _listed(self) -> list[bool]:
        """Return which agents are in the env's list [A]."""
        listed = set(self.parallel_env.agents)
        if strangers := listed.difference(self.agents):
            names = ", ".join(map(repr, self.agents))
            raise EnvError(f"agent {min(strangers, key=str)!r} is in env.agents, but not in possible_agents: {names}")
        return [name in listed for name in self.agents]

    def _of(self, kind: str, name: Any, values: Any) -> Any:
        """Return an agent's part of a dict that the env returned."""
        if isinstance(values, dict) and name in values:
            return values[name]
        of_whom = f"those of {', '.join(map(repr, values)) or 'no agent'}" if isinstance(values, dict) else ""
        when = f"step {self._num_steps} of the episode" if self._num_steps else "the reset"
        raise EnvError(f"agent {name!r}: missing in the {kind} of {when}; they are {of_whom or describe(values)}")

    def _flag(self, kind: str, name: Any, values: Any) -> bool:
        flag = self._of(kind, name, values)
        check_flag(f"agent {name!r} {kind}", flag)
        return bool(flag)

    def _observe(self, is_seen: Array, all_obs: Any, infos: Any) -> None:
        """Keep the observations of some agents [A], and the infos of all."""
        for i, (name, space) in enumerate(zip(self.agents, self._obs_trees, strict=True)):
            if is_seen[i]:
                obs = self._of("observations", name, all_obs)
                if isinstance(space, dict) and ACTION_MASK in space and isinstance(obs, dict) and ACTION_MASK in obs:
                    obs = {**obs, ACTION_MASK: (np.asarray(obs[ACTION_MASK]) != 0).astype(np.int8)}
                check_obs(f"agent {name!r} obs", space, obs)
                self.obs[i] = obs
            if info := infos.get(name):
                check_info(f"agent {name!r} info", info)
                self.infos[name] = info


def absent_obs(space: Space) -> Tree:
    """Return the observation [...] of an agent that is gone: zeros, or first choices; all actions are allowed."""

    def first_value(leaf: Space) -> Array:
        start = leaf.start if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else 0
        return np.full(leaf_shape(leaf), start, leaf.dtype)

    tree = map_tree(first_value, leaf_spaces(space))
    if isinstance(tree, dict) and ACTION_MASK in tree:
        tree[ACTION_MASK][:] = 1
    return tree


_METHODS = ("reset", "step", "observation_space", "action_space")  # `agents` may come with the reset


def is_parallel(env: object) -> bool:
    """Return whether this is a parallel env, and no class or factory of them."""
    is_other = isinstance(env, type | gym.Env | gym.vector.VectorEnv)
    return not is_other and all(hasattr(env, name) for name in ("possible_agents", *_METHODS))


def _require_parallel(owner: str, env: Any) -> None:
    """Raise a `ParamsError` unless it is a parallel env with agents."""
    hint = ""
    if hasattr(env, "agent_iter"):
        hint = "Agents of an AEC env act in turn: use the module's parallel_env, or pettingzoo.utils.aec_to_parallel."
    elif isinstance(env, gym.Env | gym.vector.VectorEnv):
        hint = "An env of one agent goes to rl.make_vec."
    elif callable(env):
        hint = "Call it: this is what makes one."
    if hint or not all(hasattr(env, name) for name in _METHODS):
        raise ParamsError.about(owner, "env", "must be a PettingZoo parallel env", env, hint)
    if not (found := getattr(env, "possible_agents", None)):
        raise ParamsError.about(owner, "env.possible_agents", "must name at least one agent", found)


def _with_binary_mask(space: Space) -> Space:
    """Return the space with a mask of flags, which PettingZoo declares as a Box, as a MultiBinary."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    mask = space[ACTION_MASK]
    binary = spaces.MultiBinary(mask.shape[0]) if mask.shape is not None and len(mask.shape) == 1 else mask
    return spaces.Dict({**space.spaces, ACTION_MASK: binary})
