"""The seed tree and the global seed."""

import random

import numpy as np
import pytest
import torch

from rltrainer.seeding import derive_seed, draw_seed, make_generator, seed


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.mark.parametrize("n", [0, 1, 2**32, 2**40 + 3])
def test_seed_reaches_python_numpy_and_torch(n: int) -> None:
    seed(n)
    first = draws()
    assert all(a != b for a, b in zip(draws(), first, strict=True))
    seed(n)
    assert draws() == first


def test_another_seed_gives_other_numbers() -> None:
    seed(1)
    first = draws()
    seed(2)
    assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_derived_seeds_are_the_same_in_every_release() -> None:
    # Fixed numbers: a run that is resumed with a later release must find the same streams.
    assert [derive_seed(1, "action"), derive_seed(1, "env", 0, 3)] == [1309846486, 499772724]


def test_streams_differ_by_seed_and_by_every_part_of_their_path() -> None:
    paths = [
        (s, name, env, episode) for s in (0, 1) for name in ("env", "test") for env in range(5) for episode in range(5)
    ]
    seeds = {derive_seed(*path) for path in paths}
    assert len(seeds) == len(paths)
    assert all(0 <= value < 2**31 for value in seeds)


def test_draw_seed_follows_the_global_generator() -> None:
    seed(3)
    first = [draw_seed(), draw_seed()]
    seed(3)
    assert [draw_seed(), draw_seed()] == first
    assert first[0] != first[1]
    assert all(0 <= value < 2**31 for value in first)


def test_an_explicit_seed_leaves_the_global_generator_alone() -> None:
    seed(3)
    expected = torch.rand(3).tolist()
    seed(3)
    generator = make_generator(7)
    assert torch.rand(3).tolist() == expected
    assert torch.equal(torch.rand(4, generator=generator), torch.rand(4, generator=make_generator(7)))


def test_without_a_seed_a_generator_follows_the_global_one() -> None:
    seed(3)
    first = torch.rand(4, generator=make_generator(None))
    seed(3)
    assert torch.equal(torch.rand(4, generator=make_generator(None)), first)
    assert not torch.equal(torch.rand(4, generator=make_generator(None)), first)
