"""Weighted means of named numbers, gathered part by part."""

import math

import pytest
import torch

from rltrainer.functional.means import MERGE_AT, Part, floats, gather, merge
from rltrainer.state.codec import from_state, to_state


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
    parts: list[Part] = []
    for i in range(10 * MERGE_AT):
        gather(parts, Part({"loss": torch.tensor(float(i)), "other": float(i)}), merge)
        assert len(parts) < MERGE_AT
    expected = (10 * MERGE_AT - 1) / 2
    assert floats(merge(parts).values) == pytest.approx({"loss": expected, "other": expected})


def test_nothing_has_no_means() -> None:
    assert merge([]).values == {}


def test_nan_is_told() -> None:
    values = [Part({"loss": torch.tensor(value), "fine": fine}) for value, fine in ((1.0, 1.0), (math.nan, 3.0))]
    means = floats(merge(values).values)
    assert math.isnan(means["loss"])
    assert means["fine"] == 2.0


def test_a_state_goes_on_to_the_last_bit() -> None:
    generator = torch.Generator().manual_seed(1)
    whole: list[Part] = []
    parts: list[Part] = []
    for i, value in enumerate(torch.randn(3 * MERGE_AT, generator=generator)):
        for each in (whole, parts):
            gather(each, Part({"loss": value}, 1 + i % 3), merge)
        if i == 99:
            parts = [from_state(Part, part, "part") for part in to_state(parts)]
    assert merge(parts) == merge(whole)


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
