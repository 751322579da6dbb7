"""Off-policy updates: sampled transitions in, one gradient step for each batch of them."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from rltrainer.algorithms.algorithm import Algorithm, AlgorithmParams
from rltrainer.data import ReplayBuffer
from rltrainer.errors import ParamsError, ReplayBufferError
from rltrainer.nets.policy import Policy
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, checked


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OffPolicyParams(AlgorithmParams):
    """Hyperparameters that all off-policy algorithms have."""

    n_step: PositiveInt = 1
    """Env steps whose rewards a target sums before it bootstraps."""


class OffPolicyAlgorithm(Algorithm):
    """Algorithm that learns from transitions of any origin: a replay buffer that grows, or one from a file.

    A subclass implements `gradient_step`, and `sample_noise` if it needs random numbers there.
    """

    params_class = OffPolicyParams
    params: OffPolicyParams
    methods_of_update = ("sample", "sample_noise", "update")
    learns_from_rewards: ClassVar[bool] = True
    sampled_columns: ClassVar[dict[str, str]] = {}
    """Names and meanings of the columns in `extra` that its `sample` adds and its updates read."""
    recommended_steps_per_sample: ClassVar[float] = 1.0
    recommended_num_warmup_steps: ClassVar[int] = 1000
    """Numbers that `recommended` returns for training in envs, unless an algorithm has its own rule."""

    def __init__(self, policy: Policy, params: OffPolicyParams | None = None) -> None:
        super().__init__(policy, params)
        self.n_step = self.params.n_step

    @abstractmethod
    def gradient_step(self, batch: Transitions, noise: Any) -> UpdateResult:
        """Take one gradient step on transitions [B] with normalised observations and unscaled actions.

        `noise` is what `sample_noise` returned for this step.
        """

    def sample_noise(self, batch: Transitions) -> Any:
        """Return the random numbers of a gradient step, from `self.generator`; by default none.

        Several of them are a dataclass, to which a variant adds fields. A compiled step cannot sample by itself.
        """
        return None

    def next_turn(self) -> bool | None:
        """Count the next gradient step, and return `is_actors_turn` of its noise; None leaves the noise as it is.

        It runs at each step on the host, where a CUDA graph may repeat the rest.
        """
        return None

    @property
    def begins_step(self) -> bool:
        """True if the next batch begins a step of the optimizers; False if its gradient is only added to one."""
        return self.accumulation is None or self.accumulation.begins

    def check_data(self, buffer: ReplayBuffer) -> None:
        """Raise a `ReplayBufferError` if updates cannot learn from data that no collection adds to."""

    def prepare(self, buffer: ReplayBuffer) -> None:
        """Take statistics from the data of offline training; a second call changes nothing more.

        Raises:
            ParamsError: the policy normalises rewards and has seen none: their scale is measured in envs.
            ReplayBufferError: see `check_data`.
        """
        self.check_data(buffer)
        normalizer = self.policy.reward_normalizer
        if self.learns_from_rewards and normalizer is not None and not normalizer.moments.count:
            rule, hint = "must be False before offline training", "Scale the rewards of the data."
            raise ParamsError.about(type(self.policy).__name__, "normalize_reward", rule, True, hint)
        if self.policy.obs_normalizer is not None:
            self.policy.obs_normalizer.reset()
            for obs in buffer.observations():
                self.policy.obs_normalizer.update(obs)

    def sample(self, buffer: ReplayBuffer, batch_size: int, num_batches: int | None = None) -> Transitions:
        """Return transitions for `update`: [B], or [K, B] for K gradient steps."""
        buffer.follow(self.plan.progress, self.plan.ranks)
        return buffer.sample(batch_size, n_step=self.n_step, gamma=self.gamma, num_batches=num_batches)

    def transitions_error(self, problem: str) -> ReplayBufferError:
        """Return the error of an update from transitions that `sample` has not drawn."""
        hint = "Draw transitions by algorithm.sample(buffer, batch_size), or call update_from."
        return ReplayBufferError(f"{type(self).__name__}.update.transitions: {problem}. {hint}")

    def update_from(self, buffer: ReplayBuffer, batch_size: int, num_steps: int = 1) -> UpdateResult:
        """Take gradient steps on samples of a buffer, and report the errors to it.

        Up to `buffer.max_num_batches(batch_size)` batches are sampled at once. With CUDA graphs, and a buffer on the
        device that can be recorded, sampling, steps and report of such a number are one graph, of the same numbers.

        Returns:
            metrics averaged over the gradient steps; no `td_error`.

        Raises:
            NonFiniteError: as `update`.
            ParamsError: `batch_size` is no positive integer, or `num_steps` no integer of at least 0.
        """
        # Check the types first: `checked` is slow.
        if not (type(batch_size) is type(num_steps) is int and batch_size > 0 and num_steps >= 0):
            batch_size = checked("update_from", "batch_size", batch_size, PositiveInt)
            num_steps = checked("update_from", "num_steps", num_steps, NonNegativeInt)
        results = []
        while num_steps > 0:
            num_batches = min(num_steps, buffer.max_num_batches(batch_size))
            is_there = self.has_cuda_graph and buffer.device == self.device and buffer.can_be_recorded
            if is_there and self._execution.may_record():
                results.append(self._replayed(buffer, batch_size, num_batches))
            else:
                transitions = self.sample(buffer, batch_size, num_batches if num_batches > 1 else None)
                result = self.update(transitions)
                buffer.update_priorities(transitions.index, result.td_error)
                results.append(dataclasses.replace(result, td_error=None))
            num_steps -= num_batches
        return UpdateResult.mean(results)

    def _replayed(self, buffer: ReplayBuffer, batch_size: int, num_batches: int) -> UpdateResult:
        """Sample batches, take their steps and report the errors as one CUDA graph."""

        # Called again for other arguments: it uses its own, not those of this call.
        def sample_and_step(size: int, turns: tuple[Any, ...]) -> UpdateResult:
            transitions = self.sample(buffer, size, len(turns) if len(turns) > 1 else None)
            result = self._merged(self._execution.run(self._steps(transitions, turns)), transitions)
            buffer.update_priorities(transitions.index, result.td_error)
            return dataclasses.replace(result, td_error=None)

        self._begin_update()
        buffer.follow(self.plan.progress, self.plan.ranks)
        key, drawn = (buffer, *buffer.refresh()), (buffer.generator, self.generator)
        replay = self._execution.recorded(sample_and_step, drawn, key, buffer.sampler_tensors)
        result: UpdateResult = replay(batch_size, tuple(self._turns(num_batches)))
        self._end_update()
        return result

    def update(self, transitions: Transitions) -> UpdateResult:
        """Update from sampled transitions: [B] for one gradient step, [K, B] for K in order.

        Returns:
            metrics averaged over the gradient steps; `td_error` [B] or [K, B].

        Raises:
            NonFiniteError: a gradient was not finite; that step was not applied. See `check_faults`.
        """
        self._begin_update()
        for name, meaning in self.sampled_columns.items():
            if name not in transitions.extra:
                raise self.transitions_error(f"have no {meaning}")
        transitions = transitions.to(self.device)
        turns = self._turns(1 if _is_single(transitions) else len(transitions.reward))
        results = self._execution.run(self._steps(transitions, turns))
        result = self._merged(results, transitions)
        self._end_update()
        return result

    def _merged(self, results: list[UpdateResult], transitions: Transitions) -> UpdateResult:
        self._check_results(results)
        result = results[0] if _is_single(transitions) else UpdateResult.mean(results)
        if result.td_error is not None and self.plan.skips_steps:
            # A priority that is not finite would outweigh all others.
            result.td_error = result.td_error.nan_to_num(0.0, 0.0, 0.0)
        return self._average_metrics(result)

    def _turns(self, num_steps: int) -> Iterator[tuple[Any, ...]]:
        """Yield whose turn each step is, and with accumulation whether it is the last of its group."""
        turns = ((self.next_turn(),) for _ in range(num_steps))
        return turns if self.accumulation is None else self.accumulation.grouped(turns)

    def _steps(self, transitions: Transitions, turns: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of each gradient step."""
        for k, (turn, *applies) in enumerate(turns):
            batch = transitions if _is_single(transitions) else transitions[k]
            noise = self.sample_noise(batch)
            if turn is not None:
                noise.is_actors_turn = turn
            yield batch, noise, *applies

    def _step(self, batch: Transitions, noise: Any) -> UpdateResult:
        obs, next_obs = self.policy.normalize(batch.obs), self.policy.normalize(batch.next_obs)
        next_obs = self.policy.with_open_masks(next_obs, batch.terminated)
        action, reward = self.policy.unscale(batch.action), self.policy.scale_reward(batch.reward)
        if not (obs is batch.obs and next_obs is batch.next_obs and action is batch.action and reward is batch.reward):
            batch = dataclasses.replace(batch, obs=obs, next_obs=next_obs, action=action, reward=reward)
        return self.gradient_step(batch, noise)


def _is_single(transitions: Transitions) -> bool:
    return transitions.reward.dim() == transitions.num_axes
