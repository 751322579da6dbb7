"""Learning on policy from parts of a rollout: windows of consecutive steps."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from rltrainer.algorithms import OnPolicyAlgorithm
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.seeding import check_generator, make_generator, reseed, set_generator
from rltrainer.state.typed_state import from_state
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Load, Rollout, State
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, checked


class BatchSubSampler(TrainerHook):
    """Updates on policy from `batch_size` cells of the rollout, in windows of `sub_traj_len` consecutive steps.

    A window is what one env did; every one of them is drawn with equal probability, the last one of the rollout too,
    and none twice. Windows may overlap, and go on over the end of an episode, as a rollout does. Where a window ends
    within an episode, the observation that followed is bootstrapped from, so that advantages look ahead no further
    than their window's end. Of a rollout with fewer steps or windows all that there is is taken.

    Args:
        batch_size: cells of an update step, a multiple of `sub_traj_len`. Those of its minibatches are the trainer's.
        sub_traj_len: steps of a window.
        seed: of what is drawn; None leaves it to the trainer's.

    Raises:
        ParamsError: an argument breaks its rule; or the algorithm is not on policy, or a collection step has
            fewer steps of each env than a window.
    """

    def __init__(self, batch_size: int, sub_traj_len: int, seed: int | None = None) -> None:
        owner = "BatchSubSampler"
        self.batch_size = checked(owner, "batch_size", batch_size, PositiveInt)
        self.sub_traj_len = checked(owner, "sub_traj_len", sub_traj_len, PositiveInt)
        if batch_size % sub_traj_len:
            rule = f"must be a multiple of sub_traj_len, {sub_traj_len}"
            raise ParamsError(field_error_text(owner, "batch_size", rule, batch_size))
        self._own_seed = checked(owner, "seed", seed, NonNegativeInt | None)
        self._generator = make_generator(self._own_seed)

    def setup(self, ctx: TrainerContext) -> None:
        """Check that there are rollouts, and windows in them."""
        if not isinstance(ctx.algorithm, OnPolicyAlgorithm):
            rule = "must be on policy"
            hint = "A replay buffer samples by itself: sample_sequences draws windows."
            raise ParamsError(field_error_text("BatchSubSampler", "algorithm", rule, ctx.algorithm, hint))
        num_steps, num_envs = ctx.params.collection_step_num_env_steps, ctx.params.training_collector.num_envs
        num_rows = None if num_steps is None else -(-num_steps // num_envs)
        if num_rows is not None and self.sub_traj_len > num_rows:
            rule = f"must be at most {num_rows}, the steps of each env in a collection step"
            raise ParamsError(field_error_text("BatchSubSampler", "sub_traj_len", rule, self.sub_traj_len))

    def batch_process(self, ctx: TrainerContext, batch: Rollout) -> Rollout:
        """Return the windows [L, W]."""
        num_rows = len(batch.valid)
        length = min(self.sub_traj_len, num_rows)
        # A window begins with a cell that counts, if any does; t * N + n of its first cell.
        starts = batch.valid[: num_rows - length + 1].flatten().cpu()
        starts = starts.nonzero().squeeze(1) if starts.any() else torch.arange(len(starts))
        chosen = torch.randperm(len(starts), generator=self._generator)[: self.batch_size // self.sub_traj_len]
        return windows(batch, starts[chosen].to(batch.valid.device), length)

    def seed(self, seed: int) -> None:
        """Seed what is drawn, unless it has a seed of its own."""
        reseed(self._generator, "BatchSubSampler", seed if self._own_seed is None else self._own_seed)

    def state_dict(self) -> State:
        """Return the state of the generator."""
        return {"generator": self._generator.get_state()}

    def prepare_load(self, state: State) -> Load:
        """Check it, and return what goes on with it."""
        name = type(self).__name__
        found = from_state(BatchSubSamplerState, state, name)
        check_generator(f"{name}.generator", self._generator, found.generator)
        return lambda: set_generator(self._generator, found.generator)


@dataclasses.dataclass
class BatchSubSamplerState:
    """State of a `BatchSubSampler`."""

    generator: Any


def windows(rollout: Rollout, first: Tensor, length: int) -> Rollout:
    """Return windows of a rollout [T, N] as a rollout [length, W].

    Args:
        rollout: what they are taken of.
        first: [W] int64, the first cell t * N + n of each; t <= T - length.
        length: steps of each.
    """
    num_rows, num_envs = rollout.valid.shape
    steps = torch.arange(length, device=first.device)
    cells = first + num_envs * steps.unsqueeze(1)  # [L, W]

    def take(tree: Tree) -> Tree:
        return map_tree(lambda x: x.flatten(0, 1)[cells], tree)

    after = cells[-1] + num_envs
    is_last, inside = after >= num_rows * num_envs, after.clamp(max=num_rows * num_envs - 1)

    def follow(here: Tensor, last: Tensor) -> Tensor:
        found = here.flatten(0, 1)[inside]
        found[is_last] = last[after[is_last] % num_envs]
        return found

    # Which entry of `final_obs` belongs to a cell of the rollout; -1: none does.
    entry = torch.full((num_rows * num_envs,), -1, device=first.device)
    entry[rollout.final_index] = torch.arange(len(rollout.final_index), device=first.device)
    entry = entry[cells].flatten()
    final_index = (entry >= 0).nonzero().squeeze(1)
    names = ("obs", "action", "reward", "terminated", "truncated", "valid", "extra")
    return Rollout(
        **{name: take(getattr(rollout, name)) for name in names},
        last_obs=map_tree(follow, rollout.obs, rollout.last_obs),
        final_obs=map_tree(lambda x: x[entry[final_index]], rollout.final_obs),
        final_index=final_index,
        starts=torch.ones(len(first), dtype=torch.bool, device=first.device),
    )
