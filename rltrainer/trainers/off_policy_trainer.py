"""Off-policy training: collect into a replay buffer, then take the gradient steps that are due."""

import dataclasses
import math
from functools import partial
from typing import Any, Self

from rltrainer.algorithms import Algorithm, OffPolicyAlgorithm
from rltrainer.collect import Collector, CollectStats
from rltrainer.data import MixedBuffer, ReplayBuffer
from rltrainer.plan import RuntimeParams
from rltrainer.trainers.online_trainer import OnlineTrainer, OnlineTrainerParams
from rltrainer.trainers.run_state import RunState
from rltrainer.types import Rollout, UpdateResult
from rltrainer.validation.field_rules import NonNegativeInt, PositiveFloat, PositiveInt


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OffPolicyTrainerParams(OnlineTrainerParams):
    """Settings of the off-policy trainer; a `ParamsError` if the training collector has no `ReplayBuffer`."""

    batch_size: PositiveInt = 64
    """Transitions per gradient step."""
    update_step_num_gradient_steps_per_sample: PositiveFloat = 1.0
    """Gradient steps per collected transition; a remainder is carried to the next update step."""
    warmup_num_env_steps: NonNegativeInt = 0
    """Env steps with random actions at the start; they count as env steps and make no gradient steps due."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.training_collector.buffer, ReplayBuffer):
            hint = "Pass Collector(..., buffer=ReplayBuffer(...))."
            self.raise_invalid("training_collector", "must have a ReplayBuffer", hint)

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer of the training collector."""
        buffer = self.training_collector.buffer
        assert isinstance(buffer, ReplayBuffer), "checked when the params were made"
        return buffer

    def check_fits(self, algorithm: Algorithm) -> None:
        """Check the data of a `MixedBuffer` too; a `ReplayBufferError` if the algorithm cannot learn from it."""
        super().check_fits(algorithm)
        if isinstance(self.buffer, MixedBuffer) and isinstance(algorithm, OffPolicyAlgorithm):
            algorithm.check_data(self.buffer.offline)

    @property
    def can_overlap(self) -> bool:
        """Return whether a copy of the policy can act while an update runs."""
        return isinstance(self.training_collector, Collector) and self.training_collector.can_overlap

    def parts(self) -> dict[str, Any]:
        """Return the buffer too."""
        return {**super().parts(), "buffer": self.buffer}

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
    """State of an off-policy run beside its parts' states."""

    num_samples: NonNegativeInt
    num_steps_taken: NonNegativeInt

    @classmethod
    def new(cls, runtime: RuntimeParams, **own: Any) -> Self:
        """Return the state of a run that starts."""
        return super().new(runtime, num_samples=0, num_steps_taken=0, **own)


class OffPolicyTrainer(OnlineTrainer[OffPolicyAlgorithm, OffPolicyTrainerParams]):
    """Trains an off-policy algorithm on samples from a buffer that grows while training; see `Trainer`."""

    algorithm_class = OffPolicyAlgorithm
    params_class = OffPolicyTrainerParams
    run_state_class = OffPolicyRunState
    state: OffPolicyRunState

    @property
    def buffer(self) -> ReplayBuffer:
        """The buffer of the training collector."""
        return self.params.buffer

    def _fit_collectors(self) -> None:
        """Let the policy act, or a copy of it, which starts with the present weights."""
        if isinstance(self.params.training_collector, Collector):
            self.params.training_collector.overlap(self.params.runtime.overlap)

    def _start_collecting(self, reset_collectors: bool, reset_buffers: bool) -> None:
        super()._start_collecting(reset_collectors, reset_buffers)
        self._fit_collectors()

    def _collection_options(self) -> dict[str, Any]:
        process = partial(self._hooks.replaced, "batch_process") if self._hooks.has("batch_process") else None
        return {"random": self.env_step < self.params.warmup_num_env_steps, "process": process}

    def _batch(self) -> Rollout | None:
        is_seen = self._hooks.has("pre_steps_log") or self._hooks.has("post_steps_log")
        return self.params.training_collector.rollout() if is_seen else None

    def _update(self, batch: Rollout | None) -> UpdateResult | None:
        num_due, result = self._num_due(self._collected), None
        if num_due:
            self._hooks.act("pre_optim_steps")
            result = self.algorithm.update_from(self.buffer, self._own(self.params.batch_size), num_due)
        if self.algorithm.has_statistics:  # most have none, and a rollout of one row costs as much as its collection
            self.algorithm.observe(self.params.training_collector.rollout())
        return result

    def _num_due(self, stats: CollectStats) -> int:
        """Count the samples that make gradient steps due; return how many are due and not taken yet."""
        params, state = self.params, self.state
        # Counted from the start of the run, so that no remainder is ever rounded away: ten collections of 30 samples
        # at 0.01 steps per sample make exactly 3 due. Not from `num_steps_taken`, which a file may claim to be less.
        taken = self._num_due_in_all(state.num_samples)
        if self.env_step - stats.num_env_steps >= params.warmup_num_env_steps:
            state.num_samples += stats.num_collected_steps
        state.num_steps_taken = self._num_due_in_all(state.num_samples)
        return state.num_steps_taken - taken

    def _num_due_in_all(self, num_samples: int) -> int:
        # The 1e-9 makes up for ratios that binary fractions miss.
        return math.floor(self.params.update_step_num_gradient_steps_per_sample * num_samples + 1e-9)
