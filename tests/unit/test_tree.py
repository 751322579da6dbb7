"""Trees of arrays."""

import pytest
import torch

from rltrainer.tree import leaves, map_tree, named_leaves, packed_like

TREE = {"cam": {"left": 1, "right": 2}, "pair": (3, {"x": 4})}


def test_map_keeps_structure_and_order() -> None:
    mapped = map_tree(lambda x: 10 * x, {"z": 1, "a": (2, 3)})
    assert mapped == {"z": 10, "a": (20, 30)}
    assert list(mapped) == ["z", "a"]


def test_map_over_several_trees_pairs_leaves_by_key_and_place() -> None:
    assert map_tree(lambda x, y: x - y, {"a": 5, "b": (7, 9)}, {"b": (1, 2), "a": 4}) == {"a": 1, "b": (6, 7)}
    assert map_tree(lambda x, y: x + y, 2, 3) == 5


def test_map_refuses_trees_of_other_structure() -> None:
    with pytest.raises(ValueError, match="shorter"):
        map_tree(lambda x, y: x, (1, 2), (1,))
    with pytest.raises(KeyError):
        map_tree(lambda x, y: x, {"a": 1}, {"b": 1})


def test_leaves_are_named_as_a_user_would_write_them() -> None:
    names = ['["cam"]["left"]', '["cam"]["right"]', '["pair"][0]', '["pair"][1]["x"]']
    assert list(named_leaves(TREE)) == list(zip(names, [1, 2, 3, 4], strict=True))
    assert list(named_leaves(5)) == [("", 5)]
    assert leaves(TREE) == [1, 2, 3, 4]


def test_packed_tensors_are_copied_as_a_whole() -> None:
    tree = {"flags": torch.tensor([True, False, True]), "rest": (torch.tensor(1.5), torch.tensor([[7, -8]]))}
    whole, views = packed_like(tree, "cpu")
    assert whole.dtype == torch.uint8
    assert len(whole) == 16 + 16 + 16
    assert views["flags"].tolist() == [False, False, False]
    map_tree(torch.Tensor.copy_, views, tree)
    other_whole, other = packed_like(map_tree(lambda x: x.to("meta"), tree), "cpu")
    other_whole.copy_(whole)
    assert other["flags"].tolist() == [True, False, True]
    assert other["rest"][0].item() == 1.5
    assert other["rest"][1].tolist() == [[7, -8]]
