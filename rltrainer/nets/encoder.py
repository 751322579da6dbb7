"""Encoders: from an observation tree to one feature vector per sample."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from rltrainer.errors import ParamsError, SpaceError, readable
from rltrainer.nets.linear import Linear
from rltrainer.nets.mlp import orthogonal_
from rltrainer.nets.modes import eval_mode
from rltrainer.nets.net_params import MakeEncoder, NetParams
from rltrainer.nets.normalizer import warn_once
from rltrainer.nets.weight_dtype import cast
from rltrainer.spaces import ACTION_MASK, Space, leaf_shape, leaf_spaces, num_choices, stored_dtype
from rltrainer.state import registry
from rltrainer.tree import Tree, leaves, map_tree, named_leaves
from rltrainer.validation.suggestions import did_you_mean

Conv = tuple[int, int, int]


class LeafEncoder(nn.Module):
    """Parent of the encoders of one leaf."""

    weight_dtype = torch.float32  # of the features


class FlatEncoder(LeafEncoder):
    """Numbers as they are, flattened."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.out_features = int(np.prod(leaf_shape(space)))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, ...] to floats [B, out_features]."""
        return x.reshape(len(x), self.out_features).to(self.weight_dtype)


class ByteEncoder(FlatEncoder):
    """Bytes, flattened and scaled to [0, 1]; a state that was saved before this scaling keeps its numbers."""

    scale: Tensor

    def __init__(self, space: Space) -> None:
        super().__init__(space)
        self.register_buffer("scale", torch.tensor(1 / 255))

    def forward(self, x: Tensor) -> Tensor:
        """Map bytes [B, ...] to floats [B, out_features]."""
        return super().forward(x) * self.scale

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        state_dict.setdefault(f"{prefix}scale", torch.ones(()))
        super()._load_from_state_dict(state_dict, prefix, *args)


class OneHotEncoder(LeafEncoder):
    """Choices as one-hot vectors, one after the other."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        self.sizes = num_choices(space) or []
        self.start = np.asarray(space.start).flatten().tolist()
        self.out_features = sum(self.sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Map int64 [B] or [B, ...] to floats [B, out_features]."""
        columns = x.reshape(len(x), len(self.sizes)).unbind(1)
        choices = zip(columns, self.start, self.sizes, strict=True)
        vectors = [F.one_hot(column - start, size) for column, start, size in choices]
        return torch.cat(vectors, dim=1).to(self.weight_dtype)


class ImageEncoder(LeafEncoder):
    """Images through convolutions (filters, size, stride) and a linear layer; bytes are scaled to [0, 1]."""

    def __init__(self, space: spaces.Box, channels_last: bool, convs: Sequence[Conv], features: int) -> None:
        super().__init__()
        self.channels_last, self.out_features = channels_last, features
        self.scale = 1 / 255 if space.dtype == np.uint8 else 1.0
        height, width, channels = space.shape if channels_last else (*space.shape[1:], space.shape[0])
        modules: list[nn.Module] = []
        for num_filters, size, stride in convs:
            modules += [nn.Conv2d(channels, num_filters, size, stride), nn.ReLU()]
            channels, height, width = num_filters, (height - size) // stride + 1, (width - size) // stride + 1
        self.conv = nn.Sequential(*modules)
        self.linear = nn.Sequential(Linear(channels * height * width, features), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] or [B, H, W, C] to [B, features]."""
        x = x.movedim(-1, 1) if self.channels_last else x
        return self.linear(self.conv(x.to(self.weight_dtype) * self.scale).flatten(1))  # type: ignore[no-any-return]  # nn.Module


class ConvEncoder(ImageEncoder):
    """Images (Mnih et al. 2015), channels first or last; fewer pixels than 36 x 36 raise a `SpaceError`."""

    def __init__(self, space: spaces.Box, features: int = 512) -> None:
        channels_last = space.shape[2] < space.shape[0]
        if min(space.shape[:2] if channels_last else space.shape[1:]) < 36:
            rule = "images (a Box of three axes) must be at least 36 x 36"
            hint = "NetParams(encoder=rl.SmallConvEncoder) is for small ones; flatten other arrays in a wrapper."
            raise SpaceError.about("ConvEncoder", "observation_space", rule, space, hint)
        super().__init__(space, channels_last, [(32, 8, 4), (64, 4, 2), (64, 3, 1)], features)


class SmallConvEncoder(ImageEncoder):
    """Small images, at least 3 x 3, through one convolution and a linear layer, as Young and Tian (2019) for MinAtar.

    A policy takes it as `rl.NetParams(encoder=rl.SmallConvEncoder, hidden_sizes=())`; another space is a `SpaceError`.
    """

    def __init__(self, space: Space, features: int = 128) -> None:
        shape = space.shape if isinstance(space, spaces.Box) and len(space.shape) == 3 else (0, 0, 0)
        # MinAtar has up to ten channels on a side of ten: the first axis holds them only if it is the shorter one.
        channels_last = shape[2] <= shape[0]
        if not isinstance(space, spaces.Box) or min(shape[:2] if channels_last else shape[1:]) < 3:
            rule, hint = "must be a Box of three axes, at least 3 x 3", "Return None for other leaves of a Dict."
            raise SpaceError.about("SmallConvEncoder", "space", rule, space, hint)
        super().__init__(space, channels_last, [(16, 3, 1)], features)


registry.add_values(FlatEncoder, OneHotEncoder, ConvEncoder, SmallConvEncoder)


class Encoder(nn.Module):
    """One encoder per leaf of an observation space, whose features are concatenated; or one for the whole observation.

    Images (a Box of three axes) get a `ConvEncoder`, choices a `OneHotEncoder`, other bytes a `ByteEncoder` and other
    leaves a `FlatEncoder`, unless `net.encoder` or `net.obs_encoder` makes a module. `net.keys` are the visible parts
    of a Dict.
    """

    weight_dtype = torch.float32

    def __init__(self, observation_space: Space, net: NetParams | None = None) -> None:
        super().__init__()
        net = NetParams() if net is None else net
        space = _seen_space(observation_space, net.keys)
        tree = leaf_spaces(space)
        self.sees_whole = net.obs_encoder is not None
        if net.obs_encoder is None:
            found = [_leaf_encoder(name, leaf, net.encoder) for name, leaf in named_leaves(tree)]
        else:
            input_text, whole = f"the observation, {readable(space)}", net.obs_encoder(space)
            found = [(whole, _num_features("NetParams.obs_encoder", input_text, space, whole))]
        self.parts = nn.ModuleList(part for part, _ in found)
        self.structure = map_tree(lambda _: None, tree)
        self.out_features = sum(num_features for _, num_features in found)
        self.is_vector = isinstance(tree, spaces.Box) and len(tree.shape) == 1 and type(self.parts[0]) is FlatEncoder

    def forward(self, obs: Tree) -> Tensor:
        """Map an observation tree [B, ...] to features [B, out_features]."""
        if self.is_vector:
            leaf: Tensor = obs
            return leaf if leaf.dtype == self.weight_dtype else leaf.to(self.weight_dtype)
        if self.weight_dtype is not torch.float32:
            obs = cast(obs, self.weight_dtype)
        # An observation may list its keys in another order than its space.
        seen = map_tree(lambda _, leaf: leaf, self.structure, obs)
        if self.sees_whole:
            return self.parts[0](seen)  # type: ignore[no-any-return]  # nn.Module
        features = [part(leaf) for part, leaf in zip(self.parts, leaves(seen), strict=True)]
        return features[0] if len(features) == 1 else torch.cat(features, dim=1)

    def orthogonal_(self, gain: float) -> Self:
        """Initialise our convolutions orthogonally, and return the encoder; a user's modules are left alone."""
        for part in self.parts:
            if isinstance(part, ConvEncoder):
                orthogonal_(part, gain)
        return self


def _seen_space(observation_space: Space, keys: Sequence[str] | None) -> Space:
    """Return the visible space; a Dict is reduced to the given keys, in its order, without the mask."""
    if not isinstance(observation_space, spaces.Dict):
        if keys is not None:
            raise ParamsError.about("NetParams", "keys", "must be None where observations are no Dict", keys)
        return observation_space
    parts = {key: part for key, part in observation_space.spaces.items() if key != ACTION_MASK}
    if not parts:
        raise SpaceError(f"Encoder.observation_space: must have a part beside {ACTION_MASK!r}; got {observation_space}")
    for key in keys or ():
        if key not in parts:
            why = f"{key!r} is no input" if key == ACTION_MASK else f"the observation has no part {key!r}"
            raise ParamsError(f"NetParams.keys: {why}.{did_you_mean(key, parts)}")
    # gymnasium sorts the keys of a dict, and keeps the order of pairs.
    return spaces.Dict([(key, part) for key, part in parts.items() if keys is None or key in keys])


def _leaf_encoder(name: str, space: Space, make: MakeEncoder | None) -> tuple[nn.Module, int]:
    """Return the encoder of a leaf, and its number of features."""
    own = None if make is None else make(space)
    if own is not None:
        return own, _num_features("NetParams.encoder", f"obs{name}, {readable(space)}", space, own)
    is_image = isinstance(space, spaces.Box) and len(space.shape) == 3
    is_choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    kind: Any = ConvEncoder if is_image else OneHotEncoder if is_choice else FlatEncoder
    if kind is FlatEncoder and isinstance(space, spaces.Box) and space.dtype == np.uint8 and (space.high == 255).all():
        kind, hint = ByteEncoder, "An image needs three axes: gymnasium.wrappers.ReshapeObservation makes them."
        warn_once(f"obs{name}, {readable(space)}: these bytes reach the network as a vector. {hint}")
    part = kind(space)
    return part, part.out_features


def _num_features(field: str, input_text: str, space: Space, encoder: object) -> int:
    """Return the width of the output of a user's encoder for two values of a space."""
    rule = f"{field}: must make a module from [B, ...] to float [B, F] for {input_text}"
    if not isinstance(encoder, nn.Module):
        raise ParamsError(f"{rule}; got {readable(encoder)} ({type(encoder).__name__})")
    device = next((parameter.device for parameter in encoder.parameters()), None)

    def two_values(leaf: Space) -> Tensor:
        value = np.clip(0, leaf.low, leaf.high) if isinstance(leaf, spaces.Box) else getattr(leaf, "start", 0)
        # Allocated on the device first, which is "meta" while a file is loaded: see `load_file`.
        values = torch.empty((2, *leaf_shape(leaf)), dtype=stored_dtype(leaf), device=device)
        return values.copy_(torch.from_numpy(np.asarray(value)))

    values = map_tree(two_values, leaf_spaces(space))
    tried = f"{values.dtype} {list(values.shape)}" if isinstance(values, Tensor) else "two observations"
    try:
        with torch.no_grad(), eval_mode(encoder):
            features = encoder(values)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ParamsError(f"{rule}; of {tried} it makes {type(error).__name__}: {error}") from error
    if isinstance(features, Tensor) and features.dim() == 2 and len(features) == 2 and features.is_floating_point():
        return features.shape[1]
    found = f"{features.dtype} {list(features.shape)}" if isinstance(features, Tensor) else readable(features)
    raise ParamsError(f"{rule}; of {tried} it makes {found}")
