"""Simulators with the interface of rsl_rl's `VecEnv`: mjlab, Isaac Lab, Genesis, MuJoCo Playground."""

from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from rltrainer.envs.tensors.gym_tensor_env import Groups, GymTensorVectorEnv, require
from rltrainer.errors import ParamsError
from rltrainer.validation.field_rules import PositiveFloat, checked


class RslRlVectorEnv(GymTensorVectorEnv):
    """Steps an env with the interface of rsl_rl's `VecEnv`.

    Such an env returns no final observations: `final_obs="last"` is the explicit choice to take an episode's last
    observation, the one that the policy acted on, for its final one. After a time limit its value is bootstrapped
    from, as rsl_rl does.

    Args:
        env: its extras hold `time_outs` where there are time limits; without them, every end is a termination.
        obs_groups: the name of a group of observations, such as "policy", or several names, for a Dict observation;
            None: the only group, or all.
        final_obs: "last".
        clip_actions: the bound of each number of an action; None: there is none.

    Raises:
        ParamsError: `final_obs` is not "last", or an argument is of another kind.
    """

    def __init__(
        self,
        env: Any,
        obs_groups: Groups = None,
        final_obs: Literal["last"] | None = None,
        clip_actions: float | None = None,
    ) -> None:
        name = type(self).__name__
        if final_obs != "last":
            rule = 'must be "last": an env of rsl_rl returns no final observations'
            hint = "Then the last observation, on which the policy acted, is taken for an episode's final one."
            raise ParamsError.about(name, "final_obs", rule, final_obs, hint)
        num_actions, _ = require(name, env, "num_actions", "get_observations")
        high = checked(name, "clip_actions", clip_actions, PositiveFloat | None) or np.inf
        super().__init__(env, obs_groups, final_obs, Box(-high, high, (num_actions,), np.float32))

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
        return obs, reward, done & ~timed_out, done & timed_out, {}
