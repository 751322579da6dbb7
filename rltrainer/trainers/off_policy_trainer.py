"""Off-policy training: collect into a replay buffer, then take the gradient steps that are due."""

import dataclasses
import math
import time
from typing import Any

from rltrainer.algorithms import Algorithm, OffPolicyAlgorithm
from rltrainer.collect import CollectStats
from rltrainer.data import ReplayBuffer
from rltrainer.field_rules import NonNegativeInt, PositiveFloat, PositiveInt
from rltrainer.seeding import derive_seed
from rltrainer.trainers.epoch_record import EpochRecord
from rltrainer.trainers.online_trainer import OnlineTrainer, OnlineTrainerParams
from rltrainer.trainers.run_state import RunState
from rltrainer.types import State, UpdateResult


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OffPolicyTrainerParams(OnlineTrainerParams):
    """What the off-policy trainer can be told."""

    batch_size: PositiveInt = 64
    """Transitions per gradient step."""
    update_step_num_gradient_steps_per_sample: PositiveFloat = 1.0
    """Gradient steps per collected transition; what is left over is carried to the next update step."""
    warmup_num_env_steps: NonNegativeInt = 0
    """Env steps with random actions at the start; they count as env steps and make no gradient steps due."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.training_collector.buffer, ReplayBuffer):
            self.raise_invalid(
                "training_collector", "must have a ReplayBuffer", "Pass Collector(..., buffer=ReplayBuffer(...))."
            )

    @property
    def planned_num_gradient_steps(self) -> int:
        """Gradient steps of the run."""
        num_samples = max(self.planned_num_steps - self.warmup_num_env_steps, 0)
        return int(self.update_step_num_gradient_steps_per_sample * num_samples)

    @property
    def gradient_batch_size(self) -> int:
        """Transitions of a gradient step."""
        return self.batch_size

    def create_trainer(self, algorithm: Algorithm) -> "OffPolicyTrainer":
        """Return an `OffPolicyTrainer`."""
        return OffPolicyTrainer(algorithm, self)  # type: ignore[arg-type]  # the trainer checks and names the class


@dataclasses.dataclass(kw_only=True)
class OffPolicyRunState(RunState):
    """What an off-policy run remembers beside its parts."""

    num_samples: NonNegativeInt
    num_steps_taken: NonNegativeInt


class OffPolicyTrainer(OnlineTrainer[OffPolicyAlgorithm, OffPolicyTrainerParams]):
    """Trains an off-policy algorithm on samples from a buffer that grows while training.

    Args:
        algorithm: an off-policy algorithm.
        params: how to train it.
    """

    algorithm_class = OffPolicyAlgorithm
    run_state_class = OffPolicyRunState
    _num_samples: int
    _num_steps_taken: int
    _is_warmup: bool
    params_class = OffPolicyTrainerParams

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer of the training collector."""
        buffer = self.params.training_collector.buffer
        assert isinstance(buffer, ReplayBuffer), "checked when the params were made"
        return buffer

    def _collect(self, random: bool = False) -> CollectStats:
        self._is_warmup = self.env_step < self.params.warmup_num_env_steps
        return super()._collect(random=self._is_warmup)

    def _update(self, record: EpochRecord, stats: CollectStats) -> None:
        started = time.perf_counter()
        algorithm, buffer, batch_size = self.algorithm, self.buffer, self.params.batch_size
        num_due, results = self._num_due(stats), []
        while num_due > 0:
            num_batches = min(num_due, buffer.max_num_batches(batch_size))
            transitions = algorithm.sample(buffer, batch_size, num_batches if num_batches > 1 else None)
            results.append(algorithm.update(transitions))
            buffer.update_priorities(transitions.index, results[-1].td_error)
            results[-1].td_error = None
            num_due -= num_batches
        if algorithm.has_statistics:  # most have none, and a rollout of one row costs as much as its collection
            algorithm.observe(self.params.training_collector.rollout())
        if results:
            self._note_update(record, UpdateResult.mean(results), time.perf_counter() - started)

    def _num_due(self, stats: CollectStats) -> int:
        """Count the samples that make gradient steps due; return how many are due and not taken yet.

        Counted from the start of the run, so that no remainder is ever rounded away: ten collections of 30 samples at
        0.01 steps per sample make exactly 3 due. The 1e-9 makes up for ratios that binary fractions miss.
        """
        if not self._is_warmup:
            self._num_samples += stats.num_collected_steps
        num_due = math.floor(self.params.update_step_num_gradient_steps_per_sample * self._num_samples + 1e-9)
        num_steps = num_due - self._num_steps_taken
        self._num_steps_taken = num_due
        return num_steps

    def _start_counting(self) -> None:
        super()._start_counting()
        self._num_samples = self._num_steps_taken = 0
        self._is_warmup = False

    def _seed(self) -> None:
        super()._seed()
        if self.params.seed is not None:
            self.buffer.seed(derive_seed(self.params.seed, "buffer"))

    def _parts(self) -> dict[str, Any]:
        return super()._parts() | {"buffer": self.buffer}

    def _state(self) -> State:
        return super()._state() | {"num_samples": self._num_samples, "num_steps_taken": self._num_steps_taken}

    def _load_run(self, run: RunState) -> None:
        super()._load_run(run)
        assert isinstance(run, OffPolicyRunState), "the class that this trainer names"
        self._num_samples, self._num_steps_taken = run.num_samples, run.num_steps_taken
