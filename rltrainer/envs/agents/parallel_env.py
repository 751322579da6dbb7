"""PettingZoo's parallel envs: what is asked of them, and their agents, stepped together and looked at one by one."""

from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltrainer.envs.checks import check_flag, check_info, check_obs, check_reward, describe
from rltrainer.errors import EnvError, ParamsError, SpaceError, field_error_text
from rltrainer.spaces import ACTION_MASK, leaf_shape, leaf_spaces
from rltrainer.tree import Tree, map_tree

Array = np.ndarray[Any, Any]
Space = gym.Space[Any]


class ParallelEnv(Protocol):
    """A PettingZoo parallel env: all agents act at the same time. What comes of it are dicts by agent.

    Attributes:
        possible_agents: the names of all agents that there may be.
        agents: of those that act next.
    """

    possible_agents: list[Any]
    agents: list[Any]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode; return observations and infos."""

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


class Agents:
    """The agents of a parallel env, in the order of `possible_agents`; steps them, and checks what they are given.

    Args:
        owner: who asks, for errors.
        env: a parallel env.

    Attributes:
        names: of the agents [A].
        observation_spaces, action_spaces: theirs [A]. The leaf `action_mask` of a Dict is a `MultiBinary`.
        here: [A] bool, who acts next.
        obs: [A], of those who act next, and of those who acted last; None of others.
        reward, terminated, truncated: [A], of those who acted last; 0 and False of others.
        infos: of the agents that told something, by name.

    Raises:
        ParamsError: it is no parallel env, or has no agents.
        SpaceError: a space is not supported.
    """

    def __init__(self, owner: str, env: ParallelEnv) -> None:
        _require_parallel(owner, env)
        self.env, self.names = env, tuple(env.possible_agents)
        self.observation_spaces = [_with_binary_mask(env.observation_space(name)) for name in self.names]
        self.action_spaces = [env.action_space(name) for name in self.names]
        self._obs_spaces = [leaf_spaces(space) for space in self.observation_spaces]
        self.here = np.zeros(len(self.names), np.bool_)
        self._num_steps = 0
        self._clear()

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> None:
        """Begin an episode."""
        obs, infos = self.env.reset(seed=seed, options=options)
        self._num_steps = 0
        self._clear()
        self.here[:] = self._listed()
        if not self.here.any():
            raise EnvError("the env has no agents after its reset: env.agents is empty")
        for i, name in enumerate(self.names):
            if self.here[i]:
                self.obs[i] = self._obs_of(i, obs)
            self._keep_info(name, infos)

    def step(self, actions: Sequence[Any]) -> None:
        """Let those who are here act [A]; the actions of others are not looked at."""
        listed, acted = self._listed(), self.here.copy()
        given = {name: action for name, action, is_in in zip(self.names, actions, listed, strict=True) if is_in}
        obs, rewards, terminations, truncations, infos = self.env.step(given)
        self._num_steps += 1
        self._clear()
        listed = self._listed()
        for i, name in enumerate(self.names):
            if acted[i]:
                reward = self._of("rewards", name, rewards)
                check_reward(f"agent {name!r} reward", reward)
                if np.shape(reward):
                    raise SpaceError(f"agent {name!r} reward: expected a number, got {describe(reward)}")
                for kind, values, flags in (
                    ("terminations", terminations, self.terminated), ("truncations", truncations, self.truncated)
                ):  # fmt: skip
                    flag = self._of(kind, name, values)
                    check_flag(f"agent {name!r} {kind}", flag)
                    flags[i] = flag
                self.reward[i] = reward
                # Who leaves without a word was not at an end of the task.
                self.truncated[i] |= not listed[i] and not self.terminated[i]
            self.here[i] = listed[i] and not (self.terminated[i] or self.truncated[i])
            # Nobody looks at what a terminated agent observes last, and not every env tells it.
            if self.here[i] or self.truncated[i] or (acted[i] and name in obs):
                self.obs[i] = self._obs_of(i, obs)
            self._keep_info(name, infos)

    def _clear(self) -> None:
        num_agents = len(self.names)
        self.obs: list[Tree | None] = [None] * num_agents
        self.reward = np.zeros(num_agents)
        self.terminated, self.truncated = np.zeros(num_agents, np.bool_), np.zeros(num_agents, np.bool_)
        self.infos: dict[Any, dict[str, Any]] = {}

    def _listed(self) -> list[bool]:
        """Return who is in the env's list [A]."""
        listed = set(self.env.agents)
        if strangers := listed.difference(self.names):
            names = ", ".join(map(repr, self.names))
            raise EnvError(f"agent {min(strangers, key=str)!r} is in env.agents, but not in possible_agents: {names}")
        return [name in listed for name in self.names]

    def _of(self, kind: str, name: Any, values: Any) -> Any:
        """Return what an agent is given."""
        if not isinstance(values, dict) or name not in values:
            found = (
                f"those of {', '.join(map(repr, values)) or 'nobody'}" if isinstance(values, dict) else describe(values)
            )
            when = f"step {self._num_steps} of the episode" if self._num_steps else "the reset"
            raise EnvError(f"agent {name!r}: missing in the {kind} of {when}; they are {found}")
        return values[name]

    def _obs_of(self, i: int, all_obs: Any) -> Tree:
        space, obs = self._obs_spaces[i], self._of("observations", self.names[i], all_obs)
        if isinstance(space, dict) and ACTION_MASK in space and isinstance(obs, dict) and ACTION_MASK in obs:
            obs = {**obs, ACTION_MASK: (np.asarray(obs[ACTION_MASK]) != 0).astype(np.int8)}
        check_obs(f"agent {self.names[i]!r} obs", space, obs)
        return obs

    def _keep_info(self, name: Any, infos: Any) -> None:
        if info := infos.get(name):
            check_info(f"agent {name!r} info", info)
            self.infos[name] = info


def nothing(space: Space) -> Tree:
    """Return what stands for an observation where nobody observes: zeros, or first choices; all actions are allowed."""

    def of_leaf(leaf: Space) -> Array:
        first = leaf.start if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else 0
        return np.full(leaf_shape(leaf), first, leaf.dtype)

    tree = map_tree(of_leaf, leaf_spaces(space))
    if isinstance(tree, dict) and ACTION_MASK in tree:
        tree[ACTION_MASK][:] = 1
    return tree


def is_parallel(env: object) -> bool:
    """Return whether this is a parallel env, and no class or factory of them."""
    needed = ("possible_agents", "reset", "step", "observation_space", "action_space")
    return not isinstance(env, type | gym.Env | gym.vector.VectorEnv) and all(hasattr(env, name) for name in needed)


def _require_parallel(owner: str, env: Any) -> None:
    """Raise a `ParamsError` unless it is a parallel env with agents."""
    hint = ""
    if hasattr(env, "agent_iter"):
        hint = "Agents of an AEC env act in turn: use the module's parallel_env, or pettingzoo.utils.aec_to_parallel."
    elif isinstance(env, gym.Env | gym.vector.VectorEnv):
        hint = "An env of one agent goes to rl.make_vec."
    elif callable(env):
        hint = "Call it: this is what makes one."
    needed = ("reset", "step", "observation_space", "action_space")  # `agents` may come with the reset
    if hint or not all(hasattr(env, name) for name in needed):
        raise ParamsError(field_error_text(owner, "env", "must be a PettingZoo parallel env", env, hint))
    if not getattr(env, "possible_agents", None):
        rule, found = "must name at least one agent", getattr(env, "possible_agents", None)
        raise ParamsError(field_error_text(owner, "env.possible_agents", rule, found))


def _with_binary_mask(space: Space) -> Space:
    """Return the space with a mask of flags, which PettingZoo declares as a Box, as a MultiBinary."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return space
    mask = space[ACTION_MASK]
    binary = spaces.MultiBinary(mask.shape[0]) if mask.shape is not None and len(mask.shape) == 1 else mask
    return spaces.Dict({**space.spaces, ACTION_MASK: binary})
