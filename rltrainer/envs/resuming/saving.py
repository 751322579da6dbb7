"""The savers and loaders of vector envs, whether each env has a state of its own or the vector env has one."""

from typing import Any

import gymnasium as gym

from rltrainer.envs.adapter.autoreset import layers
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.envs.backends.native import NativeVectorEnv
from rltrainer.envs.resuming.native_states import NATIVE_STATES
from rltrainer.envs.saveable_env import SaveableEnv
from rltrainer.errors import CheckpointError
from rltrainer.types import Load, State


class SingleStates:
    """The states of single envs that are saveable, together."""

    def __init__(self, envs: MaskedVectorEnv) -> None:
        self._envs = envs

    def state_dict(self) -> State:
        """Return the states of all envs."""
        return {"envs": list(self._envs.call("state_dict"))}

    def load_state_dict(self, state: State) -> None:
        """Put all envs where they were."""
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check that there is a state for each env, and return what loads them."""
        found, num_envs = state.get("envs"), self._envs.num_envs
        if not isinstance(found, list) or len(found) != num_envs or not all(isinstance(each, dict) for each in found):
            raise CheckpointError(f"adapter.envs.envs: expected a list of the states of {num_envs} envs")
        return lambda: self._envs.load_states(found)


def find_saveable(envs: gym.vector.VectorEnv[Any, Any, Any]) -> SaveableEnv | None:
    """Return what saves and loads all envs of a vector env, wrappers included; None if something in it is not saved."""
    for layer in layers(envs):
        if isinstance(layer, SaveableEnv):
            return layer
        if isinstance(layer, MaskedVectorEnv):
            return SingleStates(layer) if layer.are_saveable else None
        if (native := NATIVE_STATES.get(f"{type(layer).__module__}.{type(layer).__qualname__}")) is not None:
            found: SaveableEnv = native(layer)
            return found
        if not (isinstance(layer, NativeVectorEnv) or getattr(layer, "is_stateless", False)):
            return None  # nobody knows what a wrapper remembers
    return None


def load_of(saveable: SaveableEnv, state: State) -> Load:
    """Check the state of envs, as far as they let it be checked before they change, and return what loads it."""
    prepare = getattr(saveable, "prepare_load", None)
    if callable(prepare):
        load: Load = prepare(state)
        return load

    def load_unchecked() -> None:
        try:
            saveable.load_state_dict(state)
        except Exception as error:
            name = f"{type(saveable).__name__}.load_state_dict"
            raise CheckpointError(f"adapter.envs: {name} raised {type(error).__name__}: {error}") from error

    return load_unchecked
