"""The parent of policies whose networks act in (-1, 1)^A."""

from collections.abc import Mapping
from typing import Any, TypeGuard, Unpack

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.errors import SpaceError, field_error_text
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.policy import Policy, PolicyOptions
from rltrainer.spaces import Space, require_floats


class UnitBoxPolicy(Policy):
    """Parent of policies whose networks act in (-1, 1)^A, the shape of squashed actions.

    Raises:
        SpaceError: the action space is not a bounded Box of floats of one axis with low < high.
    """

    keeps_dtype = (*Policy.keeps_dtype, "action_low", "action_high")
    action_low: Tensor
    action_high: Tensor

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        if not _is_unit_box_like(action_space):
            rule = "must be a bounded Box of one axis with low < high"
            hint = "Give the env such a Box with gymnasium.wrappers.TransformAction, or use another policy."
            raise SpaceError(field_error_text(name, "action_space", rule, action_space, hint))
        require_floats(name, action_space)
        self.register_buffer("action_low", torch.from_numpy(action_space.low.astype(np.float32)))
        self.register_buffer("action_high", torch.from_numpy(action_space.high.astype(np.float32)))

    def other_bounds(self, state: Mapping[str, Any], prefix: str = "") -> str | None:
        """Return a sentence if a state was saved by a policy with other bounds of actions, else None."""
        for name in ("action_low", "action_high"):
            saved, own = state.get(prefix + name), getattr(self, name)
            if isinstance(saved, Tensor) and saved.tolist() != own.tolist():
                return f"{prefix}{name}: expected {own.tolist()}, found {saved.tolist()}: actions have other bounds"
        return None

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Load no other bounds than those of the action space; the networks mean shares of them."""
        problem = self.other_bounds(state_dict, prefix)
        if problem:
            raise SpaceError(f"{type(self).__name__}.load_state_dict: {problem}. Nothing was loaded.")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def scale(self, action: Tensor) -> Tensor:
        """Map (-1, 1) to the bounds of the action space."""
        return torch.lerp(self.action_low, self.action_high, ((action + 1) * 0.5).to(self.action_low.dtype))

    def unscale(self, action: Tensor) -> Tensor:
        """Map the bounds of the action space to (-1, 1)."""
        width = self.action_high.to(action.dtype) - self.action_low
        return 2 * (action - self.action_low) / width - 1


def _is_unit_box_like(space: Space) -> TypeGuard[spaces.Box]:
    """Return whether an affine map takes (-1, 1)^A to the space and back."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
        return False
    # Beyond float32, the map would be infinite.
    width = space.high.astype(np.float64) - space.low
    return bool(((width > 0) & (width <= np.finfo(np.float32).max)).all())
