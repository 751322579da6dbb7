"""A trainer and its params, seen from an algorithm below."""

from typing import Any, Protocol, TypeVar

TResult = TypeVar("TResult", covariant=True)


class Runnable(Protocol[TResult]):
    """A trainer."""

    def run(self) -> TResult:
        """Train."""


class TrainerMaker(Protocol[TResult]):
    """Trainer params: an argument of `run_training`."""

    def create_trainer(self, algorithm: Any) -> Runnable[TResult]:
        """Return the trainer that these params configure."""
