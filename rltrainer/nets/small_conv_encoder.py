"""An encoder of images that are too small for the usual convolutions."""

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.errors import SpaceError, field_error_text
from rltrainer.nets.linear import Linear
from rltrainer.spaces import Space
from rltrainer.state import registry
from rltrainer.validation.suggestions import explains_arguments


@explains_arguments
class SmallConvEncoder(nn.Module):
    """Small images through a convolution of 3 x 3 and a linear layer, as Young and Tian (2019) have for MinAtar.

        policy = rl.QNetwork.for_envs(envs, rl.NetParams(encoder=rl.SmallConvEncoder, hidden_sizes=()))

    Bytes are scaled to [0, 1]; the channel axis is the first if that is shorter than the last, else the last.

    Args:
        space: a Box of three axes, at least 3 x 3.
        features: F, how many it makes of an image.

    Raises:
        SpaceError: the space is another.
    """

    weight_dtype = torch.float32

    def __init__(self, space: Space, features: int = 128) -> None:
        super().__init__()
        shape = space.shape if isinstance(space, spaces.Box) and len(space.shape) == 3 else (0, 0, 0)
        self.channels_last = shape[2] <= shape[0]
        channels, height, width = (shape[2], *shape[:2]) if self.channels_last else shape
        if min(height, width) < 3:
            rule, hint = "must be a Box of three axes, at least 3 x 3", "Return None for other leaves of a Dict."
            raise SpaceError(field_error_text("SmallConvEncoder", "space", rule, space, hint))
        self.scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        self.conv = nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU())
        self.linear = nn.Sequential(Linear(16 * (height - 2) * (width - 2), features), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] or [B, H, W, C] to [B, features]."""
        x = x.movedim(-1, 1) if self.channels_last else x
        return self.linear(self.conv(x.to(self.weight_dtype) * self.scale).flatten(1))  # type: ignore[no-any-return]  # nn.Module


registry.add_values(SmallConvEncoder)
