"""The states of gymnasium's own vector envs, which their classes do not save."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rltrainer.errors import CheckpointError
from rltrainer.typed_state import from_state, to_state
from rltrainer.types import Load, State

Array = np.ndarray[Any, Any]


@dataclass
class PCG64State:
    """State of NumPy's default generator; numbers of 128 bits are text."""

    state: str
    inc: str
    has_uint32: int
    uinteger: int

    @classmethod
    def of(cls, generator: np.random.Generator) -> "PCG64State":
        """Return a generator's state."""
        state: Any = generator.bit_generator.state
        words = state["state"]
        return cls(str(words["state"]), str(words["inc"]), state["has_uint32"], state["uinteger"])

    def problem(self) -> str | None:
        """Return what is wrong with a state that was read from a file, or None."""
        try:
            np.random.PCG64().state = self.words()
        except (ValueError, OverflowError, TypeError) as error:
            return f"not the state of a PCG64 generator ({error})"
        return None

    def words(self) -> Any:
        """Return what NumPy takes."""
        words = {"state": int(self.state), "inc": int(self.inc)}
        rest = {"has_uint32": self.has_uint32, "uinteger": self.uinteger}
        return {"bit_generator": "PCG64", "state": words, **rest}


@dataclass
class CartPoleState:
    """State of a `CartPoleVectorEnv`: arrays [4, N], [N] and [N]."""

    state: Array
    steps: Array
    prev_done: Array
    random: PCG64State


class CartPoleStates:
    """Saves and loads gymnasium's vector env of CartPole, read in gymnasium 1.4."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def state_dict(self) -> State:
        """Return the state of all envs."""
        envs = self._envs
        arrays = envs.state.copy(), envs.steps.copy(), envs.prev_done.copy()
        return dict(to_state(CartPoleState(*arrays, PCG64State.of(envs.np_random))))

    def load_state_dict(self, state: State) -> None:
        """Put all envs where they were."""
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check a state, and return what loads it.

        Raises:
            CheckpointError: it is of other envs, or none.
        """
        envs, found = self._envs, from_state(CartPoleState, state, "adapter.envs")
        num_envs = envs.num_envs
        for name, shape, dtype in (
            ("state", (4, num_envs), np.float64), ("steps", (num_envs,), np.int32), ("prev_done", (num_envs,), np.bool_)
        ):  # fmt: skip
            array = getattr(found, name)
            if array.shape != shape or array.dtype != dtype or not np.isfinite(array).all():
                expected = f"finite {np.dtype(dtype)} {shape}"
                raise CheckpointError(f"adapter.envs.{name}: expected {expected}, found {array.dtype} {array.shape}")

        def load() -> None:
            envs.state, envs.steps, envs.prev_done = found.state.copy(), found.steps.copy(), found.prev_done.copy()
            envs.np_random.bit_generator.state = found.random.words()

        return load


NATIVE_STATES: dict[str, Callable[[Any], Any]] = {
    "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv": CartPoleStates
}
"""The savers and loaders of native vector envs, by the names of their classes."""
