"""The context of a run that a hook sees."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from rltrainer.algorithms import Algorithm
from rltrainer.collect import CollectStats
from rltrainer.interval import Every, Unit
from rltrainer.types import UpdateResult


class TrainerContext(Protocol):
    """A run, as its hooks see it; the same object at every point.

    Attributes:
        algorithm: what is trained.
        params: the params of its trainer.
        losses: the losses of the gradient step under way so far, by name: "critic", "actor", ...; "loss" where there is
            one. In `post_loss` and `optimizer` the newest is the last.
        collect_stats: statistics of this training step's collection; None before it, and offline.
        result: the outcome of this training step's update; None before it, and where none was due.
    """

    algorithm: Algorithm
    params: Any
    losses: dict[str, Tensor]
    result: UpdateResult | None
    collect_stats: CollectStats | None

    @property
    def score(self) -> float | None:
        """The score of the last test step; None before one."""

    @property
    def epoch(self) -> int:
        """The epochs that have begun."""

    @property
    def env_step(self) -> int:
        """The env steps of training; 0 offline."""

    @property
    def update_step(self) -> int:
        """The update steps that are done."""

    @property
    def gradient_step(self) -> int:
        """The gradient steps that are done, those of the update step under way too."""

    @property
    def training_step(self) -> int:
        """The training steps that have begun."""

    def count(self, unit: Unit) -> float:
        """Return how many of a unit are done; of seconds what the clock says, of epochs those with all their steps."""

    def crossed(self, every: Every) -> bool:
        """Return whether an interval has become due.

        At the points inside an update that is in this gradient step, at `test_log` in this epoch, and elsewhere in this
        training step.
        """

    def request_stop(self, reason: str) -> None:
        """End the run after this training step and a last test step, with the stop reason `hook: <reason>`."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Take numbers into the means of the next row of the log, as a log point's mapping is."""
