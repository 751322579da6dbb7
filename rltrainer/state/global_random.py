"""The global random numbers of torch, NumPy and Python: of envs, networks and callbacks that draw from them.

rltrainer itself draws from generators of its own; a user's `nn.Dropout`, or an env that calls `np.random`, does not.
"""

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltrainer.errors import CheckpointError
from rltrainer.seeding import check_generator

NUM_WORDS = 624
"""Of a Mersenne twister's state, which Python and NumPy have."""


@dataclass
class GlobalRandom:
    """States of the global generators.

    Args:
        torch: the bytes of torch's on the CPU.
        cuda: the same of each GPU, if torch has used one.
        numpy, python: the words of the generator and its place in them; None if NumPy's is of another kind.
        spare_normals: the normal number that each of these two holds back, if it does.
    """

    torch: Any
    cuda: list[Any]
    numpy: Any
    python: Any
    spare_normals: list[float | None]

    @classmethod
    def of_now(cls) -> "GlobalRandom":
        """Return the states as they are."""
        numpy: dict[str, Any] = np.random.get_state(legacy=False)
        (_, python, spare), twister = random.getstate(), numpy["state"] if numpy["bit_generator"] == "MT19937" else None
        return cls(
            torch=torch.get_rng_state(),
            cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]  # torch's
            numpy=None if twister is None else torch.tensor([*twister["key"].tolist(), twister["pos"]]),
            python=torch.tensor(python),
            spare_normals=[float(numpy["gauss"]) if numpy["has_gauss"] else None, spare],
        )

    def restore(self) -> None:
        """Let the generators go on from here."""
        torch.set_rng_state(self.torch)
        for index, state in enumerate(self.cuda[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)
        spare, spare_of_python = self.spare_normals
        if self.numpy is not None:
            *words, place = self.numpy.tolist()
            np.random.set_state(("MT19937", words, place, int(spare is not None), spare or 0.0))
        random.setstate((3, tuple(self.python.tolist()), spare_of_python))

    def problem(self) -> str | None:
        """Return what is wrong with states that were read from a file, or None."""
        try:
            check_generator("torch", torch.default_generator, self.torch)
        except CheckpointError as error:
            return str(error)
        if not all(isinstance(s, Tensor) and s.dtype == torch.uint8 and s.shape == (16,) for s in self.cuda):
            return "cuda: expected 16 bytes for each GPU"
        for name, state in {"python": self.python, **({} if self.numpy is None else {"numpy": self.numpy})}.items():
            if not _is_twister(state):
                return f"{name}: expected the {NUM_WORDS} words of a generator and its place"
        if len(self.spare_normals) != 2 or not all(x is None or math.isfinite(x) for x in self.spare_normals):
            return "spare_normals: expected two finite numbers or None"
        return None


def _is_twister(state: object) -> bool:
    if not isinstance(state, Tensor) or state.dtype != torch.int64 or state.shape != (NUM_WORDS + 1,):
        return False
    words, place = state[:-1], int(state[-1])
    return bool((words >= 0).all() and (words < 2**32).all()) and 0 <= place <= NUM_WORDS
