"""What a run tells of itself: rows for its logger; a bar and lines for who watches. Changes nothing of the run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rltrainer.algorithms import Algorithm, OnPolicyAlgorithm
from rltrainer.collect import CollectStats
from rltrainer.interval import Every
from rltrainer.loggers.progress import Progress
from rltrainer.trainers.progress_bar import ProgressBar
from rltrainer.trainers.run_stats import Best, EpochStats
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.types import UpdateResult

NUM_EPISODES = 100
"""Returns and lengths of training are means over so many episodes, the last ones."""


@dataclass
class LastEpisodes:
    """Returns and lengths of the last episodes of training; part of a checkpoint."""

    returns: list[float] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def then(self, stats: CollectStats) -> "LastEpisodes":
        """Return these and those of a collection, but no more than `NUM_EPISODES`."""
        returns, lengths = [*self.returns, *stats.returns.tolist()], [*self.lengths, *stats.lengths.tolist()]
        return LastEpisodes(returns[-NUM_EPISODES:], lengths[-NUM_EPISODES:])

    def problem(self) -> str | None:
        """Return what is wrong with episodes that were read from a file, or None."""
        num_returns, num_lengths = len(self.returns), len(self.lengths)
        if num_returns == num_lengths <= NUM_EPISODES:
            return None
        return f"expected as many returns as lengths, found {num_returns} and {num_lengths}"


class RunLog:
    """Hands the numbers of a run to the logger and the progress bar, if there are any.

    Args:
        params: the trainer's.
        algorithm: what is trained.
        unit: what the x axis counts.
    """

    def __init__(self, params: TrainerParams, algorithm: Algorithm, unit: Literal["env_step", "gradient_step"]) -> None:
        self._algorithm, self._unit, self._logger = algorithm, unit, params.logger
        if self._logger is not None:
            self._logger.check_step_unit(unit)
        self._bar = ProgressBar(0, shown=False, verbose=params.verbose, unit="")
        self.restart()

    def restart(self) -> None:
        """Forget the episodes of an earlier run."""
        self.last_episodes = LastEpisodes()

    def begin(self, params: TrainerParams, is_new: bool) -> None:
        """Begin the log of a run, or go on with that of a resumed one."""
        self._logger = params.logger
        if self._logger is None:
            return
        is_on_policy = isinstance(self._algorithm, OnPolicyAlgorithm)
        interval = Every(1, "update_step") if is_on_policy else Every(1000, "gradient_step")
        self._logger.begin_run(interval, is_new=is_new)
        told = {"trainer": params, "algorithm": self._algorithm.params}
        self._logger.log_params({name: json.loads(each.to_json()) for name, each in told.items()})

    def open_bar(self, params: TrainerParams, line: str) -> None:
        """Show the bar, and a first line above it."""
        self._bar = ProgressBar(params.planned_num_steps, params.show_progress, params.verbose, self._unit)
        self._bar.say(line)

    def say(self, line: str) -> None:
        """Print a line, if lines are wanted."""
        self._bar.say(line)

    def close_bar(self, params: TrainerParams) -> None:
        """Leave the bar as it is; epochs that follow by hand have their lines only."""
        self._bar.close()
        self._bar = ProgressBar(0, shown=False, verbose=params.verbose, unit="")
        if self._logger is not None:
            self._logger.flush()

    def advance_to(self, step: int) -> None:
        """Move the bar."""
        self._bar.advance_to(step)

    def collected(self, stats: CollectStats, step: int, settings: Callable[[], Mapping[str, float]]) -> None:
        """Take in a collection step.

        Args:
            stats: of this collection.
            step: the x axis.
            settings: what the row tells besides; asked only when one is due.
        """
        if stats.num_collected_episodes:
            self.last_episodes = self.last_episodes.then(stats)
        if self._logger is not None:
            if stats.collect_time > 0:
                speed = {"env_steps_per_second": stats.collect_speed}
                self._logger.gather("training", speed, stats.collect_time)
            if self.last_episodes.returns and self._logger.due_training(step):
                self._logger.log_training({**self._recent(), **settings()}, step)
        if self._bar.wants_values():
            self._bar.show(self._recent())

    def updated(self, result: UpdateResult, step: int, update_step: int, gradient_step: int) -> None:
        """Take in an update step."""
        if self._logger is not None and result.num_gradient_steps:
            self._logger.gather("update", result.metrics, result.num_gradient_steps, result.counts)
            if self._logger.due_update(update_step, gradient_step):
                self._logger.log_update(self._algorithm.learning_rates(), step, update_step, gradient_step)
        if self._bar.wants_values():
            self._bar.show(_losses(result.floats()))

    def tested(self, stats: CollectStats, score: float, best: Best, step: int) -> None:
        """Take in a test step."""
        self._bar.show({"score": score, "best": best.score})
        if self._logger is not None:
            values = {"score": score, "return": float(stats.returns.mean()), "length": float(stats.lengths.mean())}
            self._logger.log_test(values, step)

    def ended_epoch(
        self, stats: EpochStats, score: float | None, best: Best, progress: Progress, is_last: bool
    ) -> None:
        """Take in the end of an epoch."""
        recent = self._recent()
        self._bar.show({**recent, **_losses(stats.update.floats())})
        self._bar.end_epoch(stats, score, best, recent.get("return"))
        if self._logger is None:
            return
        if is_last:
            counts = [int(progress[name] or 0) for name in (self._unit, "update_step", "gradient_step")]
            self._logger.log_rest(self._algorithm.learning_rates(), *counts)
        self._logger.log_epoch(progress)

    def _recent(self) -> dict[str, float]:
        """Return means over the last episodes; nothing before the first has ended."""
        last = self.last_episodes
        if not last.returns:
            return {}
        return {name: sum(x) / len(x) for name, x in (("return", last.returns), ("length", last.lengths))}


def _losses(metrics: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Return what there is room for on a bar."""
    return {name: value for name, value in metrics.items() if "loss" in name} or metrics
