"""Times of the parts of training."""

import dataclasses
import time

from rltrainer.collect import CollectStats
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.interval import Every, as_every
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeFloat


@dataclasses.dataclass
class Seconds:
    """Seconds since the last log; what is in none of the parts is for callbacks, logs and other hooks."""

    collect: NonNegativeFloat = 0.0
    update: NonNegativeFloat = 0.0
    test: NonNegativeFloat = 0.0
    total: NonNegativeFloat = 0.0


class LogTiming(TrainerHook):
    """Logs how many seconds of each interval went where: `time_collect`, `time_update`, `time_test`, `time_other`.

    An update counts from `pre_optim_steps` to `post_steps`, the hooks in between with it. On a GPU its work is still
    under way then; the time until it is done counts where something waits for it.

    Args:
        every: the interval, an int in training steps.

    Raises:
        ParamsError: an argument breaks its rule.
    """

    def __init__(self, every: int | Every = 100) -> None:
        self.every: Every = as_every("LogTiming", every, "training_step")
        self._last_time: float | None = None
        self._begin_time: float | None = None
        self.reset()

    def setup(self, ctx: TrainerContext) -> None:
        """Begin to measure."""
        self._last_time, self._begin_time = time.perf_counter(), None

    def pre_optim_steps(self, ctx: TrainerContext) -> None:
        """Note when the update begins."""
        self._begin_time = time.perf_counter()

    def post_steps(self, ctx: TrainerContext) -> None:
        """Count the update and the collection before it, and log what is due."""
        if self._begin_time is not None:
            self._timing.update += time.perf_counter() - self._begin_time
            self._begin_time = None
        if ctx.collect_stats is not None:
            self._timing.collect += ctx.collect_stats.collect_time
        if ctx.crossed(self.every):
            ctx.log(self._take())

    def test_log(self, ctx: TrainerContext, stats: CollectStats) -> None:
        """Count a test step."""
        self._timing.test += stats.collect_time

    def reset(self) -> None:
        """Forget the times of an earlier run."""
        self._timing = Seconds()

    def state_dict(self) -> State:
        """Return the seconds since the last log."""
        return dict(to_state(self._up_to_now()))

    def prepare_load(self, state: State) -> Load:
        """Check them, and return what goes on with them."""
        found = from_state(Seconds, state, type(self).__name__)

        def load() -> None:
            self._timing = found

        return load

    def _take(self) -> dict[str, float]:
        """Return the seconds since the last time, by their names in a log."""
        found = self._up_to_now()
        self._timing, self._last_time = Seconds(), time.perf_counter()
        times = {name: getattr(found, name) for name in ("collect", "update", "test")}
        times["other"] = max(found.total - sum(times.values()), 0.0)
        return {f"time_{name}": seconds for name, seconds in times.items()}

    def _up_to_now(self) -> Seconds:
        passed = 0.0 if self._last_time is None else time.perf_counter() - self._last_time
        return dataclasses.replace(self._timing, total=self._timing.total + passed)
