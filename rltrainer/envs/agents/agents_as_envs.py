"""The agents of parallel envs as the rows of a vector env, so that any algorithm trains one policy for all of them."""

# TeamEnv       a parallel env's agents as one gymnasium env: observations [A, ...], rewards [A], the agents present [A]
# make_vec      n of them, in this process or in workers
# EnvAdapter    seeds each, resets it when all agents are gone, restores it when a run is resumed
# AgentsAsEnvs  [n, A] as n * A rows; where an agent is gone, its row is marked as no transition

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rltrainer.envs.adapter.adapter import EnvAdapter
from rltrainer.envs.adapter.env_state import AdapterState, check_array
from rltrainer.envs.agents.parallel_env import OfAllAgents, ParallelEnv, absent_obs
from rltrainer.envs.backends.masked_resets import NO_TRANSITION, write_row
from rltrainer.envs.deferred_envs import opened
from rltrainer.envs.make_vec import make_vec
from rltrainer.envs.vector_env import VectorEnv
from rltrainer.errors import ParamsError, SpaceError, importing_extra
from rltrainer.seeding import derive_seed
from rltrainer.spaces import Array
from rltrainer.state.stateful import Stateful
from rltrainer.tree import Tree, map_tree
from rltrainer.validation.field_rules import Flag, NonNegativeInt, PositiveInt, as_python, checked, is_int

AGENT, TEAM_RETURN = "agent", "team_return"

OBS, HERE, TERMINATED, TRUNCATED = "obs", "here", "terminated", "truncated"
"""Leaves of a team's observation: of its agents [A, ...], which act next, and which just ended an episode [A]."""


class TeamEnv(OfAllAgents):
    """Agents with equal spaces, else a `SpaceError`: observations, actions, rewards and flags have an axis A."""

    # Its episode is `terminated` when all agents are gone; their flags are in the observation. Numbers in their infos
    # are arrays [A], NaN where they are missing.

    owner = "AgentsAsEnvs"

    def __init__(self, env: ParallelEnv) -> None:
        super().__init__(env)
        all_of = {"observation_space": self.agent_obs_spaces, "action_space": self.agent_action_spaces}
        for kind, found in all_of.items():
            for name, space in zip(self.agents, found, strict=True):
                if space != found[0]:
                    text = f"the agents' spaces must be equal, as they share a policy; {kind} of {self.agents[0]!r} is"
                    hint = "Pad them in a wrapper, or use rl.JointEnv."
                    raise SpaceError(f"AgentsAsEnvs.env: {text} {found[0]}, of {name!r} {space}. {hint}")
        num_agents = len(self.agents)
        self.agent_spaces = self.agent_obs_spaces[0], self.agent_action_spaces[0]
        obs_space, self.action_space = (batch_space(space, num_agents) for space in self.agent_spaces)
        flags = spaces.MultiBinary(num_agents)
        self.observation_space = spaces.Dict({OBS: obs_space, HERE: flags, TERMINATED: flags, TRUNCATED: flags})
        self._absent = map_tree(lambda leaf: np.stack([leaf] * num_agents), absent_obs(self.agent_spaces[0]))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step with the actions [A, ...]; the actions of agents that are gone do nothing."""
        self._act(list(action))
        return self.joint_obs(), self.reward, not self.here.any(), False, self.joint_info()

    def joint_obs(self) -> dict[str, Any]:
        """Return the agents' observations [A, ...] and flags [A]."""
        stacked = map_tree(np.copy, self._absent)
        for i, obs in enumerate(self.obs):
            if obs is not None:
                write_row(stacked, i, obs)
        flags = {HERE: self.here, TERMINATED: self.terminated, TRUNCATED: self.truncated}
        return {OBS: stacked, **{name: flag.astype(np.int8) for name, flag in flags.items()}}

    def joint_info(self) -> dict[str, Any]:
        """Return the numbers in the agents' infos [A]."""
        info: dict[str, Any] = {}
        for name, found in self.infos.items():
            for key, value in found.items():
                number = as_python(value)
                if isinstance(number, bool | float) or is_int(number):
                    info.setdefault(key, np.full(len(self.agents), np.nan))[self.agents.index(name)] = number
        return info


def make_team(make_env: Callable[[], ParallelEnv]) -> TeamEnv:
    """Make a parallel env, and its team; a `MissingExtraError` if PettingZoo, or its particle envs, are missing."""
    try:
        env = make_env()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pettingzoo", "mpe2"):
            raise
        with importing_extra("AgentsAsEnvs.env: the factory", "pettingzoo"):
            raise
    return TeamEnv(env)


@dataclass
class TeamsState:
    """State of `AgentsAsEnvs`: of the adapter of its teams, and the returns of their agents so far [n, A]."""

    adapter: AdapterState
    returns: Array


class AgentsAsEnvs(gym.vector.VectorEnv[Any, Any, Any], Stateful[TeamsState]):
    """A vector env with the agents of parallel envs as rows: a policy that is trained on it is shared by them all.

    Rows are ordered by copy, then by agent: row `c * A + a` is agent a of copy c. An agent's episode ends with its own
    `terminated` or `truncated`. While other agents of its copy continue, its row waits: its steps have `valid=False`
    and are never sampled, summed or trained on. When all agents are gone, the copy starts its next episode with the
    next seed, all rows at once. An agent that comes later, or again, starts an episode then.

    Each agent has its own returns and lengths. The last step of a copy's episode has `infos["team_return"]` in one
    of its rows: the sum over all agents; `Collector(info_keys=("team_return",))` reads it. Numbers in the agents' own
    infos are in their rows.

    The autoreset mode is SAME_STEP. A resumed run repeats the copies' episodes, as with `make_vec`'s envs.

    Args:
        env: a factory that returns a new PettingZoo parallel env at each call; all agents have equal spaces.
            A Dict observation may have the leaf `action_mask`.
        num_copies: how many envs; `num_envs` is this times the number of agents.
        agent_id: whether an observation is a Dict with a further leaf `agent`, the index of the agent, which networks
            see as a one-hot vector. An observation that is no Dict becomes the leaf `observation`.
        seed: the root of the seeds of all episodes; None leaves it to the collector.
        backend: where the copies are stepped, `"sync"` or `"workers"`.
        worker_options: see `make_vec`: `num_workers`, `step_timeout`, ...

    Attributes:
        agents: the names of the agents of a copy [A].
        max_episode_steps: steps after which a copy's episode is truncated; None waits for its end. Collectors set it.

    Raises:
        ParamsError: an argument breaks its rule, or the env is no parallel env, or has no agents.
        SpaceError: the agents' spaces are not equal, or not supported.
        MissingExtraError: the factory needs PettingZoo, which is not installed.
    """

    state_class, state_name = TeamsState, "adapter.envs"

    def __init__(
        self,
        env: Callable[[], ParallelEnv],
        num_copies: int,
        *,
        agent_id: bool = False,
        seed: int | None = None,
        backend: Literal["sync", "workers"] = "sync",
        **worker_options: Any,
    ) -> None:
        owner = type(self).__name__
        if not callable(env):
            rule, hint = "must be a factory of PettingZoo parallel envs", "Each copy is an env of its own."
            raise ParamsError.about(owner, "env", rule, env, hint)
        num_copies = checked(owner, "num_copies", num_copies, PositiveInt)
        self._tells_agent = checked(owner, "agent_id", agent_id, Flag)
        self.base_seed = checked(owner, "seed", seed, NonNegativeInt | None)
        backend = checked(owner, "backend", backend, Literal["sync", "workers"])
        made = make_vec(partial(make_team, env), num_copies, backend=backend, **worker_options)
        self._teams = LastInfos(opened(made))
        try:
            self._declare()
        except BaseException:
            self._teams.close()
            raise
        self._here: Array = np.zeros((num_copies, self.num_agents), np.bool_)
        self._returns: Array = np.zeros((num_copies, self.num_agents))
        self._lost: Array = np.zeros(num_copies, np.bool_)  # copies that were not restored when a run was resumed
        self._is_first_reset = True
        self.max_episode_steps: int | None = None

    @property
    def teams(self) -> VectorEnv:
        """The copies as a vector env of teams; a wrapper may take its place."""
        return self._teams.env

    @teams.setter
    def teams(self, envs: VectorEnv) -> None:
        self._teams.env = envs

    @property
    def num_restarts(self) -> int:
        """Number of failures of copies that led to a restart."""
        return getattr(self._teams.unwrapped, "num_restarts", 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Start the episodes of all copies, each with a seed derived from this one; return the rows [N, ...].

        `options` must be None, else a `ParamsError`.
        """
        seed = checked(f"{type(self).__name__}.reset", "seed", seed, NonNegativeInt | None)
        if options:
            rule = "must be None: all rows are reset together"
            raise ParamsError.about(f"{type(self).__name__}.reset", "options", rule, options)
        if seed is None and self.base_seed is not None and self._is_first_reset:
            seed = derive_seed(self.base_seed, "reset", 0)
        if seed is not None:
            self._adapter.seed(seed)
        self._is_first_reset = False
        self._adapter.reset(first_episode=seed is not None)
        self._returns[:], self._lost[:] = 0.0, False
        return self._begin(), {}

    def step(self, actions: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """Step all copies with actions [N, ...], ignored in rows that wait.

        A copy that fails is an `EnvError`, another shape of actions a `ParamsError`.
        """
        rows = np.asarray(actions)
        if rows.shape != self.action_space.shape:
            rule = f"must have shape {self.action_space.shape}"
            raise ParamsError.about(f"{type(self).__name__}.step", "actions", rule, actions)
        acted = self._here
        step = self._adapter.step(rows.reshape(-1, self.num_agents, *rows.shape[1:]), self.max_episode_steps)
        here, terminated, truncated = (step.next_obs[name] != 0 for name in (HERE, TERMINATED, TRUNCATED))
        restarted = np.zeros_like(self._lost) if step.valid is None else ~step.valid
        # A copy is over when all its agents are gone, or where it was restarted or truncated as a whole.
        is_over = ~here.any(1) | restarted | step.truncated
        # Rows of a copy that failed, in this step or when a run was resumed, have no transition in this step.
        broken = self._lost | restarted
        # A state in which a gone agent does nothing, for reward 0, would be learned from as if it had to act there.
        valid = acted & ~broken[:, None]
        # The episode of a row that waited ends without a transition, where the next one starts.
        cut = truncated | (here & step.truncated[:, None])
        truncated = np.where(valid, cut, (is_over | broken)[:, None] | (here & ~acted))
        terminated &= valid
        reward = np.where(valid, step.reward, 0.0).astype(np.float64)
        self._returns += step.reward
        infos = self._infos_of(valid, is_over & ~broken)
        if not valid.all():
            infos[NO_TRANSITION] = ~valid.reshape(-1)
        if (terminated | truncated).any():
            infos["final_obs"] = self._rows(step.next_obs[OBS])
        self._returns[is_over], self._lost[:] = 0.0, False
        self._adapter.advance()
        return self._begin(), reward.reshape(-1), terminated.reshape(-1), truncated.reshape(-1), infos

    def get_state(self) -> TeamsState:
        """Return where the copies are: the seeds and actions of their episodes."""
        return TeamsState(self._adapter.get_state(), self._returns.copy())

    def check_state(self, state: TeamsState) -> None:
        """Raise a `CheckpointError` if it is of other envs."""
        check_array("adapter.envs.returns", state.returns, self._returns.shape, np.float64)
        self._adapter.check_state(state.adapter)

    def set_state(self, state: TeamsState) -> None:
        """Restore the copies: their episodes are repeated."""
        self._adapter.set_state(state.adapter)
        # A copy that is not restored starts a new episode; the next step is no transition of its rows, and ends their
        # episodes.
        lost = self._adapter.resume(state.returns)
        self._returns, self._lost[:] = state.returns.copy(), False
        self._returns[lost], self._lost[lost] = 0.0, True
        self._begin()

    def render(self) -> tuple[Any, ...]:
        """Return a frame of its copy for each row."""
        return tuple(frame for frame in self._teams.render() or () for _ in self.agents)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all copies."""
        self._adapter.close()

    def _declare(self) -> None:
        """Take over spaces, agents and metadata of the copies."""
        owner, inner = type(self).__name__, self._teams.unwrapped
        envs: Any = inner
        made = getattr(inner, "envs", [])
        if len({id(team.parallel_env) for team in made}) < len(made):
            raise ParamsError(f"{owner}.env: must return a new env at each call; it returned one twice")
        self.agents: tuple[Any, ...] = envs.call("agents")[0]
        space, self.single_action_space = envs.call("agent_spaces")[0]
        self.num_agents, self.num_envs = len(self.agents), self._teams.num_envs * len(self.agents)
        self._adapter, self._absent = EnvAdapter(self._teams), absent_obs(space)
        if self._tells_agent:
            parts = dict(space.spaces) if isinstance(space, spaces.Dict) else space
            if isinstance(space, spaces.Dict) and AGENT in parts:
                rule = f"must be False, as observations have a leaf {AGENT!r} already"
                raise SpaceError.about(owner, "agent_id", rule, True)
            space = spaces.Dict(self._with_agent(parts, spaces.Discrete(self.num_agents)))
        self.single_observation_space = space
        self.observation_space = batch_space(space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**self._teams.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = self._teams.render_mode

    def _begin(self) -> Tree:
        """Note which agents act next; return the observation of each row, an absent agent's where it is gone."""
        self._here = self._adapter.obs[HERE] != 0
        return self._rows(self._adapter.obs[OBS], None if self._here.all() else self._here)

    def _rows(self, obs: Tree, here: Array | None = None) -> Tree:
        """Return copies of observations [n, A, ...] as rows [N, ...], with absent agents' outside `here`."""

        def as_rows(absent: Array, leaf: Array) -> Array:
            rows = leaf.reshape(self.num_envs, *leaf.shape[2:]).astype(absent.dtype)
            if here is not None:
                rows[~here.reshape(-1)] = absent
            return rows

        rows = map_tree(as_rows, self._absent, obs)
        return self._with_agent(rows, np.tile(np.arange(self.num_agents), len(self._here)))

    def _with_agent(self, obs: Any, agent: Any) -> Any:
        """Return observations, or the parts of their space, with the leaf `agent` if it is wanted."""
        if not self._tells_agent:
            return obs
        return {**(obs if isinstance(obs, dict) else {"observation": obs}), AGENT: agent}

    def _infos_of(self, valid: Array, is_over: Array) -> dict[str, Any]:
        """Return the agents' numbers, and the return of each team that is done, in its first row that acted."""
        infos: dict[str, Any] = {}
        for key, values in self._teams.infos.items():
            if key[:1] != "_" and getattr(values, "shape", None) == valid.shape:
                found = np.where(self._teams.infos[f"_{key}"][:, None], values, np.nan).reshape(-1)
                infos |= {key: found, f"_{key}": ~np.isnan(found)}
        if is_over.any():
            returns = np.full(self.num_envs, np.nan)
            rows = np.flatnonzero(is_over) * self.num_agents + valid.argmax(1)[is_over]
            returns[rows] = self._returns[is_over].sum(1)
            infos[TEAM_RETURN], infos[f"_{TEAM_RETURN}"] = returns, np.isin(np.arange(self.num_envs), rows)
        return infos


class LastInfos(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Keeps the infos of a vector env's last step."""

    is_stateless = True

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__(envs)
        self.infos: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"infos": {}}  # which may hold objects that cannot be copied

    def step(self, actions: Any) -> Any:
        """Step, and keep the infos."""
        result = self.env.step(actions)
        self.infos = result[4]
        return result
