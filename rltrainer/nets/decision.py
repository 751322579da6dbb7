"""The decision of a policy for the envs: actions, its memory, and further columns for a buffer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

ExtraSpecs = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape of one env's part, and dtype, by the name of a column."""

NO_COLUMNS: ExtraSpecs = {}

LOG_PROB: ExtraSpecs = {"log_prob": ((), torch.float32)}
"""The column of policies that sample: the log-probability (density) of the action, in the scale of the networks."""

VERSION: ExtraSpecs = {"version": ((), torch.int64)}
"""The column of the weights that an action was chosen with: `Policy.version`."""


@dataclass(slots=True)
class Decision:
    """A policy's decision for N observations.

    Args:
        action: [N, ...] in the env's scale, as sampled: a rollout keeps it so, the env gets it within its Box.
        state: [N, S] float32, what to remember until the next step; None remembers what it did, or nothing.
        extra: the columns of `Policy.extra_specs` [N, ...]. A function in a column's place is called only if a buffer
            declares the column.
    """

    action: Tensor
    state: Tensor | None = None
    extra: Mapping[str, Tensor | Callable[[], Tensor]] = field(default_factory=dict)
