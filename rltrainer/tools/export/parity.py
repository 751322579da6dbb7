"""A graph beside the policy that it was made of: what is written has been tried."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rltrainer.errors import ExportError
from rltrainer.nets.policy import Policy
from rltrainer.spaces import Array
from rltrainer.tools.export.examples import draw_observations, draw_state
from rltrainer.tree import Tree

Run = Callable[[Tree, tuple[Array, ...]], list[Array]]
"""From observations [N, ...] and the memory [N, S], if there is one, to the actions and the next memory."""

TOLERANCE = 1e-4
MAX_DIFFERENT = 4
"""Of the observations tried: where two choices are worth the same but for rounding, either is right."""


def compare(owner: str, policy: Policy, run: Run) -> None:
    """Compare a graph with `policy.predict` on 1 observation and on 63.

    Raises:
        ExportError: it acts otherwise; the text names `owner` and an observation's place.
    """
    different = 0
    for num in (1, 63):
        obs, state = draw_observations(policy, num, seed=num), draw_state(policy, num, seed=num)
        expected = policy.predict(obs, *state)
        expected, found = list(expected) if state else [expected], run(obs, state)
        for name, here, there in zip(("action", "state"), expected, found, strict=False):
            if (here.shape, here.dtype) != (there.shape, there.dtype):
                texts = [f"{array.dtype} {array.shape}" for array in (here, there)]
                raise ExportError(f"{owner}: {name}: expected {texts[0]}, the graph returns {texts[1]}")
        different += int(np.any([_differs(*pair) for pair in zip(expected, found, strict=True)], axis=0).sum())
    if different > MAX_DIFFERENT:
        raise ExportError(
            f"{owner}: {type(policy).__name__} as a graph acts otherwise than policy.predict for {different} of 64 "
            "observations. Something in its modules is no function of their inputs, such as a counter or random "
            "numbers."
        )


def _differs(here: Array, there: Array) -> Any:
    """Return which rows differ [N]."""
    is_close = np.isclose(here, there, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    return ~is_close.reshape(len(is_close), -1).all(1)
