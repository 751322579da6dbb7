"""Encoders: which features they make of each kind of space."""

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.errors import SpaceError
from rltrainer.nets.encoder import ConvEncoder, Encoder


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, shape, np.float32)


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def test_flat_box_passes_as_it_is() -> None:
    encoder = Encoder(box(3))
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert encoder.out_features == 3
    assert torch.equal(encoder(x), x)


def test_box_of_two_axes_is_flattened_row_by_row() -> None:
    encoder = Encoder(box(2, 2))
    assert encoder.out_features == 4
    assert encoder(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])).tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_box_without_axes_is_one_feature() -> None:
    encoder = Encoder(box())
    assert encoder.out_features == 1
    assert encoder(torch.tensor([5.0, 6.0])).tolist() == [[5.0], [6.0]]


def test_other_dtypes_become_float32() -> None:
    assert Encoder(box(2))(torch.zeros(1, 2, dtype=torch.float64)).dtype == torch.float32
    assert Encoder(image(2))(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[0.0, 255.0]]


def test_discrete_is_one_hot_from_its_start() -> None:
    encoder = Encoder(spaces.Discrete(3, start=5))
    assert encoder.out_features == 3
    assert encoder(torch.tensor([5, 7])).tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_multi_discrete_is_one_hot_after_one_hot() -> None:
    encoder = Encoder(spaces.MultiDiscrete([2, 3], start=[0, 1]))
    assert encoder.out_features == 5
    assert encoder(torch.tensor([[1, 1], [0, 3]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_multi_discrete_of_two_axes_is_read_row_by_row() -> None:
    encoder = Encoder(spaces.MultiDiscrete(np.array([[2, 2], [2, 3]])))
    assert encoder.out_features == 9
    assert encoder(torch.tensor([[[1, 0], [0, 2]]])).tolist() == [[0, 1, 1, 0, 1, 0, 0, 0, 1]]


def test_multi_binary_is_its_bits() -> None:
    encoder = Encoder(spaces.MultiBinary([2, 2]))
    assert encoder.out_features == 4
    features = encoder(torch.tensor([[[0, 1], [1, 1]]], dtype=torch.int8))
    assert features.dtype == torch.float32
    assert features.tolist() == [[0.0, 1.0, 1.0, 1.0]]


NESTED = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((box(1), box(2)))})


def test_dict_and_tuple_are_concatenated_in_the_order_of_the_space() -> None:
    encoder = Encoder(NESTED)
    obs = {"a": torch.tensor([1]), "b": (torch.tensor([[7.0]]), torch.tensor([[8.0, 9.0]]))}
    assert encoder.out_features == 5
    assert encoder(obs).tolist() == [[0.0, 1.0, 7.0, 8.0, 9.0]]


def test_keys_in_another_order_give_the_same_features() -> None:
    encoder = Encoder(spaces.Dict({"a": box(2), "b": box(2)}))
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    assert encoder({"b": b, "a": a}).tolist() == [[1.0, 2.0, 3.0, 4.0]]


@pytest.mark.parametrize("shape", [(3, 36, 40), (36, 40, 3), (84, 84, 4)])
def test_images_become_512_features(shape: tuple[int, ...]) -> None:
    encoder = Encoder(image(*shape))
    assert encoder.out_features == 512
    assert encoder(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, 512)


def test_channels_last_sees_the_same_picture() -> None:
    first, last = ConvEncoder(image(3, 36, 40)), ConvEncoder(image(36, 40, 3))
    last.load_state_dict(first.state_dict())
    picture = torch.randint(0, 256, (2, 3, 36, 40), dtype=torch.uint8)
    features = first(picture)
    assert features.abs().sum() > 0
    torch.testing.assert_close(last(picture.permute(0, 2, 3, 1)), features)


def test_bytes_are_scaled_to_one_and_floats_are_not() -> None:
    of_bytes, of_floats = ConvEncoder(image(3, 36, 36)), ConvEncoder(spaces.Box(0, 1, (3, 36, 36), np.float32))
    of_floats.load_state_dict(of_bytes.state_dict())
    picture = torch.randint(0, 256, (2, 3, 36, 36), dtype=torch.uint8)
    torch.testing.assert_close(of_floats(picture.float() / 255), of_bytes(picture))


def test_images_sit_beside_numbers() -> None:
    encoder = Encoder(spaces.Dict({"cam": image(36, 36, 3), "pos": box(2)}))
    assert encoder.out_features == 514
    obs = {"cam": torch.zeros(1, 36, 36, 3, dtype=torch.uint8), "pos": torch.tensor([[5.0, 6.0]])}
    assert encoder(obs)[0, 512:].tolist() == [5.0, 6.0]


@pytest.mark.parametrize("space", [image(35, 84, 3), image(3, 84, 35), box(2, 3, 4)])
def test_too_small_images_are_refused(space: spaces.Box) -> None:
    text = (
        f"ConvEncoder.observation_space: images (a Box of three axes) must be at least 36 x 36; got {space!r} (Box). "
        "NetParams(encoder=rl.SmallConvEncoder) is for small ones; flatten what is none in a wrapper."
    )
    with pytest.raises(SpaceError, match=f"^{re.escape(text)}$"):
        Encoder(space)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})])
def test_spaces_that_no_tensor_holds_are_refused(space: gym.Space[Any]) -> None:
    with pytest.raises(
        SpaceError, match="must be Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
    ):
        Encoder(space)
