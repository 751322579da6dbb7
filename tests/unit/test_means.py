"""Weighted means of named numbers, gathered part by part."""

import math

import pytest
import torch

from rltrainer.means import MERGE_AT, Means, Part, floats, merge


def test_a_part_weighs_as_much_as_it_says() -> None:
    merged = merge([Part({"loss": 1.0}, 1), Part({"loss": 4.0}, 3)])
    # (1 * 1 + 3 * 4) / 4
    assert merged == Part({"loss": 3.25}, 4, {})


def test_a_name_that_some_parts_lack_is_a_mean_over_the_others() -> None:
    merged = merge([Part({"critic": 1.0, "actor": 10.0}, 4, {"actor": 2}), Part({"critic": 4.0}, 4)])
    merged = merge([merged, Part({"critic": 2.5, "actor": 40.0}, 2, {"actor": 1})])
    assert merged.values == {"critic": 2.5, "actor": 20.0}
    assert (merged.weight, merged.weights) == (10, {"actor": 3})


def test_however_many_parts_the_mean_is_that_of_all_and_few_are_kept() -> None:
    means = Means()
    for i in range(10 * MERGE_AT):
        means.add(Part({"loss": torch.tensor(float(i)), "other": float(i)}))
        assert len(means.to_state()) < MERGE_AT
    expected = (10 * MERGE_AT - 1) / 2
    assert means.take() == pytest.approx({"loss": expected, "other": expected})
    assert not means


def test_numbers_taken_are_not_taken_again() -> None:
    means = Means()
    means.add(Part({"loss": 1.0}))
    assert means.take() == {"loss": 1.0}
    assert means.take() == {}
    means.add(Part({"loss": 2.0}))
    means.clear()
    assert means.take() == {}


def test_nan_is_told() -> None:
    means = Means()
    for value in (1.0, math.nan):
        means.add(Part({"loss": torch.tensor(value), "fine": value if value == 1 else 3.0}))
    taken = means.take()
    assert math.isnan(taken["loss"])
    assert taken["fine"] == 2.0


def test_a_state_goes_on_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(3 * MERGE_AT, generator=generator)
    whole, first, second = Means(), Means(), Means()
    for i, value in enumerate(values):
        whole.add(Part({"loss": value}, 1 + i % 3))
        (first if i < 100 else second).add(Part({"loss": value}, 1 + i % 3))
        if i == 99:
            second.load(first.to_state())
    assert second.take() == whole.take()


def test_a_merged_mean_holds_no_graph() -> None:
    weight = torch.ones((), requires_grad=True)
    merged = merge([Part({"loss": weight * 2}), Part({"loss": weight * 4})])
    assert merged.values["loss"].requires_grad is False  # type: ignore[union-attr]  # a tensor
    assert floats(merged.values) == {"loss": 3.0}


def test_parts_of_a_checkpoint_join_those_on_a_device() -> None:
    """A checkpoint is read on the CPU; the run goes on elsewhere."""
    saved, newer = torch.tensor(1.0), torch.zeros((), device="meta")
    for weights in ((1, 1, 1), (1, 2, 3)):
        values = zip((saved, newer, newer), weights, strict=True)
        merged = merge([Part({"loss": value}, weight) for value, weight in values])
        assert merged.values["loss"].device.type == "meta"  # type: ignore[union-attr]  # a tensor
