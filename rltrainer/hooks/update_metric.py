"""A number of updates, found by its name in each of them."""

from collections.abc import Callable, Collection

from torch import Tensor

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.hooks.context import TrainerContext
from rltrainer.validation.suggestions import did_you_mean

MAX_MISSES = 10
"""Updates in a row without the number before that is an error, unless the algorithm says that it may report it."""


class UpdateMetric:
    """Finds the number of this name in the update of a training step.

    Args:
        owner, field: whose argument the name is, for error texts.
        name: such as `"critic_loss"`.

    Attributes:
        num_misses: updates in a row that did not have it.
    """

    def __init__(self, owner: str, field: str, name: str) -> None:
        self._owner, self._field, self._name = owner, field, name
        self.num_misses = 0

    def find(self, ctx: TrainerContext, others: Callable[[], Collection[str]]) -> Tensor | float | None:
        """Return the number; None if this training step had no update, or one without it.

        Args:
            ctx: the run.
            others: returns further names that there are, for the error's text.

        Raises:
            ParamsError: none of the last ten updates had it, and the algorithm names no such metric.
        """
        if ctx.result is None or ctx.result.num_gradient_steps == 0:  # as PPO's `target_kl` may have it
            return None
        found = ctx.result.metrics.get(self._name)
        self.num_misses = 0 if found is not None else self.num_misses + 1
        if self.num_misses >= MAX_MISSES and not ctx.algorithm.may_report(self._name):
            known = [*others(), *dict.fromkeys((*ctx.result.metrics, *ctx.algorithm.occasional_metrics))]
            rule, hint = f"must be one of {', '.join(known)}", did_you_mean(self._name, known).strip()
            raise ParamsError(field_error_text(self._owner, self._field, rule, self._name, hint))
        return found
