"""Gradients that are averaged over several gradient steps before an optimizer takes a step with them."""

from collections.abc import Iterable, Iterator
from typing import Any


class Accumulation:
    """Groups of gradient steps: the last of each applies what the group has gathered.

    An algorithm's optimizers and target networks share one.

    Args:
        size: gradient steps of a group.

    Attributes:
        num_steps: steps of the group under way that were handed out.
        applies: whether the step that is being taken is the last of its group.
    """

    def __init__(self, size: int) -> None:
        self.size, self.num_steps, self.applies = size, 0, True

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the group under way, which is another algorithm's."""
        return {"size": self.size, "num_steps": 0, "applies": True}

    @property
    def begins(self) -> bool:
        """Return whether the next step is the first of a group."""
        return self.num_steps == 0

    def grouped(self, steps: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of each step, followed by whether it is the last of its group."""
        for args in steps:
            self.num_steps = (self.num_steps + 1) % self.size
            yield *args, self.num_steps == 0
