"""Trees of arrays."""

import numpy as np
import pytest

from rltrainer.tree import leaves, map_tree, named_leaves

TREE = {"cam": {"left": 1, "right": 2}, "pair": (3, {"x": 4})}


def test_map_keeps_structure_and_order() -> None:
    mapped = map_tree(lambda x: 10 * x, {"z": 1, "a": (2, 3)})
    assert mapped == {"z": 10, "a": (20, 30)}
    assert list(mapped) == ["z", "a"]


def test_map_over_several_trees_pairs_leaves_by_key_and_place() -> None:
    assert map_tree(lambda x, y: x - y, {"a": 5, "b": (7, 9)}, {"b": (1, 2), "a": 4}) == {"a": 1, "b": (6, 7)}


def test_map_of_a_bare_leaf() -> None:
    assert map_tree(lambda x, y: x + y, 2, 3) == 5


def test_map_refuses_trees_of_other_structure() -> None:
    with pytest.raises(ValueError, match="shorter"):
        map_tree(lambda x, y: x, (1, 2), (1,))
    with pytest.raises(KeyError):
        map_tree(lambda x, y: x, {"a": 1}, {"b": 1})


def test_leaves_are_named_as_a_user_would_write_them() -> None:
    assert dict(named_leaves(TREE)) == {
        '["cam"]["left"]': 1,
        '["cam"]["right"]': 2,
        '["pair"][0]': 3,
        '["pair"][1]["x"]': 4,
    }
    assert list(named_leaves(5)) == [("", 5)]


def test_leaves_in_order() -> None:
    assert leaves(TREE) == [1, 2, 3, 4]
    array = np.zeros(3)
    assert leaves(array)[0] is array
