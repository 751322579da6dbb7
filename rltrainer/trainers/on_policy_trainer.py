"""On-policy training: collect a rollout, update from it, forget it."""

import dataclasses
import logging
import math

from rltrainer.algorithms import Algorithm, OnPolicyAlgorithm
from rltrainer.data import RolloutBuffer
from rltrainer.nets.normalizer import warn_once
from rltrainer.nets.policy import VERSION
from rltrainer.trainers.online_trainer import OnlineTrainer, OnlineTrainerParams
from rltrainer.tree import map_tensors
from rltrainer.types import Rollout, UpdateResult, to_device
from rltrainer.validation.field_rules import PositiveInt

# Env steps of each env below which a rollout is named as short; A2C's has 5.
MIN_NUM_ROWS = 5


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OnPolicyTrainerParams(OnlineTrainerParams):
    """Settings of the on-policy trainer; a `ParamsError` if the training collector has another buffer."""

    batch_size: PositiveInt | None = 64
    """Env steps per gradient step, at most as many as the rollout has; None takes the whole rollout."""
    update_step_num_repetitions: PositiveInt = 1
    """Times that an update step uses each env step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        buffer = self.training_collector.buffer
        if buffer is not None and not isinstance(buffer, RolloutBuffer):
            rule = "must have no buffer, or a RolloutBuffer"
            self.raise_invalid("training_collector", rule, "Leave out Collector's buffer.")

    def check_fits(self, algorithm: Algorithm) -> None:
        """Check the size of minibatches too; a `ParamsError` if it does not fit the rollout."""
        super().check_fits(algorithm)
        num_steps = None if self.varies_in_length else self.collection_step_num_env_steps
        num_rows = None if num_steps is None else -(-num_steps // self.num_envs)
        if isinstance(algorithm, OnPolicyAlgorithm):
            algorithm.check_batch_size(self.batch_size, num_rows, self.num_envs)
            if num_rows is not None or self.batch_size is None:  # otherwise the rollout decides
                num_steps = (num_rows or 1) * self.num_envs
                num_minibatches = math.ceil(num_steps / (self.batch_size or num_steps))
                algorithm.check_num_steps(num_minibatches * self.update_step_num_repetitions / self.update.accumulate)
            if algorithm.policy.is_recurrent:  # its minibatches are whole envs
                algorithm.check_batch_size(self.own_batch_size, num_rows, self.training_collector.num_envs)

    @property
    def own_batch_size(self) -> int | None:
        """Env steps of a gradient step that come from the collector's own envs, if these are a part of the run's."""
        return self.batch_size and self.batch_size * self.training_collector.num_envs // self.num_envs

    @property
    def gradient_batch_size(self) -> int:
        """Env steps of a gradient step; of rollouts by episodes a guess."""
        num_steps = self.collection_step_num_env_steps or 2048
        return min(self.batch_size or num_steps, num_steps)

    @property
    def planned_num_gradient_steps(self) -> int:
        """Gradient steps of the run; of collections by episodes a guess."""
        num_steps = self.collection_step_num_env_steps or self.gradient_batch_size
        num_minibatches = math.ceil(num_steps / self.gradient_batch_size)
        return math.ceil(self.planned_num_steps / num_steps) * num_minibatches * self.update_step_num_repetitions

    def create_trainer(self, algorithm: Algorithm) -> "OnPolicyTrainer":
        """Return an `OnPolicyTrainer`."""
        return OnPolicyTrainer(algorithm, self)  # type: ignore[arg-type]  # the trainer checks and names the class


class OnPolicyTrainer(OnlineTrainer[OnPolicyAlgorithm, OnPolicyTrainerParams]):
    """Trains an on-policy algorithm on its newest data; a collector without a buffer gets a fitting `RolloutBuffer`."""

    algorithm_class = OnPolicyAlgorithm
    params_class = OnPolicyTrainerParams

    def _fit_collectors(self) -> None:
        algorithm, params, collector = self.algorithm, self.params, self.params.training_collector
        if collector.has_stale_data and algorithm.columns_if_stale is None:
            text = "%s: weights older than the policy's may act in training_collector, and it treats their actions as "
            hint = "the policy's own. IMPALA and PPO correct for that."
            logging.getLogger("rltrainer").warning(text + hint, type(algorithm).__name__)
        num_steps, num_envs = params.collection_step_num_env_steps, params.num_envs
        num_rows = -(-(num_steps or 1) // num_envs)
        if num_steps is not None and num_rows < MIN_NUM_ROWS:
            field = f"{type(params).__name__}.collection_step_num_env_steps"
            text = f"{num_steps} of {num_envs} envs are {num_rows} of each, few to learn from"
            self._once(warn_once, f"{field}: {text}. Take {MIN_NUM_ROWS * num_envs} or more.")
        if collector.buffer is None:
            spaces = (algorithm.policy.observation_space, algorithm.policy.action_space)
            known, names = algorithm.policy.columns, algorithm.columns_read(collector.has_stale_data)
            extra = {name: known[name] for name in names if name in known}
            algorithm.require_columns(f"{type(params).__name__}.training_collector", extra, collector.has_stale_data)
            extra |= VERSION if collector.has_stale_data else {}
            # Rows of envs of arrays are gathered where they are: on a device, each number of a step would be a copy.
            of_envs = getattr(getattr(getattr(collector, "envs", None), "unwrapped", None), "device", None)
            device = algorithm.device if of_envs == algorithm.device else "cpu"
            collector.attach_buffer(RolloutBuffer(num_rows, collector.num_envs, *spaces, device=device, extra=extra))

    def _batch(self) -> Rollout:
        collected, device = self.params.training_collector.rollout(), self.algorithm.device
        if collected.reward.device != device:
            collected = map_tensors(lambda x: to_device(x, device), collected)
        rollout: Rollout = self._hooks.replaced("batch_process", collected)
        return rollout

    def _update(self, batch: Rollout) -> UpdateResult | None:
        if self._collected.num_collected_steps == 0:
            return None
        self._hooks.act("pre_optim_steps")
        params, algorithm = self.params, self.algorithm
        result = algorithm.update(batch, params.own_batch_size, params.update_step_num_repetitions)
        self.state.runtime = algorithm.plan.runtime  # the first update may decide whether it is a loop
        return result
