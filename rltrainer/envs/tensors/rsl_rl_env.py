"""Simulators with the interface of rsl_rl's `VecEnv`: mjlab, Isaac Lab, Genesis, MuJoCo Playground."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from rltrainer.envs.tensors.gym_tensor_env import Groups, GymTensorVectorEnv, require, rows_of
from rltrainer.errors import EnvError, ParamsError
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import PositiveFloat, checked


class RslRlVectorEnv(GymTensorVectorEnv):
    """Steps an env with the interface of rsl_rl's `VecEnv`.

    `final_obs` says where final observations come from. "extras" reads `extras["final_obs"]`, which Isaac Lab has since
    August 2026 if its config says `compute_final_obs=True`, or else `extras["time_outs_obs"]`, the final observations
    at time limits. SAC with n-step returns is then RSL-RL-SAC (2605.24975). Most envs have neither. "last" takes an
    episode's last observation, the one that the policy acted on, for its final one. After a time limit its value is
    bootstrapped from, as rsl_rl does.

    Args:
        env: its extras hold `time_outs` where there are time limits; without them, every end is a termination.
        obs_groups: the name of a group of observations, such as "policy", or several names, for a Dict observation;
            None: the only group, or all.
        final_obs: "extras" or "last".
        clip_actions: the bound of each number of an action, one for all or one for each; None: there is none.

    Raises:
        ParamsError: `final_obs` is neither, or an argument is of another kind.
    """

    _needs_last = True

    def __init__(
        self,
        env: Any,
        obs_groups: Groups = None,
        final_obs: Literal["extras", "last"] | None = None,
        clip_actions: float | Sequence[float] | None = None,
    ) -> None:
        name = type(self).__name__
        if final_obs not in ("extras", "last"):
            rule = 'must be "extras" or "last": most envs of rsl_rl return no final observations'
            hint = 'With "last" the last observation, on which the policy acted, is taken for an episode\'s final one.'
            raise ParamsError.about(name, "final_obs", rule, final_obs, hint)
        num_actions, _ = require(name, env, "num_actions", "get_observations")
        bounds = clip_actions if isinstance(clip_actions, Sequence) else [clip_actions] * num_actions
        if len(bounds) != num_actions:
            raise ParamsError.about(name, "clip_actions", f"must have {num_actions} bounds", clip_actions)
        limits = [checked(name, "clip_actions", bound, PositiveFloat | None) or np.inf for bound in bounds]
        high = np.array(limits, np.float32)
        super().__init__(env, obs_groups, "last" if final_obs == "last" else "info", Box(-high, high))

    def _reset(self, seed: int | None) -> Any:
        if seed is not None and callable(getattr(self.env, "seed", None)):
            self.env.seed(seed)
        (self.env if hasattr(self.env, "reset") else self.env.env).reset()  # Isaac Lab's wrapper has none of its own
        obs = self.env.get_observations()
        return obs[0] if isinstance(obs, tuple) else obs  # (obs, extras) before rsl_rl 3

    def _step(self, actions: Tensor) -> Any:
        obs, reward, done, extras = self.env.step(actions)
        done = done.bool()
        timed_out = extras["time_outs"].bool() if "time_outs" in extras else torch.zeros_like(done)
        return obs, reward, done & ~timed_out, done & timed_out, extras

    def _final(self, info: Any, last: Tree, terminated: Tensor, truncated: Tensor) -> Tree:
        """Return the true successors; where a termination has none, the last observation, as no target reads it."""
        final, known = info.get("final_obs"), terminated | truncated
        if final is None:
            final, known = info.get("time_outs_obs"), truncated
        if final is None and truncated.any():
            hint = 'In Isaac Lab, set compute_final_obs=True in its config; or take final_obs="last".'
            text = 'an episode timed out, but extras have neither "final_obs" nor "time_outs_obs"'
            raise EnvError(f"{type(self).__name__}: {text}. {hint}")
        others = rows_of(terminated, last, self._obs)
        return others if final is None else rows_of(known, self._choose(final), others)
