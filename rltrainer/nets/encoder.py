"""Encoders: from an observation tree to one feature vector per sample."""

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from rltrainer.errors import SpaceError, field_error_text
from rltrainer.spaces import leaf_shape, leaf_spaces
from rltrainer.tree import Tree, leaves, map_tree


class FlatEncoder(nn.Module):
    """Numbers as they are, flattened."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.out_features = int(np.prod(leaf_shape(space)))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, ...] to float32 [B, out_features]."""
        return x.float() if x.dim() == 2 else x.reshape(len(x), self.out_features).float()


class OneHotEncoder(nn.Module):
    """Choices as one-hot vectors, one after the other."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.flatten()
        self.sizes = [int(size) for size in sizes]
        self.start = np.asarray(space.start).flatten().tolist()
        self.out_features = sum(self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Map int64 [B] or [B, ...] to float32 [B, out_features]."""
        columns = x.reshape(len(x), len(self.sizes)).unbind(1)
        choices = zip(columns, self.start, self.sizes, strict=True)
        return torch.cat([F.one_hot(column - start, size) for column, start, size in choices], dim=1).float()


class ConvEncoder(nn.Module):
    """Images through three convolutions and a linear layer (Mnih et al. 2015); bytes are scaled to [0, 1].

    The channel axis is the first or the last, whichever is shorter.
    """

    def __init__(self, space: spaces.Box, features: int = 512) -> None:
        super().__init__()
        height, width = space.shape[:2] if (last := space.shape[2] < space.shape[0]) else space.shape[1:]
        channels = space.shape[2] if last else space.shape[0]
        if min(height, width) < 36:
            rule = "images (a Box of three axes) must be at least 36 x 36"
            hint = "Resize them, or flatten what is no image, in a wrapper of the env."
            raise SpaceError(field_error_text("ConvEncoder", "observation_space", rule, space, hint))
        self.channels_last = last
        self.scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        self.conv = nn.Sequential(
            nn.Conv2d(channels, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
        )
        with torch.no_grad():
            conv_features = self.conv(torch.zeros(1, channels, height, width)).numel()
        self.linear = nn.Sequential(nn.Linear(conv_features, features), nn.ReLU())
        self.out_features = features

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] or [B, H, W, C] to [B, features]."""
        x = x.movedim(-1, 1) if self.channels_last else x
        return self.linear(self.conv(x.float() * self.scale).flatten(1))  # type: ignore[no-any-return]  # nn.Module


class Encoder(nn.Module):
    """One encoder per leaf of an observation space; their features are concatenated.

    Images (a Box of three axes) get a `ConvEncoder`, choices a `OneHotEncoder`, everything else a `FlatEncoder`.

    Raises:
        SpaceError: the space has a part that no tensor can hold, or an image is too small.
    """

    def __init__(self, observation_space: gym.Space[Any]) -> None:
        super().__init__()
        tree = leaf_spaces(observation_space)
        self.parts = nn.ModuleList(_leaf_encoder(space) for space in leaves(tree))
        self.structure = map_tree(lambda _: None, tree)
        self.out_features = sum(part.out_features for part in self.parts)  # type: ignore[misc]  # an int by construction
        self.is_vector = isinstance(tree, spaces.Box) and len(tree.shape) == 1

    def forward(self, obs: Tree) -> Tensor:
        """Map an observation tree [B, ...] to features [B, out_features]."""
        if self.is_vector:
            return obs if obs.dtype == torch.float32 else obs.float()  # type: ignore[no-any-return]  # a leaf
        # By key: a dict whose keys come in another order than the space's must not meet the wrong encoders.
        ordered = leaves(map_tree(lambda _, leaf: leaf, self.structure, obs))
        features = [part(leaf) for part, leaf in zip(self.parts, ordered, strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, dim=1)


def _leaf_encoder(space: gym.Space[Any]) -> nn.Module:
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        return ConvEncoder(space)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return OneHotEncoder(space)
    return FlatEncoder(space)
