"""The global random numbers of torch, NumPy and Python go on from where they were."""

import random
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.state.codec import from_state, to_state
from rltrainer.state.global_random import GlobalRandom


def draw() -> list[float]:
    return [torch.rand(()).item(), np.random.normal(), random.gauss(0, 1), np.random.random(), random.random()]


def test_they_go_on() -> None:
    rl.seed(3)
    draw()  # each of the two twisters holds a normal number back
    state = to_state(GlobalRandom.of_now())
    expected = [draw(), draw()]
    rl.seed(4)
    from_state(GlobalRandom, state, "random").restore()
    assert [draw(), draw()] == expected


@pytest.mark.parametrize(("field", "value", "text"), [
    ("torch", torch.zeros(3), "torch: expected the state of torch's generator"),
    ("torch", torch.zeros(5056, dtype=torch.uint8), "torch: expected the state of torch's generator"),
    ("cuda", [torch.zeros(3)], "cuda.0: expected the 16 bytes of a GPU"),
    ("numpy", torch.zeros(625), "numpy: expected the 624 words of a generator and its position"),
    ("numpy", torch.full((625,), -1), "numpy: expected the 624 words of a generator and its position"),
    ("python", None, "python: expected the 624 words of a generator and its position"),
    ("python", torch.full((625,), 625), "python: expected the 624 words of a generator and its position"),
    ("spare_normals", [0.0], "spare_normals: expected two finite numbers or None"),
    ("spare_normals", [None, float("nan")], r"spare_normals\.1: expected a finite number"),
])  # fmt: skip
def test_what_is_no_state_is_named(field: str, value: Any, text: str) -> None:
    state = to_state(GlobalRandom.of_now()) | {field: value}
    with pytest.raises(CheckpointError, match=rf"random\.{text}"):
        from_state(GlobalRandom, state, "random")


def test_another_generator_of_numpy_is_left_out() -> None:
    before = np.random.mtrand._rand._bit_generator
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        state = GlobalRandom.of_now()
        assert state.numpy is None
        state.restore()
    finally:
        np.random.set_bit_generator(before)
