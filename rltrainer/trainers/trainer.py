"""The trainer: the loop of a run. Collect, update, test, keep the best, log, stop.

It does not know the source of the data, nor its use in an update; its subclasses do.
"""

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from rltrainer.algorithms import Algorithm, OffPolicyAlgorithm, OnPolicyAlgorithm
from rltrainer.checkpoint import write_checkpoint
from rltrainer.checkpoint.folder import Checkpoint, KnownFiles, open_checkpoint
from rltrainer.collect import Collector, CollectStats, DataSource
from rltrainer.collect.collect_stats import NO_EPISODES
from rltrainer.errors import CheckpointError, ParamsError, at_the_end
from rltrainer.hooks import HookRunner, TrainerContext
from rltrainer.hooks.hook import is_ours
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.seeding import derive_seed
from rltrainer.trainers.run_checkpoints import RunCheckpoints, read_run, run_parts
from rltrainer.trainers.run_log import RunLog
from rltrainer.trainers.run_state import Best, EpochRecord, EpochStats, InfoStats, RunState, StepUnit
from rltrainer.trainers.shards import meeting_of, merged_stats, own_global_random, split
from rltrainer.trainers.torch_settings import RunProfiler, running_as
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.types import UpdateResult
from rltrainer.validation.field_rules import AnyPath, Flag, checked
from rltrainer.validation.suggestions import SuggestsAttributes

TAlgorithm = TypeVar("TAlgorithm", bound=Algorithm)
TParams = TypeVar("TParams", bound=TrainerParams)
T = TypeVar("T")
CALLBACKS = ("training_fn", "test_fn", "compute_score_fn", "stop_fn", "save_best_fn", "save_checkpoint_fn")
"""Fields of functions that may change weights."""


class Trainer(SuggestsAttributes, ABC, Generic[TAlgorithm, TParams]):
    """Runs epochs of training steps with a test step after each.

    Attributes:
        state: the run's counters and all else that it remembers beside the states of its parts.
        ranks: the place among the ranks of a run with several shards, each with a trainer.
        replicas: the trainers of this process's other shards.

    Raises:
        ParamsError: algorithm and params do not fit each other.
    """

    algorithm_class: ClassVar[type[Algorithm]] = Algorithm
    params_class: ClassVar[type[TrainerParams]]
    run_state_class: ClassVar[type[RunState]] = RunState
    step_unit: ClassVar[StepUnit] = "env_step"  # of logs and progress

    def __init__(self, algorithm: TAlgorithm, params: TParams) -> None:
        self._check_classes(algorithm, params)
        self.replicas: list[Self] = []
        known = KnownFiles()
        ranks: Ranks | None = vars(self).get("ranks")  # set by `trainer_of_shard`
        self.meeting = meeting_of(algorithm, params, known) if ranks is None else None
        if self.meeting is not None:
            ranks, params, self.replicas = split(type(self), algorithm, params, self.meeting)
        elif ranks is None:
            for source in params.collectors().values():
                if isinstance(source, Collector):
                    source.num_all_envs = source.num_envs  # it may be a part that an earlier trainer made
        self.algorithm, self.params, self.ranks = algorithm, params, ranks or ALONE
        self._own, self._once = self.ranks.part_of, self.ranks.once
        params.check_fits(algorithm)
        algorithm.set_weight_dtype(params.precision.weight_dtype)
        self.state = self.run_state_class.new(params.runtime)
        self._log = RunLog(params, algorithm, self.step_unit, self._settings, self.ranks.prefix)
        self._hooks = HookRunner(type(params).__name__, params.hooks, isinstance(algorithm, OnPolicyAlgorithm))
        self._hooks.context = self._new_context()
        self._checkpoints = RunCheckpoints(params, algorithm, self.step_unit, self.ranks, known)
        self._checkpoints.follow(self.state)
        if params.resume_from_log:
            self._resume_from_log()
        self._fit_collectors()

    def __getstate__(self) -> dict[str, Any]:
        """Copy or pickle a trainer with its algorithm, envs and data."""
        for field, place in {"logger": "log", "checkpoint": "folder"}.items():
            if getattr(self.params, field) is not None:
                hint = f"Two runs cannot write one {place}."
                self.params.raise_invalid(field, "must be None in a trainer that is copied", hint)
        if self.ranks.world > 1:
            self.params.runtime.raise_invalid("parallel", "must leave one shard in a trainer that is copied")
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the algorithm of the copy, and its schedules, follow the copy."""
        vars(self).update(state)
        if self.state.phase != "new":
            self._set_up()

    @property
    def epoch(self) -> int:
        """The epochs that have started."""
        return self.state.counters.epoch

    @property
    def env_step(self) -> int:
        """The env steps of training; 0 offline."""
        return self.state.counters.env_step

    @property
    def update_step(self) -> int:
        """The update steps."""
        return self.state.counters.update_step

    @property
    def gradient_step(self) -> int:
        """The gradient steps of all update steps."""
        return self.state.counters.gradient_step

    def run(self, reset_collectors: bool = True, reset_collector_buffers: bool = False) -> InfoStats:
        """Train from the start, or continue after `restore`, or where `CheckpointParams.resume` says.

        A restored run that was already finished returns its statistics at once.

        Args:
            reset_collectors: reset the envs first.
            reset_collector_buffers: then also empty their buffers.

        Raises:
            CheckpointError: a checkpoint cannot be written, or the one to continue from cannot be used.
            EnvError: an env failed.
            NonFiniteError: an observation, a reward, a loss or a gradient is not finite.
            RanksDifferError, RankLostError: networks differ between ranks; another rank is gone.
        """
        closers = [*(collector.close for collector in self.params.collectors().values()), self._log.close]
        all_shards = self._on_all_shards(Trainer.run, reset_collectors, reset_collector_buffers)
        with all_shards, at_the_end(*closers, after_errors_only=True), at_the_end(self._log.close_bar):
            with self._checkpoints, at_the_end(self._hooks.close), own_global_random(self.ranks, self.params.seed):
                if self.state.phase != "restored":
                    self._begin(reset_collectors, reset_collector_buffers)
                self.state.phase = "begun"  # another `run` starts another run
                self._log.open_bar(self.state)
                while not self.state.is_finished(self.params.max_epochs):
                    self.execute_epoch()
            self._log.ended_run(self.state)
        return self.state.info(self.algorithm.num_skipped_steps)

    def reset(self, reset_collectors: bool = True, reset_collector_buffers: bool = False) -> None:
        """Start a run: counters at 0, random streams from the seed, the initial test step; arguments as in `run`.

        It is a `CheckpointError` if the run's folder has checkpoints.
        """
        with self._on_all_shards(Trainer.reset, reset_collectors, reset_collector_buffers):
            self._checkpoints.require_empty()
            self._reset(reset_collectors, reset_collector_buffers)

    def _begin(self, reset_collectors: bool = True, reset_buffers: bool = False) -> None:
        """Continue from a checkpoint, if the params say so and its run had started, or start a run."""
        self._checkpoints.resume(self._restore)
        if self.state.phase != "restored":
            self._reset(reset_collectors, reset_buffers)

    def _reset(self, reset_collectors: bool, reset_buffers: bool) -> None:
        self.state = self.run_state_class.new(self.state.runtime)
        self._hooks.reset()
        self._checkpoints.follow(self.state)
        self._seed()
        self._set_up()
        self.algorithm.take_from_first_rank()
        self._log.begin(is_new=True)
        self._hooks.open()  # their numbers are of this log
        self._start_collecting(reset_collectors, reset_buffers)
        self.state.phase = "begun"
        if self.params.test_collector is not None and self.params.initial_test:
            self._test(self.params.test_collector)

    def execute_epoch(self) -> EpochStats:
        """Run one epoch, or the rest of a restored one: training steps, then a test step; return its statistics.

        Errors are as in `run`.
        """
        with self._on_all_shards(Trainer.execute_epoch), self._checkpoints:
            if self.state.phase == "new":
                self._begin()
            elif self.algorithm.plan.progress != self._progress:
                self._attach()  # another trainer of the algorithm has taken a turn
            params, state, hooks, started = self.params, self.state, self._hooks, time.perf_counter()
            hooks.open()
            record, counters = state.begin_epoch(), state.counters
            with self._running(), self._profiler:
                while state.stop_cause is None and not self._has_all_steps(record):
                    self._call("training_fn", counters.epoch, counters.env_step)
                    hooks.begin_training_step()
                    state.training_step += 1
                    batch = self._collect(record)
                    hooks.log("pre_steps_log", batch)
                    if state.stop_reason is None:  # else the data, and then a test step, were good enough
                        began = time.perf_counter()
                        with self._log.updating:
                            result = self._update(batch)
                        if result is not None:
                            state.add_update(result, record, time.perf_counter() - began)
                            self._log.updated(result)
                        state.stop_reason = self.algorithm.stop_reason
                        record.num_training_steps += 1
                        hooks.end_training_step(batch, result, self._has_all_steps(record))
                        self._log.end_training_step(state)
                        self._call("save_checkpoint_fn", counters.epoch, counters.env_step, counters.gradient_step)
                    self._note_progress()
                    self._profiler.step()
                    self._checkpoints.end_training_step(self._has_all_steps(record))
                self.algorithm.check_faults()
            if state.stop_reason is None and params.test_collector is not None:
                score = self._test(params.test_collector)
                if self._wants_to_stop(score):
                    state.stop_reason = "stop_fn"
            self.algorithm.require_equal_ranks()
            self._checkpoints.agree()
            state.stop_reason = state.stop_cause
            record.timing.total += time.perf_counter() - started
            stats = state.end_epoch(record)
            is_last = state.stop_reason is not None or self.epoch >= params.max_epochs
            self._log.ended_epoch(state, stats, record.score)
            self._checkpoints.end_epoch(record.score, is_last)
            if is_last:
                self._log.ended_run(state)
            return stats

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write a checkpoint: a folder from which `restore` continues this run.

        Raises:
            CheckpointError: it could not be written, or exists, and is no checkpoint that `overwrite` replaces.
            ParamsError: an argument is of another kind.
        """
        owner = f"{type(self).__name__}.save"
        path, overwrite = checked(owner, "path", path, AnyPath), checked(owner, "overwrite", overwrite, Flag)
        if self.meeting is not None and self.meeting.is_on:  # all shards save together, and a callback is one's own
            hint = "CheckpointParams saves while it trains."
            raise CheckpointError(f"{owner}: must not be called while a run of several shards trains. {hint}")
        with self._on_all_shards(Trainer.save, path, overwrite):
            parts = run_parts(self.state, self.params, self.algorithm, self.ranks, lambda part: dict(part.state_dict()))
            write_checkpoint(path, parts, overwrite, self.ranks)

    def restore(self, path: str | Path) -> None:
        """Read a checkpoint; the next `run` or `execute_epoch` continues where it was saved.

        Raises:
            CheckpointError: it is damaged, or was saved by a run with other settings; the text names the field.
            ParamsError: `path` is no path.
        """
        path = checked(f"{type(self).__name__}.restore", "path", path, AnyPath)
        with self._on_all_shards(Trainer.restore, path):
            self._restore(open_checkpoint(path, self.ranks))

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Continue the run of a checkpoint; an error changes nothing."""
        states = checkpoint.states(self.ranks.rank, ("buffer",), self.ranks.world)
        state, loads = read_run(checkpoint.path, states, self.run_state_class, self.params, self.algorithm)
        back = partial(setattr, self, "state", self.state), partial(self.algorithm.attach, self.algorithm.plan)
        context = partial(setattr, self._hooks, "context", self._hooks.context)
        with at_the_end(*back, context, self.algorithm.snapshot(), after_errors_only=True):
            self.state = state
            self._set_up()
            for load in loads:
                load()
        self._checkpoints.follow(state)
        self._note_progress()
        if state.has_begun:
            self._log.begin(is_new=False)

    def _on_all_shards(self, method: Callable[..., Any], *args: Any) -> AbstractContextManager[None]:
        """Call a method on the trainers of this process's other shards, while a block does its work for the first."""
        if self.meeting is None or self.meeting.is_on:  # such a call of another method, or a callback
            return nullcontext()
        return self.meeting.running([partial(method, each, *args) for each in self.replicas])

    @abstractmethod
    def _collect(self, record: EpochRecord) -> Any:
        """Collect or sample the data of the next update; return the batch that hooks see."""

    @abstractmethod
    def _update(self, batch: Any) -> UpdateResult | None:
        """Make the update step of a training step; None if there is nothing to learn."""

    def _set_up(self) -> None:
        # Prepare the first step of a run; may be called again.
        self._hooks.context = self._new_context()
        self._attach()
        functions = {name: getattr(self.params, name) for name in CALLBACKS}
        own = [name for name, function in functions.items() if function is not None and not is_ours(function)]
        self._callbacks = set[str]().union(*self.ranks.from_all(own))
        self._profiler = RunProfiler(self._once(lambda: self.params.runtime.profiler))

    def _new_context(self) -> TrainerContext:
        return TrainerContext(self.algorithm, self.params, self.state, self._log, self.ranks)

    def _attach(self) -> None:
        """Let the algorithm follow this trainer's plan."""
        plan = self.params.update_plan(self._progress, self.state.runtime, self.algorithm.policy, self.ranks)
        self.algorithm.attach(dataclasses.replace(plan, callbacks=self._hooks.callbacks()))
        self.algorithm.policy.cuda_graph = self.params.runtime.cuda_graph is not False  # "auto" acts as one on CUDA
        self.state.runtime = self.algorithm.plan.runtime  # "auto" is decided once: a resumed run keeps the decision

    def _fit_collectors(self) -> None:
        """Fit the collectors of training data to the algorithm."""

    def _start_collecting(self, reset_collectors: bool, reset_buffers: bool) -> None:
        """Make the collectors of training data ready; a test collector is reset by every test step."""

    def _seed(self) -> None:
        """Give every random stream its seed, if the params have one, or if several ranks must agree on one."""
        if (seed := self.ranks.seed(self.params.seed)) is not None:
            for name, part in {"algorithm": self.algorithm, **self.params.parts()}.items():
                # The streams of a collector follow from the numbers of its envs among all.
                stream = () if isinstance(part, DataSource) else self.ranks.stream
                if name != "logger":
                    part.seed(derive_seed(seed, name, *stream))

    def _settings(self) -> Mapping[str, float]:
        """Return the settings of the moment, such as an exploration rate, for rows of training."""
        return {}

    def _running(self) -> AbstractContextManager[None]:
        params, runtime = self.params, self.state.runtime
        return running_as(runtime, params.runtime, params.precision.tf32, self.ranks.is_first_here)

    def _call(self, field: str, *args: Any) -> None:
        self._calling(field, self.params.call, field, *args)

    def _calling(self, field: str, function: Callable[..., T], *args: Any) -> T:
        """Call a function that calls this callback; all ranks then have the weights that it leaves in the first one."""
        if field not in self._callbacks:
            return function(*args)
        self.algorithm.require_equal_ranks()
        result = function(*args)
        self.algorithm.take_from_first_rank()
        return result

    def _score(self, stats: CollectStats) -> float:
        return self._calling("compute_score_fn", lambda: self.ranks.on_first(self.params.score, stats))

    def _wants_to_stop(self, score: float) -> bool:
        return self._calling("stop_fn", lambda: self.ranks.on_first(self.params.wants_to_stop, score))

    def _has_all_steps(self, record: EpochRecord) -> bool:
        return record.num_steps(self.step_unit) >= self.params.epoch_num_steps

    def _progress(self) -> float:
        return self.state.share_done

    def _note_progress(self) -> None:
        # Between training steps only: a schedule is constant within one.
        self.state.share_done = self.params.share_done(*self.state.num_epochs_and_steps(self.step_unit))

    def _test(self, collector: DataSource) -> float:
        """Make a test step: collect, score, and remember the best. Returns the score."""
        started, params, state = time.perf_counter(), self.params, self.state
        self._call("test_fn", self.epoch, self.env_step)
        collector.sync()
        collector.reset(first_episode=True)
        num_episodes = self._own(params.test_step_num_episodes)
        with self._running():
            collect = partial(collector.collect, num_episodes=num_episodes, explore=False)
            stats = self._checkpoints.break_off(collect) if num_episodes else NO_EPISODES
        stats = merged_stats(stats, self.ranks).reduce_agents(params.multi_agent_return_reduction)
        score = state.score = self._take_score(stats)
        if state.record is not None:
            state.record.test_stats, state.record.score = stats, score
            state.record.timing.test += time.perf_counter() - started
        self._log.tested(state, stats, score, *self._hooks.log_test(stats))
        return score

    def _take_score(self, stats: CollectStats) -> float:
        """Return the score of a test step; if it is the best so far, remember it, and call `save_best_fn`."""
        score, before = self._score(stats), self.state.best
        if before.is_beaten_by(score):
            returns = stats.returns
            self.state.best = Best(score, float(returns.mean()), float(returns.std()), self.epoch)
            try:
                self._call("save_best_fn", self.algorithm)
            except BaseException:
                self.state.best = before  # without its file it is not the best that can be restored
                raise
        return score

    def _resume_from_log(self) -> None:
        """Continue from the counters of the log, if it has any; networks and buffers are the user's to restore."""
        if (logger := self.params.logger) is not None and (progress := logger.read_progress()) is not None:
            self.state.take_progress(progress)
            self._note_progress()
            self._seed()
            self._set_up()
            self.state.phase = "restored"
            logger.continue_log(getattr(self, self.step_unit))
            self._log.begin(is_new=False)

    def _check_classes(self, algorithm: object, params: object) -> None:
        name, wanted = type(self).__name__, self.params_class.__name__
        given = {"algorithm": (self.algorithm_class, algorithm), "params": (self.params_class, params)}
        for field, (cls, value) in given.items():
            if not isinstance(value, cls):
                hint = f"Write {name}(algorithm, {wanted}(...))."
                if isinstance(value, OnPolicyAlgorithm):
                    hint = "Use OnPolicyTrainer and OnPolicyTrainerParams."
                elif isinstance(value, OffPolicyAlgorithm):
                    hint = "Use OffPolicyTrainer and OffPolicyTrainerParams, or OfflineTrainer."
                raise ParamsError.about(name, field, f"must be of class {cls.__name__}", value, hint)
