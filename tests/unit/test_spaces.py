"""Spaces as trees, dtypes, plain descriptions and mismatches."""

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltrainer.errors import SpaceError
from rltrainer.spaces import ValueRange, describe_mismatch, from_plain, leaf_spaces, numpy_dtype, stored_dtype, to_plain

BOX = spaces.Box(-1.0, 1.0, (3,))
ALL = [
    spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(0, 255, (4, 4, 3), np.uint8),
    spaces.Box(np.array([0.1, -2.0]), np.array([1.0, np.inf]), dtype=np.float64), spaces.Box(-1.0, 1.0, ()),
    spaces.Box(-5, 5, (2,), np.int64), spaces.Discrete(4), spaces.Discrete(4, start=-1), spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, 0]]), spaces.MultiBinary(3), spaces.MultiBinary([2, 3]),
    spaces.Tuple([spaces.Discrete(2), BOX]),
    spaces.Dict({"cam": spaces.Dict({"left": BOX}), "pair": spaces.Tuple([spaces.Discrete(2)])}),
]  # fmt: skip


def test_a_space_becomes_the_tree_of_its_values() -> None:
    discrete = spaces.Discrete(2)
    space = spaces.Dict({"a": spaces.Tuple([BOX, discrete]), "b": BOX})
    assert leaf_spaces(space) == {"a": (BOX, discrete), "b": BOX}
    assert leaf_spaces(BOX) is BOX


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Dict({"a": spaces.Graph(BOX, None)})])
def test_unsupported_spaces_are_named(space: gym.Space[Any]) -> None:
    text = r"^unsupported space (Text|Graph)\("
    with pytest.raises(SpaceError, match=f"{text}.*MultiBinary, or a Dict or Tuple of these. Leave it out"):
        leaf_spaces(space)
    with pytest.raises(SpaceError, match=text):
        to_plain(space)


@pytest.mark.parametrize(("space", "dtype", "as_numpy"), [
    (spaces.Box(-1, 1, (2,), np.float64), torch.float32, np.float32),
    (spaces.Box(-1, 1, (2,), np.float16), torch.float32, np.float32),
    (spaces.Box(0, 255, (2,), np.uint8), torch.uint8, np.uint8),
    (spaces.Box(0, 9, (2,), np.int32), torch.int32, np.int32), (spaces.Discrete(3), torch.int64, np.int64),
    (spaces.MultiDiscrete([2, 3]), torch.int64, np.int64), (spaces.MultiBinary(3), torch.int8, np.int8),
])  # fmt: skip
def test_stored_dtypes(space: gym.Space[Any], dtype: torch.dtype, as_numpy: type) -> None:
    assert stored_dtype(space) == dtype
    assert numpy_dtype(space) == np.dtype(as_numpy)


@pytest.mark.parametrize("space", ALL, ids=str)
def test_description_survives_a_file(space: gym.Space[Any]) -> None:
    again = from_plain(json.loads(json.dumps(to_plain(space))))
    assert again == space
    assert (again.dtype, again.shape) == (space.dtype, space.shape)
    assert describe_mismatch("obs", space, again) is None


def test_keys_keep_their_order_and_equal_bounds_are_one_number() -> None:
    space = spaces.Dict([("z", BOX), ("a", BOX)])
    assert list(from_plain(to_plain(space)).spaces) == ["z", "a"]  # type: ignore[attr-defined]  # a Dict has it
    assert to_plain(spaces.Box(0, 255, (84, 84, 4), np.uint8))["high"] == 255
    assert to_plain(spaces.Box(np.array([0.0, 0.5], np.float32), np.float32(1.0)))["low"] == [0.0, 0.5]


@pytest.mark.parametrize(
    "plain",
    [
        None, 5, {}, {"space": "Box"}, {"space": "Discrete", "n": -1, "start": 0},
        {"space": "Discrete", "n": "many", "start": 0}, {"space": "MultiBinary", "n": 0},
        {"space": "Tuple", "parts": 5}, {"space": "Dict", "parts": ["a"]},
        {"space": "Box", "low": 0, "high": 300, "shape": [1], "dtype": "uint8"},
        {"space": "Box", "low": "a", "high": 1, "shape": [1], "dtype": "float32"},
        {"space": "Box", "low": 0, "high": 1, "shape": [1], "dtype": "O"},
        {"space": "Box", "low": 0, "high": 1, "shape": [1], "dtype": "nonsense"},
        {"space": "Box", "low": [0, 0], "high": 1, "shape": [3], "dtype": "float32"},
    ],
    ids=str,
)  # fmt: skip
def test_what_describes_no_space(plain: Any) -> None:
    with pytest.raises(SpaceError, match="^not the description of a space: "):
        from_plain(plain)


def test_a_name_in_a_file_is_never_looked_up_and_a_size_never_taken_on_trust() -> None:
    huge = {"space": "Box", "low": 0, "high": 1, "shape": [10**13], "dtype": "float32"}
    for plain, text in (
        ({"space": "os.system"}, r"^unknown space 'os.system' in the file$"),
        ({"space": "Tuple", "parts": [{"space": "Text"}]}, r"^unknown space 'Text' in the file$"),
        (huge, r"^a Box of shape \(10000000000000,\) in the file: must hold at most"),
    ):
        with pytest.raises(SpaceError, match=text):
            from_plain(plain)


def test_bounds_and_float_width_may_differ() -> None:
    assert describe_mismatch("obs", BOX, spaces.Box(-9.0, 9.0, (3,), np.float64)) is None
    nested, wide = spaces.Dict({"a": BOX}), spaces.Dict({"a": spaces.Box(-9.0, 9.0, (3,))})
    assert describe_mismatch("obs", nested, wide) is None


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (BOX, spaces.Box(-1.0, 1.0, (4,))), (BOX, spaces.Box(0, 1, (3,), np.uint8)), (BOX, spaces.Discrete(3)),
        (BOX, spaces.Dict({"a": BOX})), (BOX, spaces.Tuple([BOX])), (spaces.Discrete(3), spaces.Discrete(4)),
        (spaces.Discrete(3), spaces.Discrete(3, start=1)), (spaces.Dict({"a": BOX}), spaces.Dict({"b": BOX})),
        (spaces.Tuple([BOX]), spaces.Tuple([BOX, BOX])),
    ],
    ids=str,
)  # fmt: skip
def test_a_mismatch_says_what_was_expected_and_found(expected: gym.Space[Any], found: gym.Space[Any]) -> None:
    assert describe_mismatch("buffer obs", expected, found) == f"buffer obs: expected {expected}, found {found}"


def test_bounds_of_actions_are_compared_as_they_are_stored() -> None:
    wide = spaces.Box(np.array([-1.0, -2.0, -1.0], np.float32), np.float32(1.0))
    assert describe_mismatch("action", BOX, wide) is None
    assert describe_mismatch("action", BOX, wide, with_bounds=True) == (
        f"action: expected {BOX}, found {wide}; "
        "number [1] lies in [-1.0, 1.0] of the one and in [-2.0, 1.0] of the other"
    )
    tenths = [spaces.Box(-0.1, 0.1, (2,), dtype) for dtype in (np.float32, np.float64)]
    assert describe_mismatch("action", *tenths, with_bounds=True) is None
    assert describe_mismatch("action", BOX, spaces.Discrete(3), with_bounds=True) is not None
    integers = [spaces.Box(0, high, (2,), np.int32) for high in (4, 5)]
    assert describe_mismatch("action", *integers, with_bounds=True) is not None


TENTH = spaces.Box(-0.1, 0.1, (1,), np.float64)


def float32(value: float) -> Any:
    return np.array([value], np.float32)


@pytest.mark.parametrize(("space", "inside", "outside"), [
    # Float32 keeps 24 bits: numbers next to 0.1 are 7.5e-9 apart, next to 1000 they are 6e-5 apart.
    (TENTH, [0.1, -0.1, 0.10000003, np.nextafter(np.float32(0.1), 1)], [0.1000002]),
    (spaces.Box(-1.0, 1000.0, (1,)), [1000.0001, -1.0001], [1000.01, -1.01, np.inf]),
    (spaces.Box(-np.inf, 2.0, (1,)), [-1e30, -np.inf, 2.0], [2.1, np.inf, np.nan]),
    (spaces.Box(0.0, 0.0, (1,)), [0.0], [1e-9]),
    (spaces.Box(-np.inf, np.inf, (1,)), [np.inf, np.nan], []),
    (spaces.Box(-1e39, 1e39, (1,), np.float64), [np.inf, np.nan], []),
], ids=str)  # fmt: skip
def test_bounds_leave_room_for_rounding_only(space: Any, inside: list[float], outside: list[float]) -> None:
    values = ValueRange(space)
    assert [value for value in inside if not values.holds(float32(value))] == []
    assert [value for value in outside if values.holds(float32(value))] == []
    both = np.array([*inside, *outside], np.float32)[:, None]
    assert values.outside(both).flatten().tolist() == [False] * len(inside) + [True] * len(outside)


@pytest.mark.parametrize(("space", "inside", "outside"), [
    (spaces.Discrete(3), [0, 1, 2], [-1, 3]),
    (spaces.Discrete(3, start=5), [5, 7], [0, 4, 8]),
    (spaces.MultiDiscrete([2, 3]), [[0, 0], [1, 2]], [[2, 0], [0, 3], [0, -1]]),
    (spaces.MultiDiscrete([2, 3], start=[1, -1]), [[1, -1], [2, 1]], [[0, 0], [1, 2]]),
    (spaces.MultiBinary(2), [[0, 1]], [[0, 2], [-1, 0]]),
    (spaces.Box(-5, 5, (1,), np.int64), [[-5], [5]], [[6], [-6]]),
], ids=str)  # fmt: skip
def test_choices_that_exist(space: Any, inside: list[Any], outside: list[Any]) -> None:
    values, both = ValueRange(space), [*inside, *outside]
    assert [values.holds(np.array([value])) for value in both] == [True] * len(inside) + [False] * len(outside)
    assert values.holds(np.array(inside))
    is_outside = values.outside(np.array(both)).reshape(len(both), -1).any(1)
    assert is_outside.tolist() == [False] * len(inside) + [True] * len(outside)


def test_a_box_without_numbers_holds_everything() -> None:
    assert ValueRange(spaces.Box(-1.0, 1.0, (0,))).holds(np.zeros((4, 0), np.float32))


def test_numbers_scaled_to_bounds_are_inside() -> None:
    # What users compute: low + (high - low) * x for x in [0, 1], at both ends and between, for uneven bounds.
    rng = np.random.default_rng(0)
    for _ in range(300):
        low = np.float32(rng.normal() * 10.0 ** rng.integers(-3, 4))
        high = np.float32(low + abs(rng.normal()) * 10.0 ** rng.integers(-3, 4))
        x = np.concatenate([[0, 1], rng.random(20)]).astype(np.float32)
        values = ValueRange(spaces.Box(low, high, (1,)))
        assert values.holds((low + (high - low) * x)[:, None])
        assert values.holds((high - (high - low) * x)[:, None])
        assert values.holds((low * (1 - x) + high * x)[:, None])
        assert values.holds(((low + high) / 2 + (high - low) / 2 * (2 * x - 1))[:, None])
