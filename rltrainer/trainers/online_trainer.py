"""The parent of the online trainers: a training step collects first, and may find that training is done."""

import dataclasses
import logging
from abc import abstractmethod
from typing import Any, TypeVar

from rltrainer.algorithms import Algorithm
from rltrainer.collect import CollectStats, DataSource
from rltrainer.nets.normalizer import running_moments
from rltrainer.trainers.run_state import EpochRecord
from rltrainer.trainers.shards import merged_stats
from rltrainer.trainers.trainer import Trainer
from rltrainer.trainers.trainer_params import AnyCollector, TrainerParams
from rltrainer.types import Rollout
from rltrainer.validation.field_rules import Flag, NonNegativeInt, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OnlineTrainerParams(TrainerParams):
    """Settings of trainers with a training collector; a `ParamsError` if fields contradict each other."""

    training_collector: AnyCollector = dataclasses.field(compare=False)
    """Collects the training data."""
    collection_step_num_env_steps: PositiveInt | None = 2048
    """Env steps of a collection step, rounded up to a multiple of the number of envs."""
    collection_step_num_episodes: PositiveInt | None = None
    """Whole episodes of a collection step; exactly one of the two is given."""
    test_in_training: Flag = False
    """If the data of a collection step satisfies `stop_fn`, test at once, and stop if the test step does too."""
    initial_statistics_num_env_steps: NonNegativeInt = 1000
    """Env steps with random actions before the first collection. Normalisers that have seen nothing take their first
    statistics from them. Rounded down to a multiple of the number of envs, counted apart from the run's. 0 lets the
    first update go without."""

    def __post_init__(self) -> None:
        super().__post_init__()
        num_steps, num_episodes = self.collection_step_num_env_steps, self.collection_step_num_episodes
        if (num_steps is None) == (num_episodes is None):
            rule = "exactly one of collection_step_num_env_steps and collection_step_num_episodes must be given"
            hint = "give one of them a number" if num_episodes is None else "set the other one to None"
            hint = f"collection_step_num_env_steps is {num_steps!r}; {hint}."
            self.raise_invalid("collection_step_num_episodes", rule, hint)
        if self.test_collector is not None and self.training_collector.shares_an_env(self.test_collector):
            hint = "A test step would reset the training envs."
            self.raise_invalid("test_collector", "must have envs of its own", hint)
        if self.test_in_training and self.stop_fn is None:
            self.raise_invalid("test_in_training", "needs a stop_fn", "It is shown the score.")

    def collectors(self) -> dict[str, DataSource]:
        """Return the training collector too."""
        return {"training_collector": self.training_collector, **super().collectors()}

    def check_fits(self, algorithm: Algorithm) -> None:
        """Check the columns of the buffer too; a `ParamsError` if one is missing."""
        super().check_fits(algorithm)
        source = self.training_collector
        if source.buffer is not None:
            owner = f"{type(self).__name__}.training_collector"
            algorithm.require_columns(owner, source.buffer.extra, source.has_stale_data)

    @property
    def num_envs(self) -> int:
        """The training envs of the whole run."""
        return getattr(self.training_collector, "num_all_envs", self.training_collector.num_envs)

    @property
    def planned_num_steps(self) -> int:
        """Env steps of the run: max_epochs * ceil(epoch_num_steps / c) * c for collection steps of c env steps."""
        if self.collection_step_num_env_steps is None:
            return super().planned_num_steps
        collection = -(-self.collection_step_num_env_steps // self.num_envs) * self.num_envs
        return self.max_epochs * -(-self.epoch_num_steps // collection) * collection

    @property
    def varies_in_length(self) -> bool:
        """Return whether collections differ in size, as by episodes, or where envs do not wait for each other."""
        return self.collection_step_num_episodes is not None or self.training_collector.varies_in_length


TAlgorithm = TypeVar("TAlgorithm", bound=Algorithm)
TParams = TypeVar("TParams", bound=OnlineTrainerParams)


class OnlineTrainer(Trainer[TAlgorithm, TParams]):
    """Collects in each training step and leaves the update to its subclasses."""

    step_unit = "env_step"
    _collected: CollectStats
    """Statistics of the last collection step."""

    def _start_collecting(self, reset_collectors: bool, reset_buffers: bool) -> None:
        collector = self.params.training_collector
        if reset_collectors or collector.needs_reset:
            self._take_initial_statistics()
        if reset_collectors:
            collector.reset(reset_buffer=reset_buffers)

    def _take_initial_statistics(self) -> None:
        """Show random actions' observations to normalisers that have no statistics yet."""
        collector = self.params.training_collector
        moments = [each for network in self.algorithm.all_networks() for each in running_moments(network)]
        num_rows = self.params.initial_statistics_num_env_steps // self.params.num_envs
        if num_rows == 0 or not moments or any(m.count > 0 for m in moments):
            return
        self.algorithm.observe(collector.collect_random(num_rows))
        counted = f"{num_rows * self.params.num_envs:,} env steps of random actions, which are not counted"
        text = f"normalisers begin with statistics of {counted}"
        logging.getLogger("rltrainer").info(text)
        self._log.say(text)

    def _collect(self, record: EpochRecord) -> Rollout | None:
        params, state, collector = self.params, self.state, self.params.training_collector
        # Rounded up to rows of all envs, of which these may be a part.
        num_steps, num_episodes = params.collection_step_num_env_steps, params.collection_step_num_episodes
        num_steps = None if num_steps is None else -(-num_steps * collector.num_envs // params.num_envs)
        num_episodes = None if num_episodes is None else self._own(num_episodes)
        done = {"epoch": state.counters.epoch - 1, "training_step": state.training_step - 1}
        collector.sync({**vars(state.counters), **done})
        own = collector.collect(num_steps, num_episodes, **self._collection_options())
        self._collected = stats = merged_stats(own, self.ranks)
        self._hooks.note_collection(stats)
        state.add_collection(stats, record)
        self._log.collected(state, stats)
        if params.test_in_training and params.test_collector is not None and stats.num_collected_episodes:
            is_good = self._wants_to_stop(self._score(stats))
            if is_good and self._wants_to_stop(self._test(params.test_collector)):
                state.stop_reason = "stop_fn"
        return self._batch()

    def _collection_options(self) -> dict[str, Any]:
        """Return further arguments of a collection: are actions random, and the transform of newly collected data."""
        return {}

    @abstractmethod
    def _batch(self) -> Rollout | None:
        """Return the last collection as hooks see it; None if no hook looks."""

    def _settings(self) -> dict[str, float]:
        """Return frames, if env steps take several, and the settings of exploration and collector."""
        collector = self.params.training_collector
        settings = getattr(collector.exploration or collector.policy.exploration, "settings", None)
        values: dict[str, float] = {} if settings is None else dict(settings(self._progress()))
        if collector.frame_skip != 1:
            values["frames"] = self.env_step * collector.frame_skip
        values |= collector.settings()
        return values | ({"num_env_restarts": collector.num_env_restarts} if collector.num_env_restarts else {})
