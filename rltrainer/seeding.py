"""The seed tree: one integer from which every stream of random numbers in a run is derived by name."""

import hashlib
import random
from typing import Annotated

import numpy as np
import torch

from rltrainer.rules import Rule, checked, is_int

Integer = Annotated[int, Rule("an integer", is_int)]
MAX_SEED = 2**64 - 1
"""Of torch's generators."""


def seed(n: int) -> None:
    """Seed torch, numpy and python: what networks are initialised from, and every generator nobody seeded.

    Raises:
        ParamsError: `n` is no integer.
    """
    n = checked("seed", "n", n, Integer)
    random.seed(n)
    np.random.seed(n % 2**32)
    torch.manual_seed(_in_range(n))


def derive_seed(seed: int, *path: str | int) -> int:
    """Return the seed of the stream named by `path`, in [0, 2**31).

    A hash, not an offset: neighbouring seeds and neighbouring envs share no stream, and a stream's seed does not
    depend on which others exist. 31 bits, because envs hand their seed to old C code.
    """
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 2**31


def draw_seed() -> int:
    """Return a seed from torch's global generator, so that `seed(n)` reaches objects that were given none."""
    return int(torch.randint(2**31, ()).item())


def make_generator(seed: int | None, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator on `device`, seeded with `seed`, or with `draw_seed()` if that is None."""
    return torch.Generator(device).manual_seed(draw_seed() if seed is None else _in_range(seed))


def reseed(generator: torch.Generator, owner: str, seed: int) -> None:
    """Seed a generator of the owner's.

    Raises:
        ParamsError: the seed is no integer.
    """
    generator.manual_seed(_in_range(checked(f"{owner}.seed", "seed", seed, Integer)))


def _in_range(seed: int) -> int:
    """Return a seed that torch takes; those that it takes stay as they are."""
    return seed if -(2**63) <= seed <= MAX_SEED else seed % 2**64
