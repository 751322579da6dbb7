"""All agents of a parallel env as one gymnasium env, in which a central policy acts."""

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltrainer.envs.agents.parallel_env import Agents, Array, ParallelEnv, Space, nothing
from rltrainer.errors import SpaceError
from rltrainer.spaces import ACTION_MASK, has_action_mask, leaf_shape, num_choices
from rltrainer.validation.field_rules import checked


class JointEnv(gym.Env[Any, Any]):
    """One env that observes what all agents observe, and whose action is what all of them do.

    - An observation is a Dict with a part for each agent, by name; zeros, or first choices, for an agent that is gone.
    - Actions are one MultiDiscrete or one Box: the agents', one after the other. Masks of the agents are one
      `action_mask` beside their parts; who is gone may do anything, and nothing comes of it.
    - The episode ends when nobody is left: `truncated` if one of the last agents was truncated, else `terminated`.

    The agents' spaces may differ, as long as their actions are all choices, or all floats.

        envs = rl.make_vec(lambda: rl.JointEnv(simple_spread_v3.parallel_env()), num_envs=8)

    Args:
        env: a PettingZoo parallel env.
        reward: `"sum"`, of the agents' rewards, or `"mean"`, the sum over the number of all agents that there may be.

    Attributes:
        agents: the names of the agents, in the order of their actions.

    Raises:
        ParamsError: it is no parallel env, or has no agents.
        SpaceError: a space is not supported, or actions are partly choices.
    """

    def __init__(self, env: ParallelEnv, reward: Literal["sum", "mean"] = "sum") -> None:
        reward = checked("JointEnv", "reward", reward, Literal["sum", "mean"])
        self._agents = Agents("JointEnv", env)
        self.agents, self.parallel_env = self._agents.names, env
        self._share = 1.0 if reward == "sum" else 1.0 / len(self.agents)
        self.action_space, self._num_choices = _joint_actions(self._agents)
        self._shapes = [leaf_shape(space) for space in self._agents.action_spaces]
        self._ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        parts = {name: self._without_mask(i) for i, name in enumerate(self.agents)}
        self._nothing = [nothing(space) for space in parts.values()]
        self._has_mask = any(map(has_action_mask, self._agents.observation_spaces))
        if self._has_mask:
            parts[ACTION_MASK] = spaces.MultiBinary(sum(self._num_choices))
        self.observation_space = spaces.Dict(parts)
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of all agents."""
        super().reset(seed=seed)
        self._agents.reset(seed, options)
        return self._obs(), dict(self._agents.infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step with all agents' actions; `info` holds the agents' infos by name."""
        agents = self._agents
        parts = np.split(np.asarray(action), self._ends)
        agents.step(
            [
                part.reshape(shape).astype(space.dtype)[()]
                for part, shape, space in zip(parts, self._shapes, agents.action_spaces, strict=True)
            ]
        )
        is_over, is_cut = not agents.here.any(), bool(agents.truncated.any())
        reward = float(agents.reward.sum()) * self._share
        return self._obs(), reward, is_over and not is_cut, is_over and is_cut, dict(agents.infos)

    def render(self) -> Any:
        """Return the frame."""
        return self.parallel_env.render()

    def close(self) -> None:
        """Close the env."""
        self.parallel_env.close()

    def _obs(self) -> dict[str, Any]:
        agents = self._agents
        seen = [nothing if obs is None else obs for obs, nothing in zip(agents.obs, self._nothing, strict=True)]
        parts = {
            name: {key: part for key, part in obs.items() if key != ACTION_MASK} if isinstance(obs, dict) else obs
            for name, obs in zip(self.agents, seen, strict=True)
        }
        if self._has_mask:
            masks = [self._mask(i, obs) for i, obs in enumerate(seen)]
            parts[ACTION_MASK] = np.concatenate(masks)
        return parts

    def _without_mask(self, i: int) -> Space:
        """Return an agent's observation space without its mask; a `SpaceError` if that is not one flag per choice."""
        space, size = self._agents.observation_spaces[i], self._num_choices[i]
        if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
            return space
        if space[ACTION_MASK].shape != (size,):
            text = f"one flag for each of its {size} choices; got {space[ACTION_MASK]}"
            raise SpaceError(f"JointEnv.env: the {ACTION_MASK} of {self.agents[i]!r} must be {text}")
        return spaces.Dict({key: part for key, part in space.spaces.items() if key != ACTION_MASK})

    def _mask(self, i: int, obs: Any) -> Array:
        """Return which choices an agent has: all if it has no mask, or is gone."""
        has_mask = self._agents.here[i] and isinstance(obs, dict) and ACTION_MASK in obs
        mask: Array = obs[ACTION_MASK] if has_mask else np.ones(self._num_choices[i], np.int8)
        return mask


def _joint_actions(agents: Agents) -> tuple[Space, list[int]]:
    """Return the space of all agents' actions, and how many choices each agent has: none where actions are floats."""
    found, choices = agents.action_spaces, [num_choices(space) for space in agents.action_spaces]
    sizes = [size for size in choices if size is not None]
    if len(sizes) == len(found):
        starts = [np.broadcast_to(getattr(space, "start", 0), leaf_shape(space)).ravel() for space in found]
        return spaces.MultiDiscrete(np.concatenate(sizes), start=np.concatenate(starts)), list(map(sum, sizes))
    if all(isinstance(space, spaces.Box) for space in found):
        dtype = np.result_type(*(space.dtype for space in found))
        low, high = (np.concatenate([getattr(space, bound).ravel() for space in found]) for bound in ("low", "high"))
        return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type), [0] * len(found)
    named = ", ".join(f"{name!r} {space}" for name, space in zip(agents.names, found, strict=True))
    rule = "must be Discrete, MultiDiscrete or MultiBinary of all agents, or Box of all"
    raise SpaceError(f"JointEnv.env: actions {rule}; got {named}")
