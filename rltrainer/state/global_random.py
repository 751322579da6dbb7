"""The global random numbers of torch, NumPy and Python: of envs, networks and callbacks that draw from them.

rltrainer itself draws from generators of its own; a user's `nn.Dropout`, or an env that calls `np.random`, does not.
"""

import random
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from rltrainer.errors import CheckpointError
from rltrainer.seeding import check_generator
from rltrainer.validation.field_rules import FiniteFloat, Rule

# Words in the state of a Mersenne twister, the generator of Python and NumPy.
NUM_WORDS = 624


def _is_of_torch(state: object) -> bool:
    try:
        check_generator("torch", torch.default_generator, state)
    except CheckpointError:
        return False
    return True


def _is_twister(state: object) -> bool:
    if not isinstance(state, Tensor) or state.dtype != torch.int64 or state.shape != (NUM_WORDS + 1,):
        return False
    words, position = state[:-1], int(state[-1])
    return bool((words >= 0).all() and (words < 2**32).all()) and 0 <= position <= NUM_WORDS


TorchState = Annotated[Any, Rule("the state of torch's generator", _is_of_torch)]
CudaState = Annotated[
    Any, Rule("the 16 bytes of a GPU", lambda v: isinstance(v, Tensor) and v.dtype == torch.uint8 and v.shape == (16,))
]
Twister = Annotated[Any, Rule(f"the {NUM_WORDS} words of a generator and its position", _is_twister)]
Spares = Annotated[list[FiniteFloat | None], Rule("two finite numbers or None", lambda v: len(v) == 2)]


@dataclass
class GlobalRandom:
    """States of the global generators."""

    torch: TorchState
    cuda: list[CudaState]
    """One for each GPU, if torch has used one."""
    numpy: Twister | None
    """None if NumPy's generator is of another kind."""
    python: Twister
    spare_normals: Spares
    """The normal number that NumPy's and Python's generators hold back."""

    @classmethod
    def of_now(cls) -> "GlobalRandom":
        """Return the current states."""
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
        """Set the generators to these states."""
        torch.set_rng_state(self.torch)
        for index, state in enumerate(self.cuda[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)
        spare, spare_of_python = self.spare_normals
        if self.numpy is not None:
            *words, position = self.numpy.tolist()
            np.random.set_state(("MT19937", words, position, int(spare is not None), spare or 0.0))
        random.setstate((3, tuple(self.python.tolist()), spare_of_python))
