"""Offline training: the same algorithms, on a buffer that does not change."""

import dataclasses
import time
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any

from rltrainer.algorithms import Algorithm, OffPolicyAlgorithm
from rltrainer.data import MixedBuffer, ReplayBuffer
from rltrainer.errors import SpaceError
from rltrainer.interval import Every
from rltrainer.spaces import spaces_mismatch
from rltrainer.trainers.run_state import EpochRecord
from rltrainer.trainers.trainer import Trainer
from rltrainer.trainers.trainer_params import TrainerParams
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import PositiveInt, instance_of

_HOW_TO_READ = "Read one by rl.ReplayBuffer.load(path), or from other files by rl.datasets."


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OfflineTrainerParams(TrainerParams):
    """Settings of the offline trainer; a `ParamsError` for a buffer without data, and for intervals in env steps."""

    buffer: Annotated[ReplayBuffer, instance_of(ReplayBuffer, hint=_HOW_TO_READ)] = dataclasses.field(compare=False)
    """The data."""
    batch_size: PositiveInt = 64
    """Transitions per gradient step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.buffer) == 0:
            self.raise_invalid("buffer", "must hold transitions", "It is empty: collect into it, or load one.")
        if isinstance(self.buffer, MixedBuffer):
            self.raise_invalid("buffer", "must be one buffer", "Append one of the two to the other with extend.")
        for hook in self.hooks:
            if hook.every is not None and hook.every.unit == "env_step":
                hint = f"{type(hook).__name__}.every is {hook.every}, and there are no env steps offline."
                self.raise_invalid("hooks", "must have no interval in env steps", hint)
        every = None if self.checkpoint is None else self.checkpoint.every
        if isinstance(every, Every) and every.unit == "env_step":
            self.raise_invalid("checkpoint", "must have no `every` in env steps", "There are no env steps offline.")
        if self.checkpoint is not None and self.checkpoint.record_episodes:
            self.raise_invalid("checkpoint", "must record no episodes", "Offline there are none.")

    # A step of an offline run is a gradient step.
    planned_num_gradient_steps = TrainerParams.planned_num_steps

    @property
    def gradient_batch_size(self) -> int:
        """Transitions of a gradient step."""
        return self.batch_size

    def parts(self) -> dict[str, Any]:
        """Return the sampling of the buffer too."""
        # Its random numbers and its sampler change; its data is the user's file, and in no checkpoint.
        buffer, load = self.buffer, partial(self.buffer.prepare_sampling, name="OfflineTrainerParams.buffer")
        sampling = SimpleNamespace(seed=buffer.seed, state_dict=buffer.sampling_state, prepare_load=load)
        return {**super().parts(), "buffer": sampling}

    def check_fits(self, algorithm: Algorithm) -> None:
        """Check the data too: a `SpaceError` for other spaces than the policy's, a `NonFiniteError` for NaN."""
        super().check_fits(algorithm)
        if mismatch := spaces_mismatch("OfflineTrainerParams.buffer", algorithm.policy, self.buffer):
            raise SpaceError(f"{mismatch}. Build the policy with Policy.for_spaces(buffer.observation_space, ...).")
        algorithm.require_columns("OfflineTrainerParams.buffer", self.buffer.extra)
        self.buffer.check_finite()

    def create_trainer(self, algorithm: Algorithm) -> "OfflineTrainer":
        """Return an `OfflineTrainer`."""
        return OfflineTrainer(algorithm, self)  # type: ignore[arg-type]  # the trainer checks and names the class


class OfflineTrainer(Trainer[OffPolicyAlgorithm, OfflineTrainerParams]):
    """Trains an off-policy algorithm from a saved buffer; a training step is one gradient step."""

    algorithm_class = OffPolicyAlgorithm
    params_class = OfflineTrainerParams
    step_unit = "gradient_step"

    def _set_up(self) -> None:
        super()._set_up()
        self.algorithm.prepare(self.params.buffer)

    def _collect(self, record: EpochRecord) -> Transitions | None:
        if not any(map(self._hooks.has, ("batch_process", "pre_steps_log", "post_steps_log"))):
            return None  # no hook is given the batch, so that the update may sample it by itself
        began = time.perf_counter()
        transitions = self.algorithm.sample(self.params.buffer, self._own(self.params.batch_size))
        record.timing.update += time.perf_counter() - began
        processed: Transitions = self._hooks.replaced("batch_process", transitions)
        return processed

    def _update(self, batch: Transitions | None) -> UpdateResult:
        self._hooks.act("pre_optim_steps")
        if batch is None:
            return self.algorithm.update_from(self.params.buffer, self._own(self.params.batch_size))
        result = self.algorithm.update(batch)
        self.params.buffer.update_priorities(batch.index, result.td_error)
        return result
