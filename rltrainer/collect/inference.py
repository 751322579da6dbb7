"""The rule of batched inference: for which envs a policy decides next, and when."""

import dataclasses
from collections import deque
from collections.abc import Iterable

from rltrainer.state.params import Params
from rltrainer.validation.field_rules import NonNegativeFloat, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class InferenceParams(Params):
    """Sizes of batches and waiting times of batched inference.

    A batch starts as soon as `min_batch_size` envs wait for an action, or, if `max_wait_time` is set and later, when
    the first of them has waited so long; and at once when it cannot become larger.

    Raises:
        ParamsError: a value breaks its field's rule, or the maximum is below the minimum.
    """

    min_batch_size: PositiveInt = 1
    """Envs that a batch waits for; fewer where fewer are left to act."""
    max_batch_size: PositiveInt | None = None
    """Envs of a batch at most; None takes all that wait."""
    max_wait_time: NonNegativeFloat | None = None
    """Seconds after which a batch of at least the minimum waits no longer for the maximum, counted from when the first
    of its envs began to wait; None does not wait for more than the minimum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_batch_size is not None and self.max_batch_size < self.min_batch_size:
            self.raise_invalid("max_batch_size", f"must be at least min_batch_size={self.min_batch_size}")


class WaitingEnvs:
    """The envs that wait for an action, those that wait longest first. Times are the caller's, in seconds."""

    def __init__(self, params: InferenceParams) -> None:
        self._params = params
        self._waiting: deque[tuple[int, float]] = deque()

    def add(self, envs: Iterable[int], now: float) -> None:
        """Let envs wait from now on."""
        self._waiting.extend((env, now) for env in envs)

    def clear(self) -> None:
        """Let nobody wait."""
        self._waiting.clear()

    def take(self, num_live: int, now: float) -> list[int]:
        """Return the envs of a batch that starts now; none if it is too early.

        Args:
            num_live: envs that a batch could be of, those that are still busy included.
            now: the time.
        """
        size, most = len(self._waiting), self._most(num_live)
        if size < most and self.seconds_left(num_live, now) != 0.0:
            return []
        return [self._waiting.popleft()[0] for _ in range(min(size, most))]

    def seconds_left(self, num_live: int, now: float) -> float | None:
        """Return when a batch will start if nobody else comes; None if it will not."""
        size, most, params = len(self._waiting), self._most(num_live), self._params
        if min(size, most) == 0 or size < min(params.min_batch_size, most):
            return None
        if size >= most or params.max_wait_time is None:
            return 0.0
        return max(self._waiting[0][1] + params.max_wait_time - now, 0.0)

    def _most(self, num_live: int) -> int:
        """Return the size at which waiting for more is of no use."""
        return num_live if self._params.max_batch_size is None else min(self._params.max_batch_size, num_live)
