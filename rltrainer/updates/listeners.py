"""Functions of a user's that an optimizer calls: who hears of a loss, and what averages gradients over processes."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from rltrainer.errors import field_error_text

AllReduce = Callable[[Tensor], Tensor]
OnLoss = Callable[[str, Tensor, Callable[[Tensor], None]], Tensor | None]


def hear(
    on_loss: OnLoss, name: str, step: Callable[..., None], loss: Tensor, parts: Sequence[Tensor] = ()
) -> Tensor | None:
    """Tell a listener of a loss; return the one whose step is to be taken, None if the listener has taken it."""
    is_taken, told = False, loss

    def step_once(loss: Tensor) -> None:
        nonlocal is_taken
        is_taken = True
        step(loss, *([parts] if parts and loss is told else []))

    replacement: Any = on_loss(name, loss, step_once)
    if replacement is not None and not isinstance(replacement, Tensor):
        raise TypeError(field_error_text("UpdateCallbacks", "on_loss", "must return a loss or None", replacement))
    if is_taken:
        return None
    return loss if replacement is None else replacement


def average(all_reduce: AllReduce, gradient: Tensor) -> Tensor:
    """Return the average of a flat gradient over processes."""
    result: Any = all_reduce(gradient)
    if not isinstance(result, Tensor) or result.shape != gradient.shape:
        rule = f"must return a gradient of shape {tuple(gradient.shape)}"
        raise TypeError(field_error_text("UpdatePlan", "all_reduce", rule, result))
    return result
