"""Simulators that step all envs at once on a GPU and take and return tensors, such as ManiSkill and Isaac Lab."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from rltrainer.errors import EnvError, ParamsError, SpaceError
from rltrainer.tree import Tree, leaves, map_tree
from rltrainer.validation.field_rules import PositiveInt, checked

FinalObs = Literal["info", "last"]
Groups = str | Sequence[str] | None


class GymTensorVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Steps an env of tensors with gymnasium's `reset` and `step` that resets itself; it need not be a `VectorEnv`.

    Observations become float32 without bounds, but bytes stay bytes.

    Args:
        env: with `num_envs` and `single_action_space`, its own or of the env that it wraps.
        obs_groups: the name of a part of Dict observations, such as "policy", or several names, for a Dict; None: the
            only part, or all.
        final_obs: "info" where infos hold `final_obs` or `final_observation`. "last" takes an episode's last
            observation, the one that the policy acted on, for its final one, with a warning.
        action_space: of one env, instead of the env's own.

    Raises:
        ParamsError: an argument is of another kind, or `env` lacks an attribute.
        SpaceError: `env` returns no tensors.
    """

    _needs_last = False  # whether `_final` reads the observations before the step

    def __init__(
        self, env: Any, obs_groups: Groups = None, final_obs: FinalObs = "info", action_space: Any = None
    ) -> None:
        name = type(self).__name__
        num_envs, _ = require(name, env, "num_envs", "step")
        self.env, self.num_envs = env, checked(name, "num_envs", num_envs, PositiveInt)
        self.single_action_space = action_space or require(name, env, "single_action_space")[0]
        self._groups, self._takes_last = obs_groups, checked(name, "final_obs", final_obs, FinalObs) == "last"
        if self._takes_last:
            text = "each episode's last observation is taken for its final one, which the env does not return"
            warnings.warn(f'{name}(final_obs="last"): {text}', stacklevel=2)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        obs, _ = self.reset()
        self.device: torch.device = leaves(obs)[0].device
        self.single_observation_space = _space(obs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Tree, dict[str, Any]]:
        """Reset all envs, with one seed; return the observations [N, ...]."""
        self._obs = self._choose(self._reset(seed))
        return self._obs, {}

    def step(self, actions: Tensor) -> tuple[Tree, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all envs, each leaf [N, ...]; an `EnvError` if an episode ended and its final observation is missing."""
        obs, reward, *flags, info = self._step(actions)
        last, self._obs = self._obs, self._choose(obs)
        terminated, truncated = (torch.as_tensor(flag, device=self.device).bool() for flag in flags)
        done = terminated | truncated
        final = rows_of(done, last, self._obs) if self._takes_last else self._final(info, last, terminated, truncated)
        return self._obs, reward.float(), terminated, truncated, {"final_obs": final, "_final_obs": done}

    def close_extras(self, **kwargs: Any) -> None:
        """Close the env, if it can be closed."""
        getattr(self.env, "close", lambda: None)()

    def _reset(self, seed: int | None) -> Any:
        return self.env.reset(seed=seed)[0]

    def _step(self, actions: Tensor) -> Any:
        return self.env.step(actions)

    def _final(self, info: Any, last: Tree, terminated: Tensor, truncated: Tensor) -> Tree:
        """Return the true successors, given the observations before this step."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None and (terminated | truncated).any():
            hint = 'With final_obs="last" the last observation, on which the policy acted, is taken for it.'
            raise EnvError(f'{type(self).__name__}: an episode ended, but its info has no "final_obs". {hint}')
        return self._obs if final is None else self._choose(final)

    def _choose(self, obs: Any) -> Tree:
        """Return the groups that were chosen, as a tree of tensors that the env does not overwrite later."""
        tree, names = _as_tree(obs), self._groups
        groups = tree if isinstance(tree, dict) else {}
        wanted = [names] if isinstance(names, str) else list(groups if names is None else names)
        if not set(wanted) <= set(groups) or (names is not None and not wanted):
            rule = f"must name groups of the observation, of which there are {list(groups)}"
            raise SpaceError.about(type(self).__name__, "obs_groups", rule, names)
        if groups:
            is_one = isinstance(names, str) or (names is None and len(groups) == 1)
            tree = groups[wanted[0]] if is_one else {name: groups[name] for name in wanted}
        return map_tree(torch.clone, tree) if self._takes_last or self._needs_last else tree


def require(owner: str, env: Any, *names: str, field: str = "env") -> list[Any]:
    """Return these attributes of an env, or of the env that it wraps; a `ParamsError` if one is missing."""
    read = getattr(env, "get_wrapper_attr", lambda name: getattr(env, name))
    try:
        return [read(name) for name in names]
    except AttributeError as error:
        raise ParamsError.about(owner, field, f"must have {', '.join(names)}", env, f"{error}.") from error


def rows_of(mask: Tensor, tree: Tree, other: Tree) -> Tree:
    """Return a tree [N, ...] where a mask [N] is set, and another one elsewhere."""
    return map_tree(lambda a, b: torch.where(mask.view(-1, *[1] * (a.ndim - 1)), a, b), tree, other)


def _as_tree(obs: Any) -> Tree:
    if isinstance(obs, Mapping):
        return {name: _as_tree(part) for name, part in obs.items()}
    if not isinstance(obs, Tensor):
        raise SpaceError.about("GymTensorVectorEnv", "env", "must return tensors", obs, "rl.make_vec takes others.")
    return obs if obs.dtype == torch.uint8 else obs.float()


def _space(tree: Tree) -> gym.Space[Any]:
    """Return the space of one observation of a tree [N, ...]."""
    if isinstance(tree, dict):
        return gym.spaces.Dict({name: _space(part) for name, part in tree.items()})
    low, high, dtype = (0, 255, np.uint8) if tree.dtype == torch.uint8 else (-np.inf, np.inf, np.float32)
    return gym.spaces.Box(low, high, tree.shape[1:], dtype)
