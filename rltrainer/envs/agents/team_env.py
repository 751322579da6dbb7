"""All agents of a parallel env as one gymnasium env of arrays, so that every backend steps it."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from rltrainer.envs.agents.parallel_env import Agents, ParallelEnv, Space, nothing
from rltrainer.envs.backends.env_group import write_row
from rltrainer.errors import SpaceError, missing_extra
from rltrainer.field_rules import as_python, is_int
from rltrainer.tree import map_tree

OBS, HERE, TERMINATED, TRUNCATED = "obs", "here", "terminated", "truncated"
"""Leaves of a team's observation: those of its agents [A, ...], who acts next, and whose episode just ended [A]."""

_OF_EXTRA = ("pettingzoo", "mpe2")


class TeamEnv(gym.Env[Any, Any]):
    """Agents with equal spaces: observations, actions, rewards and flags are arrays with an axis A.

    Its episode ends when nobody is left; then it is `terminated`. The flags of the agents are in the observation.
    Numbers in the agents' infos are arrays [A], NaN of those who did not tell.

    Args:
        env: a parallel env.

    Attributes:
        agents: their names.
        agent_spaces: the observation and action space of one agent.

    Raises:
        ParamsError: it is no parallel env, or has no agents.
        SpaceError: the agents' spaces are not equal, or not supported.
    """

    def __init__(self, env: ParallelEnv) -> None:
        self._agents = Agents("AgentsAsEnvs", env)
        self.agents, self.parallel_env = self._agents.names, env
        all_of = {"observation_space": self._agents.observation_spaces, "action_space": self._agents.action_spaces}
        for kind, found in all_of.items():
            for name, space in zip(self.agents, found, strict=True):
                if space != found[0]:
                    _raise_unequal(kind, (self.agents[0], found[0]), (name, space))
        self.agent_spaces = self._agents.observation_spaces[0], self._agents.action_spaces[0]
        flags = spaces.MultiBinary(len(self.agents))
        obs_space = batch_space(self.agent_spaces[0], len(self.agents))
        self.observation_space = spaces.Dict({OBS: obs_space, HERE: flags, TERMINATED: flags, TRUNCATED: flags})
        self.action_space = batch_space(self.agent_spaces[1], len(self.agents))
        self._nobody = map_tree(lambda leaf: np.stack([leaf] * len(self.agents)), nothing(self.agent_spaces[0]))
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of all agents."""
        self._agents.reset(seed, options)
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with the actions [A, ...]; those of agents that are gone do nothing."""
        agents = self._agents
        agents.step(list(action))
        return self._obs(), agents.reward, not agents.here.any(), False, self._info()

    def render(self) -> Any:
        """Return the frame."""
        return self.parallel_env.render()

    def close(self) -> None:
        """Close the env."""
        self.parallel_env.close()

    def _obs(self) -> dict[str, Any]:
        agents = self._agents
        stacked = map_tree(np.copy, self._nobody)
        for i, obs in enumerate(agents.obs):
            if obs is not None:
                write_row(stacked, i, obs)
        flags = {HERE: agents.here, TERMINATED: agents.terminated, TRUNCATED: agents.truncated}
        return {OBS: stacked, **{name: flag.astype(np.int8) for name, flag in flags.items()}}

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for name, told in self._agents.infos.items():
            for key, value in told.items():
                number = as_python(value)
                if isinstance(number, bool | float) or is_int(number):
                    info.setdefault(key, np.full(len(self.agents), np.nan))[self.agents.index(name)] = number
        return info


def make_team(make_env: Callable[[], ParallelEnv]) -> TeamEnv:
    """Make a parallel env, and its team; a `MissingExtraError` if PettingZoo, or its particle envs, are missing."""
    try:
        env = make_env()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_EXTRA:
            raise
        raise missing_extra("AgentsAsEnvs.env: the factory", "pettingzoo", error) from error
    return TeamEnv(env)


def _raise_unequal(kind: str, first: tuple[Any, Space], other: tuple[Any, Space]) -> None:
    text = f"the agents' spaces must be equal, as they share a policy; {kind} of {first[0]!r} is {first[1]}, "
    hint = "Pad them in a wrapper, or use rl.JointEnv."
    raise SpaceError(f"AgentsAsEnvs.env: {text}of {other[0]!r} {other[1]}. {hint}")
