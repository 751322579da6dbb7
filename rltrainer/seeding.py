"""The seed tree: one integer from which every stream of random numbers in a run is derived by name."""

import hashlib
import random
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from rltrainer.errors import CheckpointError
from rltrainer.validation.field_rules import Rule, checked, is_int

GENERATOR_STATE_SIZES = (16, 5056)  # bytes, on CUDA and on the CPU

Integer = Annotated[int, Rule("an integer", is_int)]
MAX_SEED = 2**64 - 1  # of torch's generators


def seed(n: int) -> None:
    """Seed torch, numpy and python, for networks and generators without their own seed; no integer: a `ParamsError`."""
    n = checked("seed", "n", n, Integer)
    random.seed(n)
    np.random.seed(n % 2**32)
    torch.manual_seed(_in_range(n))


def derive_seed(seed: int, *path: str | int) -> int:
    """Return the seed of the stream named by `path`, in [0, 2**31)."""
    # A hash, not an offset: neighbouring seeds and envs share no stream, and a stream's seed does not depend on which
    # others exist. 31 bits, because envs hand their seed to old C code.
    text = "/".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 2**31


def draw_seed() -> int:
    """Return a seed from torch's global generator, so that `seed(n)` reaches objects that were given none."""
    return int(torch.randint(2**31, ()).item())


def stream_seed(*path: str | int | None) -> int:
    """Return the seed of a stream that follows from the state of torch's global generator, without a draw from it."""
    return derive_seed(0, torch.get_rng_state().numpy().tobytes().hex(), *map(str, path))


def make_generator(seed: int | None, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a torch generator on `device`, seeded with `seed`, or with `draw_seed()` if it is None."""
    return torch.Generator(device).manual_seed(draw_seed() if seed is None else _in_range(seed))


def reseed(generator: torch.Generator, owner: str, seed: int) -> None:
    """Seed a generator of the owner's; a seed that is no integer is a `ParamsError`."""
    generator.manual_seed(_in_range(checked(f"{owner}.seed", "seed", seed, Integer)))


def _in_range(seed: int) -> int:
    """Return a seed that torch takes; a seed in its range stays as it is."""
    return seed if -(2**63) <= seed <= MAX_SEED else seed % 2**64


def check_generator(name: str, generator: torch.Generator, state: object) -> None:
    """Raise a `CheckpointError` unless a state fits this generator, or a generator on another kind of device."""
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.ndim != 1:
        found = f"{state.dtype} {tuple(state.shape)}" if isinstance(state, Tensor) else type(state).__name__
        raise CheckpointError(f"{name}: expected the state of a generator, found {found}")
    if len(state) == len(generator.get_state()):
        try:
            torch.Generator(generator.device).set_state(state.cpu())
        except RuntimeError as error:
            raise CheckpointError(f"{name}: not the state of a generator ({error})") from error
    elif len(state) not in GENERATOR_STATE_SIZES:
        raise CheckpointError(f"{name}: not the state of a generator ({len(state)} bytes)")


def set_generator(generator: torch.Generator, state: Tensor) -> None:
    """Restore a generator from a checked state [bytes]; the state of another kind of device becomes the seed."""
    if len(state) == len(generator.get_state()):
        generator.set_state(state.cpu())
    else:
        digest = hashlib.blake2b(state.cpu().numpy().tobytes(), digest_size=8).digest()
        generator.manual_seed(int.from_bytes(digest, "big") % 2**63)
