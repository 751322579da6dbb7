"""The trainer: epochs, test steps, the best score, when to stop, and what a run remembers.

Knows nothing of how a training step is made; its subclasses do.
"""

import dataclasses
import math
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from rltrainer.algorithms import Algorithm
from rltrainer.checkpoint import read_checkpoint, write_checkpoint
from rltrainer.collect import Collector
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.field_rules import AnyPath, checked
from rltrainer.plan import UpdatePlan
from rltrainer.seeding import derive_seed
from rltrainer.trainers.callbacks import call, compute_score, wants_to_stop
from rltrainer.trainers.epoch_record import EpochRecord
from rltrainer.trainers.run_log import RunLog
from rltrainer.trainers.run_state import Counters, RunState, check_all, plain_fields
from rltrainer.trainers.run_stats import Best, EpochStats, InfoStats, Timing
from rltrainer.trainers.threads import choose_num_threads, torch_threads
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.typed_state import to_state
from rltrainer.types import State, UpdateResult

TAlgorithm = TypeVar("TAlgorithm", bound=Algorithm)
TParams = TypeVar("TParams", bound=TrainerParams)


class Trainer(ABC, Generic[TAlgorithm, TParams]):
    """Runs epochs of training steps with a test step after each.

    Args:
        algorithm: what is trained.
        params: how.

    Raises:
        ParamsError: algorithm and params do not fit each other.
    """

    algorithm_class: ClassVar[type[Algorithm]] = Algorithm
    params_class: ClassVar[type[TrainerParams]]
    run_state_class: ClassVar[type[RunState]] = RunState
    step_unit: ClassVar[Literal["env_step", "gradient_step"]] = "env_step"
    """What logs and progress are counted in."""

    epoch: int
    env_step: int
    update_step: int
    gradient_step: int
    _best: Best
    _epochs: list[EpochStats]
    _record: EpochRecord | None
    _stop_reason: str | None
    _timing: Timing
    _share_done: float

    def __init__(self, algorithm: TAlgorithm, params: TParams) -> None:
        name, classes = type(self).__name__, {"algorithm": self.algorithm_class, "params": self.params_class}
        for (field, cls), value in zip(classes.items(), (algorithm, params), strict=True):
            if not isinstance(value, cls):
                hint = f"Write {name}(algorithm, {self.params_class.__name__}(...))."
                raise ParamsError(field_error_text(name, field, f"must be of class {cls.__name__}", value, hint))
        self.algorithm, self.params = algorithm, params
        for field, collector in self._collectors().items():
            if collector.policy is not algorithm.policy:
                params.raise_invalid(
                    field, "must use the algorithm's policy", "Make it with Collector(algorithm.policy, envs)."
                )
        self._check_data()
        self._log = RunLog(params, algorithm, self.step_unit)
        self._start_counting()
        self._is_started = self._continues = False
        self._runtime = params.runtime
        if params.resume_from_log:
            self._resume_from_log()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle a trainer that goes on by itself, with algorithm, envs and data of its own.

        Raises:
            ParamsError: it has a logger: two runs cannot write one log.
        """
        if self.params.logger is not None:
            self.params.raise_invalid(
                "logger", "must be None in a trainer that is copied", "Two runs cannot write one log."
            )
        return dict(vars(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Let the algorithm of the copy, and its schedules, follow the copy."""
        vars(self).update(state)
        if self._is_started:
            self._set_up()

    def run(self, reset_collectors: bool = True, reset_collector_buffers: bool = False) -> InfoStats:
        """Train from the beginning, or go on after `restore`.

        Args:
            reset_collectors: start the envs anew first.
            reset_collector_buffers: then also empty their buffers.

        Returns:
            the statistics of the run; at once if the restored run was already finished.
        """
        try:
            if not self._continues:
                self.reset(reset_collectors, reset_collector_buffers)
            self._continues = False
            how = "compiled" if self._runtime.compile else "uncompiled"
            how += ", as CUDA graphs" if self._runtime.cuda_graph is True else ""
            how = f"gradient steps {how}, torch threads {self._runtime.num_threads}"
            self._log.open_bar(self.params, f"{type(self.algorithm).__name__}: {how}")
            while not self._is_finished():
                self.execute_epoch()
        except BaseException:
            for collector in self._collectors().values():
                collector.close()
            raise
        finally:
            self._log.close_bar(self.params)
        return self._info()

    def reset(self, reset_collectors: bool = True, reset_collector_buffers: bool = False) -> None:
        """Begin a run: counters at 0, random streams from the seed, and the initial test step.

        Args:
            reset_collectors: start the envs anew.
            reset_collector_buffers: then also empty their buffers.
        """
        self._start_counting()
        if self.params.test_collector is not None:
            self.params.test_collector.num_rows = 0  # it may come from a checkpoint of an initial test step
        self._seed()
        self._set_up()
        self._start_collecting(reset_collectors, reset_collector_buffers)
        self._is_started, self._continues = True, False
        self._log.begin(self.params, is_new=True)
        if self.params.test_collector is not None and self.params.initial_test:
            self._test(self.params.test_collector)

    def execute_epoch(self) -> EpochStats:
        """Run one epoch, or the rest of a restored one: training steps, then a test step.

        Returns:
            its statistics.
        """
        if not self._is_started:
            self.reset()
        if self._record is None:
            self._stop_reason = None  # called by hand after the end: one more epoch
            self.epoch += 1
            self._record = EpochRecord(self.epoch)
        started, record = time.perf_counter(), self._record
        may_add = self.params.runtime.num_threads != "auto"
        with torch_threads(cast(int | None, self._runtime.num_threads), may_add):
            while self._num_steps_left(record) > 0 and self._stop_reason is None:
                call(self.params, "training_fn", self.epoch, self.env_step)
                self._training_step(record)
                self._note_progress()
                self._log.advance_to(self._step)
            self.algorithm.check_faults()
        if self._stop_reason is None and self.params.test_collector is not None:
            score = self._test(self.params.test_collector)
            if wants_to_stop(self.params, score):
                self._stop_reason = "stop_fn"
        record.timing.total += time.perf_counter() - started
        return self._end_epoch(record)

    def save(self, path: str | Path) -> None:
        """Write a checkpoint: a directory from which `restore` continues this run.

        Raises:
            CheckpointError: it could not be written.
        """
        path = checked(f"{type(self).__name__}.save", "path", path, AnyPath)
        write_checkpoint(
            path, {name: dict(part.state_dict()) for name, part in self._parts().items()} | {"trainer": self._state()}
        )

    def restore(self, path: str | Path) -> None:
        """Read a checkpoint; the next `run` or `execute_epoch` continues where it was saved.

        Raises:
            CheckpointError: it is damaged, or was saved by a run with other settings; the text names the field.
        """
        path = checked(f"{type(self).__name__}.restore", "path", path, AnyPath)
        states = read_checkpoint(path, mapped=("buffer",))
        settings = plain_fields(self.params, self.algorithm)
        run, loads = check_all(path, states, self._parts(), self.run_state_class, settings)
        before = self._runtime, self.algorithm.plan, self.algorithm.snapshot()
        try:
            self._runtime = run.runtime_params
            if self.algorithm.device.type != "cuda":  # the run may have moved; a CUDA graph changes no number
                self._runtime = dataclasses.replace(self._runtime, cuda_graph=self.params.runtime.cuda_graph)
            self._set_up()
        except BaseException:
            self._runtime, plan, unchanged = before
            self.algorithm.attach(plan)
            unchanged()
            raise
        for load in loads:
            load()
        self._load_run(run)
        self._is_started = self._continues = run.has_begun
        if run.has_begun:
            self._log.begin(self.params, is_new=False)

    @abstractmethod
    def _training_step(self, record: EpochRecord) -> None:
        """Make one training step and note it in the record and the counters."""

    @abstractmethod
    def _num_steps_left(self, record: EpochRecord) -> int:
        """Return how many steps the epoch still lacks; not positive when its training steps are done."""

    @property
    @abstractmethod
    def _step(self) -> int:
        """The counter that logs and progress go by."""

    def _collectors(self) -> dict[str, Collector]:
        """Return the collectors by the name of their field."""
        return {"test_collector": self.params.test_collector} if self.params.test_collector is not None else {}

    def _parts(self) -> dict[str, Any]:
        """Return the objects with a state of their own, by name; a checkpoint holds one file for each."""
        parts: dict[str, Any] = {"algorithm": self.algorithm, **self._collectors()}
        return parts | ({"logger": self.params.logger} if self.params.logger is not None else {})

    def _check_data(self) -> None:
        """Check that the data fits the algorithm, before anything is prepared."""

    def _set_up(self) -> None:
        """Prepare what a run needs before its first step; may be called again."""
        runtime, num_parameters = self._runtime, sum(p.numel() for p in self.algorithm.policy.parameters())
        threads = self.params.runtime.num_threads, runtime.num_threads
        num_threads = choose_num_threads(*threads, num_parameters, self.params.gradient_batch_size)
        plan = UpdatePlan(
            progress=self._progress,
            num_gradient_steps=self.params.planned_num_gradient_steps,
            runtime=dataclasses.replace(runtime, num_threads=num_threads),
            precision=self.params.precision,
            rollouts_vary=self.params.rollouts_vary,
        )
        self.algorithm.attach(plan)
        self._runtime = self.algorithm.plan.runtime  # chosen once: a resumed run asks for what this one got

    def _start_collecting(self, reset_collectors: bool, reset_buffers: bool) -> None:
        """Make the collectors of training data ready; a test collector is reset by every test step."""

    def _seed(self) -> None:
        if self.params.seed is None:
            return
        self.algorithm.seed(derive_seed(self.params.seed, "algorithm"))
        for name, collector in self._collectors().items():
            collector.seed(derive_seed(self.params.seed, name))

    def _start_counting(self) -> None:
        self.epoch = self.env_step = self.update_step = self.gradient_step = 0
        self._best = Best()
        self._epochs = []
        self._record = self._stop_reason = None
        self._timing = Timing()
        self._share_done = 0.0

    def _progress(self) -> float:
        return self._share_done

    def _note_progress(self) -> None:
        """Take the share of the training that is done: between training steps, as an update goes by what was before."""
        record, num_epochs, num_steps = self._record, self.epoch, 0
        if record is not None:
            num_epochs, num_steps = num_epochs - 1, self.params.epoch_num_steps - self._num_steps_left(record)
        self._share_done = self.params.share_done(num_epochs, num_steps)

    def _is_finished(self) -> bool:
        """Whether the run is over; a run that had reached its last epoch goes on if there are more now."""
        if self._stop_reason in (None, "max_epochs"):
            is_last = self.epoch >= self.params.max_epochs and self._record is None
            self._stop_reason = "max_epochs" if is_last else None
        return self._stop_reason is not None

    def _test(self, collector: Collector) -> float:
        """Make a test step: collect, score, and remember the best. Returns the score."""
        started = time.perf_counter()
        call(self.params, "test_fn", self.epoch, self.env_step)
        collector.reset(first_episode=True)
        stats = collector.collect(num_episodes=self.params.test_step_num_episodes, explore=False)
        stats = stats.reduce_agents(self.params.multi_agent_return_reduction)
        score = compute_score(self.params, stats)
        is_best = not math.isnan(score) and (self._best.score is None or score > self._best.score)
        if is_best:
            summary = stats.returns_stat
            assert summary is not None, "a test step has at least one episode"
            before, self._best = self._best, Best(score, summary.mean, summary.std, self.epoch)
            try:
                call(self.params, "save_best_fn", self.algorithm)
            except BaseException:
                self._best = before  # what was not saved is not the best that there is
                raise
        if self._record is not None:
            self._record.test_stats, self._record.score = stats, score
            self._record.timing.test += time.perf_counter() - started
        self._log.tested(stats, score, self._best, self._step)
        return score

    def _note_update(self, record: EpochRecord, result: UpdateResult, seconds: float) -> None:
        """Count an update step and log it."""
        self.update_step += 1
        self.gradient_step += result.num_gradient_steps
        record.add_update(result, seconds)
        self._log.updated(result, self._step, self.update_step, self.gradient_step)

    def _save_checkpoint(self) -> None:
        call(self.params, "save_checkpoint_fn", self.epoch, self.env_step, self.gradient_step)

    def _end_epoch(self, record: EpochRecord) -> EpochStats:
        stats = record.stats()
        self._epochs.append(stats)
        self._timing.add(stats.timing)
        self._record = None
        is_stopped = {"is_stopped": int(self._stop_reason == "stop_fn")}
        progress = self._counters() | self._best.to_progress() | is_stopped
        is_last = self._stop_reason is not None or self.epoch >= self.params.max_epochs
        self._log.ended_epoch(stats, record.score, self._best, progress, is_last)
        return stats

    def _counters(self) -> dict[str, int | float | None]:
        names = ("epoch", "env_step", "update_step", "gradient_step")
        return {name: getattr(self, name) for name in names}

    def _info(self) -> InfoStats:
        numbers = cast(dict[str, Any], self._counters() | self._best.to_progress())
        return InfoStats(**numbers, stop_reason=self._stop_reason, timing=self._timing, epochs=self._epochs)

    def _state(self) -> State:
        record = None if self._record is None else self._record.without_test()
        run = RunState(
            params=plain_fields(self.params, self.algorithm),
            counters=Counters(self.epoch, self.env_step, self.update_step, self.gradient_step),
            best=self._best,
            stop_reason=self._stop_reason,
            runtime=vars(self._runtime),
            timing=self._timing,
            epochs=self._epochs,
            record=record,
            log=self._log.last_episodes,
        )
        return cast(State, to_state(run))

    def _load_run(self, run: RunState) -> None:
        counters = run.counters
        self.epoch, self.env_step = counters.epoch, counters.env_step
        self.update_step, self.gradient_step = counters.update_step, counters.gradient_step
        self._best, self._stop_reason, self._timing = run.best, run.stop_reason, run.timing
        self._epochs, self._record, self._log.last_episodes = run.epochs, run.record, run.log
        self._note_progress()

    def _resume_from_log(self) -> None:
        """Take up the counters of a log; networks and buffers are the user's to restore."""
        logger = self.params.logger
        progress = logger.read_progress() if logger is not None else None
        if logger is None or progress is None:
            return
        for name in self._counters():
            setattr(self, name, int(progress[name] or 0))
        self._best = Best.of_progress(progress)
        self._stop_reason = "stop_fn" if progress["is_stopped"] else None
        self._note_progress()
        self._seed()
        self._set_up()
        self._is_started = self._continues = True
        logger.continue_log(self._step)
        self._log.begin(self.params, is_new=False)
