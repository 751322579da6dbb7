"""All agents of a parallel env as one gymnasium env, in which a central policy acts."""

from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from rltrainer.envs.agents.parallel_env import OfAllAgents, ParallelEnv, absent_obs
from rltrainer.errors import SpaceError
from rltrainer.spaces import ACTION_MASK, Space, has_action_mask, leaf_shape, num_choices
from rltrainer.validation.field_rules import checked


class JointEnv(OfAllAgents):
    """One env that observes the observations of all agents; its action is the actions of all.

    - An observation is a Dict with a part for each agent, by name; zeros, or first choices, for an agent that is gone.
    - Actions are one MultiDiscrete or one Box: the agents', one after the other. Masks of the agents are one
      `action_mask` beside their parts; an agent that is gone may do anything, without effect.
    - The episode ends when all agents are gone: `truncated` if one of the last was truncated, else `terminated`.

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

    owner = "JointEnv"

    def __init__(self, env: ParallelEnv, reward: Literal["sum", "mean"] = "sum") -> None:
        reward = checked("JointEnv", "reward", reward, Literal["sum", "mean"])
        super().__init__(env)
        self._share = 1.0 if reward == "sum" else 1.0 / len(self.agents)
        self.action_space, self._num_choices = self._joint_actions()
        self._shapes = [leaf_shape(space) for space in self.agent_action_spaces]
        self._ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        parts = {name: self._without_mask(i) for i, name in enumerate(self.agents)}
        self._absent = [absent_obs(space) for space in parts.values()]
        self._has_mask = any(map(has_action_mask, self.agent_obs_spaces))
        if self._has_mask:
            parts[ACTION_MASK] = spaces.MultiBinary(sum(self._num_choices))
        self.observation_space = spaces.Dict(parts)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step with all agents' actions; `info` holds the agents' infos by name."""
        parts = zip(np.split(np.asarray(action), self._ends), self._shapes, self.agent_action_spaces, strict=True)
        self._act([part.reshape(shape).astype(space.dtype)[()] for part, shape, space in parts])
        is_over, is_cut = not self.here.any(), bool(self.truncated.any())
        reward = float(self.reward.sum()) * self._share
        return self.joint_obs(), reward, is_over and not is_cut, is_over and is_cut, self.joint_info()

    def joint_info(self) -> dict[str, Any]:
        """Return the agents' infos by name."""
        return dict(self.infos)

    def joint_obs(self) -> dict[str, Any]:
        """Return the agents' observations by name, and their masks as one."""
        seen = [absent if obs is None else obs for obs, absent in zip(self.obs, self._absent, strict=True)]
        parts = {
            name: {key: part for key, part in obs.items() if key != ACTION_MASK} if isinstance(obs, dict) else obs
            for name, obs in zip(self.agents, seen, strict=True)
        }
        if self._has_mask:  # without a mask, or when it is gone, an agent has all choices
            masks = [
                obs[ACTION_MASK] if self.here[i] and isinstance(obs, dict) and ACTION_MASK in obs else np.ones(size)
                for i, (obs, size) in enumerate(zip(seen, self._num_choices, strict=True))
            ]
            parts[ACTION_MASK] = np.concatenate(masks, dtype=np.int8, casting="unsafe")
        return parts

    def _without_mask(self, i: int) -> Space:
        """Return an agent's observation space without its mask; a `SpaceError` if that is not one flag per choice."""
        space, size = self.agent_obs_spaces[i], self._num_choices[i]
        if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
            return space
        if space[ACTION_MASK].shape != (size,):
            text = f"one flag for each of its {size} choices; got {space[ACTION_MASK]}"
            raise SpaceError(f"JointEnv.env: the {ACTION_MASK} of {self.agents[i]!r} must be {text}")
        return spaces.Dict({key: part for key, part in space.spaces.items() if key != ACTION_MASK})

    def _joint_actions(self) -> tuple[Space, list[int]]:
        """Return the space of all actions, and how many choices each agent has: none where actions are floats."""
        found = self.agent_action_spaces
        sizes = [size for space in found if (size := num_choices(space)) is not None]
        if len(sizes) == len(found):
            starts = [np.broadcast_to(getattr(space, "start", 0), leaf_shape(space)).ravel() for space in found]
            return spaces.MultiDiscrete(np.concatenate(sizes), start=np.concatenate(starts)), list(map(sum, sizes))
        if all(isinstance(space, spaces.Box) for space in found):
            dtype = np.result_type(*(space.dtype for space in found))
            low, high = (np.concatenate([getattr(box, bound).ravel() for box in found]) for bound in ("low", "high"))
            return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type), [0] * len(found)
        named = ", ".join(f"{name!r} {space}" for name, space in zip(self.agents, found, strict=True))
        rule = "must be Discrete, MultiDiscrete or MultiBinary of all agents, or Box of all"
        raise SpaceError(f"JointEnv.env: actions {rule}; got {named}")
