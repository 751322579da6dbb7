"""Hooks that change what an update learns from: its rewards, its keys, its steps."""

import dataclasses
from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated, Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.algorithms import OnPolicyAlgorithm
from rltrainer.errors import ParamsError
from rltrainer.hooks.hook import TrainerContext, TrainerHook
from rltrainer.nets.encoder import Encoder
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.seeding import check_generator, make_generator, reseed, set_generator
from rltrainer.spaces import ACTION_MASK
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Load, Rollout, State, Transitions
from rltrainer.validation.field_rules import Names, NonNegativeInt, PositiveFloat, PositiveInt, Rule, checked, is_finite
from rltrainer.validation.suggestions import did_you_mean

Decay = Annotated[float, Rule("a number in (0, 1]", lambda v: is_finite(v) and 0 < v <= 1)]


def _are_moments(value: object) -> bool:
    if not isinstance(value, Tensor) or value.dtype != torch.float64 or value.shape != (3,):
        return False
    return bool(value.isfinite().all() and value[0] >= 0 and value[2] >= 0)


@dataclasses.dataclass
class _RewardNormalizerState:
    # Decayed count, mean, decayed sum of squared distances from the mean: on the device of the rewards.
    moments: Annotated[Any, Rule("a count, a mean and a sum of squares in float64", _are_moments)] = dataclasses.field(
        default_factory=partial(torch.zeros, 3, dtype=torch.float64)
    )


class RewardNormalizer(TrainerHook):
    """Gives updates `scale * (reward - mean) / std`: [1, 2, 3] becomes [-1, 0, 1].

    The statistics cover all rewards so far; each later training step multiplies the weight of earlier rewards by
    `decay` (TorchRL's `RewardNormalizer`; the deviation is the sample's, divided by count - 1). They come from newly
    collected data, warm-up included, and offline from sampled data. Invalid steps do not count.

    Buffers, statistics of episodes and files keep the raw rewards: on policy the update's rollout changes, otherwise
    each minibatch, by the statistics of that time. An algorithm that sums rewards over several steps (`n_step`) is a
    `ParamsError` when the run starts: a sum can no longer be centred.

    Args:
        decay: weight of the past after each training step; 1 forgets nothing.
        scale: the standard deviation of the result.
        eps: the lower bound of the variance.
    """

    NOT_ON_POLICY = ("process_optim_batch",)
    state_class = _RewardNormalizerState

    def __init__(self, decay: float = 0.999, scale: float = 1.0, eps: float = torch.finfo(torch.float32).eps) -> None:
        self.decay = checked("RewardNormalizer", "decay", decay, Decay)
        self.scale = checked("RewardNormalizer", "scale", scale, PositiveFloat)
        self.eps = checked("RewardNormalizer", "eps", eps, PositiveFloat)
        self.state = _RewardNormalizerState()

    def setup(self, ctx: TrainerContext) -> None:
        """Check that rewards come one by one, else raise a `ParamsError`."""
        if (n_step := getattr(ctx.algorithm, "n_step", 1)) != 1:
            rule, hint = "must be 1", "A sum of rewards has another mean than each of them."
            raise ParamsError.about("RewardNormalizer", "algorithm.n_step", rule, n_step, hint)

    def batch_process(self, ctx: TrainerContext, batch: Rollout | Transitions) -> Any:
        """Add new rewards to the statistics; on policy return the rollout with standardised ones."""
        reward = batch.reward[batch.valid] if isinstance(batch, Rollout) else batch.reward.flatten()
        self.update(reward, ctx.ranks)
        if isinstance(ctx.algorithm, OnPolicyAlgorithm):
            return dataclasses.replace(batch, reward=self(batch.reward))
        return None

    def process_optim_batch(self, ctx: TrainerContext, minibatch: Any) -> Any:
        """Return transitions with standardised rewards; on policy the rollout has them already."""
        return dataclasses.replace(minibatch, reward=self(minibatch.reward))

    @torch.no_grad()
    def update(self, reward: Tensor, ranks: Ranks = ALONE) -> None:
        """Merge the rewards [M] of all ranks into the statistics, which decay before."""
        x = reward.double()
        num_new, new_mean, new_squares = ranks.merged(len(x), x.mean(), (x - x.mean()).square().sum())
        if num_new == 0:
            return
        # West 1979, weighted increments.
        past, mean, squares = self.state.moments.to(x.device).unbind()
        past = self.decay * past
        count, delta = past + num_new, new_mean - mean
        squares = self.decay * squares + new_squares + delta.square() * past * num_new / count
        self.state.moments = torch.stack([count, mean + delta * num_new / count, squares])

    # Without a wait for the device: `clamp_min` stands for the branches on the count and the variance.
    @torch.no_grad()
    def __call__(self, reward: Tensor) -> Tensor:
        """Return standardised rewards, of any shape; zeros where nothing is known of their variance."""
        count, mean, squares = self.state.moments.to(reward.device).unbind()
        std = (squares / (count - 1).clamp_min(self.eps)).clamp_min(self.eps).sqrt()
        standard: Tensor = (self.scale * (reward.double() - mean) / std).to(reward.dtype)
        return standard


OBSERVATIONS = {"obs", "next_obs", "last_obs", "final_obs"}


class SelectKeys(TrainerHook):
    """Keeps only some keys of Dict observations, and some columns of `extra`, in an update's data.

    All other fields stay. Collectors act on whole observations, and buffers store them: only minibatches become
    smaller. On policy and offline later hooks see the selection too, at every point.

    Args:
        obs: the keys of the observation to keep, in its own order; None keeps all.
        extra: columns to keep; None keeps all. Two None, or keys that do not fit the run, are a `ParamsError`.
    """

    NOT_ON_POLICY = ("process_optim_batch",)

    def __init__(self, obs: Sequence[str] | None = None, extra: Sequence[str] | None = None) -> None:
        self.obs = checked("SelectKeys", "obs", obs, Names | None)
        self.extra = checked("SelectKeys", "extra", extra, Names | None)
        if obs is None and extra is None:
            raise ParamsError.about("SelectKeys", "obs", "must be given, or extra", obs)
        if obs is not None and not obs:
            raise ParamsError.about("SelectKeys", "obs", "must name a key", obs, "None keeps all.")

    def setup(self, ctx: TrainerContext) -> None:
        """Check that observations, networks and algorithm have and need no other keys; else raise a `ParamsError`."""
        if self.obs is not None:
            space = ctx.algorithm.policy.observation_space
            if not isinstance(space, spaces.Dict):
                raise ParamsError.about("SelectKeys", "obs", "must be None where observations are no Dict", self.obs)
            _require("obs", self.obs, space.spaces)
            # The keys that an update reads, as far as our networks say; a normaliser of observations reads all.
            networks = [value for value in vars(ctx.algorithm).values() if isinstance(value, nn.Module)]
            encoders = [part for network in networks for part in network.modules() if isinstance(part, Encoder)]
            seen = {ACTION_MASK}.union(*(encoder.structure for encoder in encoders))
            is_normalized = ctx.algorithm.policy.obs_normalizer is not None
            read = [key for key in space.spaces if is_normalized or key in seen]
            _require_kept("obs", self.obs, read, "networks read")
        if self.extra is not None:
            source = getattr(ctx.params, "training_collector", None)
            columns = ctx.algorithm.columns_read(has_stale_data=source is not None and source.has_stale_data)
            _require_kept("extra", self.extra, columns, "its updates read")

    def batch_process(self, ctx: TrainerContext, batch: Rollout | Transitions) -> Any:
        """Return the selection of an update's data; off policy this data is sampled later."""
        is_learned_from = isinstance(ctx.algorithm, OnPolicyAlgorithm) or isinstance(batch, Transitions)
        return self._select(batch) if is_learned_from else None

    def process_optim_batch(self, ctx: TrainerContext, minibatch: Any) -> Any:
        """Return the selection of a minibatch; on policy the whole rollout is selected already."""
        return self._select(minibatch)

    def _select(self, batch: Any) -> Any:
        changes: dict[str, Any] = {}
        if self.extra is not None:
            _require("extra", self.extra, batch.extra)
            changes["extra"] = {name: column for name, column in batch.extra.items() if name in self.extra}
        if self.obs is not None:
            for name in {field.name for field in dataclasses.fields(batch)} & OBSERVATIONS:
                changes[name] = {key: part for key, part in getattr(batch, name).items() if key in self.obs}
        return dataclasses.replace(batch, **changes)


def _require(field: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            rule = f"{name!r} is missing; there are {', '.join(known) or 'none'}"
            raise ParamsError(f"SelectKeys.{field}: {rule}.{did_you_mean(name, known)}")


def _require_kept(field: str, names: Sequence[str], read: Collection[str], reader: str) -> None:
    for name in read:
        if name not in names:
            raise ParamsError(f"SelectKeys.{field}: must keep {name!r}, which {reader}; got {list(names)}")


class BatchSubSampler(TrainerHook):
    """Updates on policy from `batch_size` steps of the rollout, in windows of `sub_traj_len` consecutive steps.

    A window is a part of one env's steps. All windows of the rollout, the last included, are drawn with equal
    probability and without replacement; they may overlap, and extend over the end of an episode, as a rollout does.
    A window that ends within an episode is bootstrapped from the next observation, so advantages look ahead only to
    its end. A rollout with fewer steps or windows is used whole.

    Args:
        batch_size: steps of all minibatches of an update step, a multiple of `sub_traj_len`, else a `ParamsError`.
        sub_traj_len: steps of a window.
        seed: of the draws; None takes the trainer's.
    """

    def __init__(self, batch_size: int, sub_traj_len: int, seed: int | None = None) -> None:
        owner = "BatchSubSampler"
        self.batch_size = checked(owner, "batch_size", batch_size, PositiveInt)
        self.sub_traj_len = checked(owner, "sub_traj_len", sub_traj_len, PositiveInt)
        if batch_size % sub_traj_len:
            rule = f"must be a multiple of sub_traj_len, {sub_traj_len}"
            raise ParamsError.about(owner, "batch_size", rule, batch_size)
        self._own_seed = checked(owner, "seed", seed, NonNegativeInt | None)
        self._generator = make_generator(self._own_seed)

    def setup(self, ctx: TrainerContext) -> None:
        """Check that there are rollouts, and windows in them; else raise a `ParamsError`."""
        if not isinstance(ctx.algorithm, OnPolicyAlgorithm):
            rule, hint = "must be on policy", "A replay buffer samples by itself: sample_sequences draws windows."
            raise ParamsError.about("BatchSubSampler", "algorithm", rule, ctx.algorithm, hint)
        num_steps, num_envs = ctx.params.collection_step_num_env_steps, ctx.params.training_collector.num_envs
        num_rows = None if num_steps is None else -(-num_steps // num_envs)
        if num_rows is not None and self.sub_traj_len > num_rows:
            rule = f"must be at most {num_rows}, the steps of each env in a collection step"
            raise ParamsError.about("BatchSubSampler", "sub_traj_len", rule, self.sub_traj_len)

    def batch_process(self, ctx: TrainerContext, batch: Rollout) -> Rollout:
        """Return the windows [L, W]."""
        num_rows = len(batch.valid)
        length = min(self.sub_traj_len, num_rows)
        # A window starts with a valid step, if there are any; its position is t * N + n.
        starts = batch.valid[: num_rows - length + 1].flatten().cpu()
        starts = starts.nonzero().squeeze(1) if starts.any() else torch.arange(len(starts))
        chosen = torch.randperm(len(starts), generator=self._generator)[: self.batch_size // self.sub_traj_len]
        return windows(batch, starts[chosen].to(batch.valid.device), length)

    def seed(self, seed: int) -> None:
        """Seed the draws, unless it has a seed of its own."""
        reseed(self._generator, "BatchSubSampler", seed if self._own_seed is None else self._own_seed)

    def state_dict(self) -> State:
        """Return the state of the generator."""
        return {"generator": self._generator.get_state()}

    def prepare_load(self, state: State) -> Load:
        """Check the state of the generator."""
        check_generator("BatchSubSampler.generator", self._generator, state.get("generator"))
        return partial(set_generator, self._generator, state["generator"])


def windows(rollout: Rollout, first: Tensor, length: int) -> Rollout:
    """Return windows of a rollout [T, N] as a rollout [length, W].

    `first` [W] int64 has the position t * N + n of the first step of each window; t <= T - length.
    """
    num_rows, num_envs = rollout.valid.shape
    steps = torch.arange(length, device=first.device)
    positions = first + num_envs * steps.unsqueeze(1)  # [L, W]

    def take(tree: Tree) -> Tree:
        return map_tree(lambda x: x.flatten(0, 1)[positions], tree)

    after = positions[-1] + num_envs
    is_last, inside = after >= num_rows * num_envs, after.clamp(max=num_rows * num_envs - 1)

    def follow(here: Tensor, last: Tensor) -> Tensor:
        found = here.flatten(0, 1)[inside]
        found[is_last] = last[after[is_last] % num_envs]
        return found

    # The entry of `final_obs` that belongs to each step of the rollout; -1 where there is none.
    entry = torch.full((num_rows * num_envs,), -1, device=first.device)
    entry[rollout.final_index] = torch.arange(len(rollout.final_index), device=first.device)
    entry = entry[positions].flatten()
    final_index = (entry >= 0).nonzero().squeeze(1)
    names = ("obs", "action", "reward", "terminated", "truncated", "valid", "extra")
    return Rollout(
        **{name: take(getattr(rollout, name)) for name in names},
        last_obs=map_tree(follow, rollout.obs, rollout.last_obs),
        final_obs=map_tree(lambda x: x[entry[final_index]], rollout.final_obs),
        final_index=final_index,
        starts=torch.ones(len(first), dtype=torch.bool, device=first.device),
    )
