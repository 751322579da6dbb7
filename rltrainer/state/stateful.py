"""A part of a run that has one dataclass as its state."""

from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from rltrainer.state.codec import from_state, to_state
from rltrainer.types import Load, State

S = TypeVar("S")


class Stateful(Generic[S]):
    """A part of a run that a checkpoint holds as one dataclass of type `S`.

    A subclass names the dataclass and implements three methods: `get_state`, `check_state` and `set_state`. All of a
    run is decoded and checked before any part takes over its state, so a checkpoint that is refused changes nothing.
    A part that owns other parts holds their dataclasses in its own, and calls their methods in its own.
    """

    state_class: ClassVar[type[Any]]
    state_name: ClassVar[str]
    """The owner's name in error texts, as "collector" in "collector.num_rows: expected a count"."""

    def get_state(self) -> S:
        """Return the state; its arrays and tensors do not change later."""
        raise NotImplementedError

    def check_state(self, state: S) -> None:
        """Raise a `CheckpointError` if the state is of another part, as one with other envs; change nothing."""

    def set_state(self, state: S) -> None:
        """Take over a checked state, which cannot fail; copy arrays and tensors, which may be mapped from a file."""
        raise NotImplementedError

    def state_dict(self) -> State:
        """Return the state for a checkpoint."""
        return dict(to_state(self.get_state()))

    def prepare_load(self, state: State) -> Load:
        """Check a whole state, and return the function that loads it."""
        found = from_state(self.state_class, state, self.state_name)
        self.check_state(found)
        return partial(self.set_state, found)

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; a `CheckpointError` changes nothing."""
        self.prepare_load(state)()
