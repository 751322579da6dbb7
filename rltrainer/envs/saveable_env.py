"""Envs that say where they are, and can be put there."""

from typing import Protocol, runtime_checkable

from rltrainer.types import State


@runtime_checkable
class SaveableEnv(Protocol):
    """An env, or a vector env as a whole, whose state can be saved and loaded.

    A run that is resumed loads it, instead of repeating the actions of the episode. What is asked for it is the vector
    env, as a collector got it; or else each single env of `make_vec`'s backends `sync` and `workers`: its outermost
    wrapper, which speaks for what it wraps, time limits and frame stacks too.

    A state is data: tensors, numbers, strings, booleans and None, in dicts with string keys and in lists. It holds all
    that decides what comes next, the state of random generators too, but not the last observation.
    """

    def state_dict(self) -> State:
        """Return the state; it must not change when the env goes on."""

    def load_state_dict(self, state: State) -> None:
        """Go where a state was; the env was reset before."""
