"""Action masks from where envs of other libraries keep them."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltrainer.envs.adapter.checks import describe
from rltrainer.errors import EnvError, SpaceError, field_error_text
from rltrainer.spaces import ACTION_MASK, num_choices
from rltrainer.validation.suggestions import explains_arguments


@explains_arguments
class ActionMask(gym.Wrapper[Any, Any, Any, Any]):
    """Puts the mask of allowed actions into the observation, as the leaf `action_mask` of a Dict.

    The mask is what `info["action_mask"]` holds after each reset and step, or else what the env's method
    `action_masks()` returns: one flag for each choice, of a MultiDiscrete or MultiBinary action one choice after the
    other. An observation that is no Dict becomes its part `observation`.

        envs = rl.make_vec("MyEnv-v0", num_envs=8, wrappers=[rl.ActionMask])

    Args:
        env: an env with Discrete, MultiDiscrete or MultiBinary actions.

    Raises:
        SpaceError: its actions are others, or a mask has another shape.
        EnvError: it has neither `info["action_mask"]` nor `action_masks()`.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        sizes = num_choices(env.action_space)
        if sizes is None:
            rule = "must be Discrete, MultiDiscrete or MultiBinary"
            raise SpaceError(field_error_text("ActionMask", "env.action_space", rule, env.action_space))
        self._shape = (sum(sizes),)
        space = env.observation_space
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        self._is_dict = isinstance(space, spaces.Dict)
        self.observation_space = spaces.Dict({**parts, ACTION_MASK: spaces.MultiBinary(sum(sizes))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env; its observation holds the mask."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; its observation holds the mask."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: dict[str, Any]) -> dict[str, Any]:
        if ACTION_MASK in info:
            mask = np.asarray(info[ACTION_MASK])
        elif self.has_wrapper_attr("action_masks"):
            mask = np.asarray(self.get_wrapper_attr("action_masks")())
        else:
            raise EnvError(f'ActionMask: {self.env} has neither info["{ACTION_MASK}"] nor a method action_masks()')
        if mask.shape != self._shape or mask.dtype.kind not in "biuf":
            raise SpaceError(f"ActionMask: expected flags of shape {self._shape}, got {describe(mask)}")
        parts = obs if self._is_dict else {"observation": obs}
        return {**parts, ACTION_MASK: (mask != 0).astype(np.int8)}
