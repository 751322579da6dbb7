"""Standardised rewards: those of the update, not those that are stored."""

import dataclasses
from typing import Annotated, Any

import torch
from torch import Tensor

from rltrainer.algorithms import OnPolicyAlgorithm
from rltrainer.errors import CheckpointError, ParamsError, field_error_text
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.state.typed_state import check_like, from_state
from rltrainer.types import Load, Rollout, State, Transitions
from rltrainer.validation.field_rules import PositiveFloat, Rule, checked, is_finite

Decay = Annotated[float, Rule("a number in (0, 1]", lambda v: is_finite(v) and 0 < v <= 1)]


class RewardNormalizer(TrainerHook):
    """Gives updates `scale * (reward - mean) / std`: [1, 2, 3] becomes [-1, 0, 1].

    Mean and standard deviation are those of all rewards so far, of which older training steps weigh less: a step's
    rewards weigh `decay` times as much with each step after it (TorchRL's `RewardNormalizer`; the deviation is the
    sample's, divided by count - 1). They are taken of newly collected data, warm-up included; offline of what is
    sampled. Cells that are not valid do not count.

    Buffers, statistics of episodes and files keep the raw rewards: on policy the update's rollout is changed, otherwise
    each minibatch, by the statistics of that time.

    Args:
        decay: weight of the past after each training step; 1 forgets nothing.
        scale: what the standard deviation becomes.
        eps: the least variance that is divided by.

    Raises:
        ParamsError: an argument breaks its rule; or the algorithm sums rewards over several steps before it sees them
            (`n_step`), when they can no longer be centred.
    """

    NOT_ON_POLICY = ("process_optim_batch",)

    def __init__(self, decay: float = 0.999, scale: float = 1.0, eps: float = torch.finfo(torch.float32).eps) -> None:
        self.decay = checked("RewardNormalizer", "decay", decay, Decay)
        self.scale = checked("RewardNormalizer", "scale", scale, PositiveFloat)
        self.eps = checked("RewardNormalizer", "eps", eps, PositiveFloat)
        self._moments = torch.zeros(3, dtype=torch.float64)

    def setup(self, ctx: TrainerContext) -> None:
        """Check that rewards come one by one."""
        if (n_step := getattr(ctx.algorithm, "n_step", 1)) != 1:
            rule, hint = "must be 1", "A sum of rewards has another mean than each of them."
            raise ParamsError(field_error_text("RewardNormalizer", "algorithm.n_step", rule, n_step, hint))

    def batch_process(self, ctx: TrainerContext, batch: Rollout | Transitions) -> Any:
        """Take in new rewards; on policy return the rollout with standardised ones."""
        self.update(batch.reward[batch.valid] if isinstance(batch, Rollout) else batch.reward.flatten())
        if isinstance(ctx.algorithm, OnPolicyAlgorithm):
            return dataclasses.replace(batch, reward=self(batch.reward))
        return None

    def process_optim_batch(self, ctx: TrainerContext, minibatch: Any) -> Any:
        """Return transitions with standardised rewards; on policy the rollout has them already."""
        return dataclasses.replace(minibatch, reward=self(minibatch.reward))

    @torch.no_grad()
    def update(self, reward: Tensor) -> None:
        """Merge rewards [M] into the statistics, which decay before (West 1979, weighted increments)."""
        if len(reward) == 0:
            return
        x = reward.double()
        past, mean, squares = self._moments.to(x.device).unbind()
        past = self.decay * past
        count, delta = past + len(x), x.mean() - mean
        squares = self.decay * squares + (x - x.mean()).square().sum() + delta.square() * past * len(x) / count
        self._moments = torch.stack([count, mean + delta * len(x) / count, squares])

    @torch.no_grad()
    def __call__(self, reward: Tensor) -> Tensor:
        """Return standardised rewards, of any shape; zeros where nothing is known of their variance."""
        count, mean, squares = self._moments.to(reward.device).unbind()
        std = (squares / (count - 1).clamp_min(self.eps)).clamp_min(self.eps).sqrt()
        standard: Tensor = (self.scale * (reward.double() - mean) / std).to(reward.dtype)
        return standard

    def reset(self) -> None:
        """Forget the statistics of an earlier run."""
        self._moments = torch.zeros(3, dtype=torch.float64)

    def state_dict(self) -> State:
        """Return the statistics."""
        return {"moments": self._moments}

    def prepare_load(self, state: State) -> Load:
        """Check statistics, and return what takes them over."""
        found = from_state(RewardNormalizerState, state, type(self).__name__).moments
        name = f"{type(self).__name__}.moments"
        check_like(name, torch.zeros(3, dtype=torch.float64), found, "")
        if found[0] < 0 or found[2] < 0:
            raise CheckpointError(f"{name}: expected a count, a mean and a sum of squares, found {found.tolist()}")

        def load() -> None:
            self._moments = found.clone()

        return load


@dataclasses.dataclass
class RewardNormalizerState:
    """State of a `RewardNormalizer`: decayed count, mean, decayed sum of squared distances from it."""

    moments: Any
