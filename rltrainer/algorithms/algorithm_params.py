"""The hyperparameters that all algorithms have."""

import dataclasses
from typing import Annotated

from rltrainer.state.params import Params
from rltrainer.updates.optimizer import OptimizerFactory
from rltrainer.validation.field_rules import PositiveFloat, Rule, Scheduled, UnitFloat

_HOW = "Pass a class such as torch.optim.RMSprop, or a function from parameters to an optimizer."


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AlgorithmParams(Params):
    """Hyperparameters that all algorithms have."""

    gamma: UnitFloat = 0.99
    """Discount factor per env step."""
    lr: PositiveFloat | Scheduled = 3e-4
    """Learning rate, or a schedule of it over progress."""
    max_grad_norm: PositiveFloat | None = None
    """Gradients are scaled down to this global L2 norm, per optimizer; None does not clip."""
    adam_eps: PositiveFloat = 1e-8
    """Epsilon of Adam."""
    optimizer: (
        Annotated[OptimizerFactory, Rule("a callable (parameters) -> torch.optim.Optimizer", callable, _HOW)] | None
    ) = dataclasses.field(default=None, compare=False)
    """Makes the optimizer; None is Adam. `lr` overwrites its learning rate."""

    def _must_be_left_out(self, *fields: str, why: str) -> None:
        """Refuse values of fields that the parent's params have and that would do nothing here."""
        for field in fields:
            if getattr(self, field) != getattr(type(self), field):
                self.raise_invalid(field, "must be left out", why)
