"""The data that rooms exchange: `Transitions` [B] sampled from a buffer, a `Rollout` [T, N], an `UpdateResult`."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rltrainer.functional.means import Part, floats, merge
from rltrainer.tree import Tree, map_tree
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt

State = dict[str, Any]
"""A `state_dict`: tensors, numbers, strings, booleans and None, in dicts with string keys and in lists."""
Load = Callable[[], None]
"""Loads a state that `prepare_load` has checked as a whole, and cannot fail."""


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor, of any shape, to a device; do not wait for it if that is safe."""
    # Pageable memory has been read when the call returns, so nothing needs to wait; pinned memory has not.
    waits = device.type != "cuda" or not x.is_cpu or x.is_pinned()
    return x.to(device, non_blocking=not waits)


@dataclass(slots=True)
class Transitions:
    """A batch of transitions; every field has the batch axes first: [B], or [K, B] for K gradient steps in order.

    Args:
        obs: observations, a tree [B, ...].
        action: as the env received it [B, ...].
        reward: [B] float32; with n steps their discounted sum.
        next_obs: the true successor (after n steps), never the first observation of the next episode.
        terminated: [B] bool; the MDP ended, so nothing is bootstrapped.
        truncated: [B] bool; a time limit ended the episode, which bootstraps as usual.
        discount: [B] float32, gamma^k * (not terminated): the factor of a bootstrapped value.
        index: [B] int64, the rows in their buffer.
        weight: [B] float32, importance weights; 1 where sampling is uniform, 0 for padding.
        extra: further tensors declared by the buffer.
    """

    obs: Tree
    action: Tensor
    reward: Tensor
    next_obs: Tree
    terminated: Tensor
    truncated: Tensor
    discount: Tensor
    index: Tensor
    weight: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)

    num_axes: ClassVar[int] = 1
    """Axes of a batch for one gradient step."""

    def __getitem__(self, key: Any) -> Self:
        """Index the leading axis of every field."""
        return self._map(lambda leaf: leaf[key])

    def reshape(self, *shape: int) -> Self:
        """Arrange the leading axis of every field in this shape."""
        return self._map(lambda leaf: leaf.unflatten(0, shape))

    def to(self, device: torch.device | str) -> Self:
        """Copy to a device; return itself if it is there already."""
        target = torch.device(device)
        return self if self.reward.device == target else self._map(lambda leaf: to_device(leaf, target))

    @classmethod
    def stack(cls, batches: "list[Self]") -> Self:
        """Stack K batches [B] into one [K, B]."""
        return cls.combine(lambda *x: torch.stack(x), batches)

    @classmethod
    def combine(cls, function: Callable[..., Tensor], batches: "list[Self]") -> Self:
        """Make one batch of several [B, ...] by a function of all their tensors at the same place."""
        columns = {f.name: [getattr(batch, f.name) for batch in batches] for f in dataclasses.fields(cls)}
        return cls(**{name: map_tree(function, *trees) for name, trees in columns.items()})

    def _map(self, function: Any) -> Self:
        names = (f.name for f in dataclasses.fields(self))
        return type(self)(**{name: map_tree(function, getattr(self, name)) for name in names})


@dataclass(slots=True, kw_only=True)
class Sequences(Transitions):
    """Transitions that follow each other, every field [T, B, ...], or [K, T, B, ...] for K gradient steps.

    T is the burn-in, which brings a memory up to date, and the trained length. If a trajectory starts or
    ends within them, its first or last transition is repeated, with weight 0. `extra["state"]` [B, ...], if the buffer
    has it, is the memory before the first action. Memory starts again before the transitions that `first` [T, B] marks.
    """

    first: Tensor
    num_axes: ClassVar[int] = 2

    def row(self, time: int) -> Transitions:
        """Return the transitions [B], or [K, B], of a row, without `extra`."""
        names = {field.name for field in dataclasses.fields(Transitions)} - {"extra"}
        axis = self.reward.dim() - 2
        return Transitions(**{name: map_tree(lambda x: x.select(axis, time), getattr(self, name)) for name in names})


@dataclass(slots=True)
class Rollout:
    """The steps of one collection, in time order: T time steps of N envs.

    Each observation is held once. The successor of a step is the next row's observation; at the end of a trajectory it
    is in `final_obs`.

    Args:
        obs: tree [T, N, ...].
        action: [T, N, ...], as sampled on policy (unclipped), as the env received it off policy.
        reward: [T, N] float32.
        terminated, truncated: [T, N] bool.
        valid: [T, N] bool; False where an env spent the step on its reset, was restarted after a failure, was past its
            quota of episodes, or took fewer steps than others: then it holds still, at its last observation.
        last_obs: tree [N, ...], the successor of the last row.
        final_obs: tree [K, ...], the successors of the K steps that end an episode or its trajectory.
        final_index: [K] int64, these steps as t * N + n.
        starts: [N] bool, True where an env's first row does not continue the rollout before.
        extra: further tensors [T, N, ...] declared by the buffer.
    """

    obs: Tree
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    last_obs: Tree
    final_obs: Tree
    final_index: Tensor
    starts: Tensor
    extra: dict[str, Tensor] = field(default_factory=dict)

    @property
    def done(self) -> Tensor:
        """Return where an episode ended [T, N]."""
        return self.terminated | self.truncated

    @property
    def ends(self) -> Tensor:
        """Return where a trajectory ended: with an episode, at a boundary, before a step without transition [T, N]."""
        ends = self.done
        if len(self.final_index):
            ends.view(-1)[self.final_index] = True
        # The observation of a step without a transition belongs to another episode or to a restarted env.
        ends[:-1].logical_or_(~self.valid[1:])
        return ends

    @property
    def begins(self) -> Tensor:
        """Return where a policy's memory starts again [T, N], below the first row; that row's memory is in `extra`."""
        begins = torch.zeros_like(self.terminated)
        begins[1:] = (self.done | ~self.valid)[:-1]
        return begins

    @property
    def idle(self) -> Tensor:
        """Return the steps at the end of an env's column without a transition or an end [T, N]."""
        happens = (self.valid | self.done).flip(0).to(torch.int32)
        return happens.cummax(0).values.flip(0) == 0

    @property
    def next_obs(self) -> Tree:
        """The true successors, a tree [T, N, ...]; built at each call."""
        return self.successors(self.obs, self.last_obs, self.final_obs)

    def successors_at(self, index: Tensor) -> Tree:
        """Return the true successors of steps t * N + n [K], a tree [K, ...]."""
        num_envs, num_steps = self.reward.shape[1], self.reward.numel()
        place = torch.full_like(self.reward, -1, dtype=torch.int64).flatten()
        place[self.final_index] = torch.arange(len(self.final_index), device=place.device)
        final, after = place[index], index + num_envs
        is_final, is_last = final >= 0, after >= num_steps

        def pick(here: Tensor, of_last: Tensor, of_final: Tensor) -> Tensor:
            found = here.flatten(0, 1)[after.clamp(max=num_steps - 1)]
            found[is_last] = of_last[index[is_last] % num_envs]
            found[is_final] = of_final[final[is_final]]
            return found

        return map_tree(pick, self.obs, self.last_obs, self.final_obs)

    def of_one_shape(self) -> Self:
        """Return it with shapes that do not depend on the data, if it has such a form: see `DenseRollout`."""
        return self

    def valid_cells(self, tree: Tree) -> Tree:
        """Return the valid steps of a tree [T, N, ...] as [M, ...], time first."""
        index = None if bool(self.valid.all()) else self.valid.flatten().nonzero().squeeze(-1)
        return map_tree(lambda x: x.flatten(0, 1) if index is None else x.flatten(0, 1).index_select(0, index), tree)

    def all_obs(self) -> Tree:
        """Return `obs`, `last_obs` and `final_obs` one after another, a tree [T * N + N + K, ...]."""
        flat = map_tree(lambda x: x.flatten(0, 1), self.obs)
        return map_tree(lambda *x: torch.cat(x), flat, self.last_obs, self.final_obs)

    def by_step(self, of_all_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Arrange values of `all_obs` by step, and by the successor of each step, both [T, N]."""
        shape = self.reward.shape
        value, last, final = torch.split(of_all_obs, [shape.numel(), shape[1], len(self.final_index)])
        value = value.view(shape)
        return value, self.successors(value, last, final)

    def successors(self, of_obs: Tree, of_last_obs: Tree, of_final_obs: Tree) -> Tree:
        """Arrange values of each step's successor [T, N, ...], such as the outputs of a value network.

        The values of `obs`, `last_obs` and `final_obs` are trees [T, N, ...], [N, ...] and [K, ...].
        """

        def shift(here: Tensor, last: Tensor, final: Tensor) -> Tensor:
            after = torch.cat([here[1:], last.unsqueeze(0)])
            if len(self.final_index):
                after.flatten(0, 1)[self.final_index] = final
            return after

        return map_tree(shift, of_obs, of_last_obs, of_final_obs)


@dataclass(slots=True, kw_only=True)
class DenseRollout(Rollout):
    """A rollout of envs of tensors, which return every step's successor; its trajectories end with episodes only.

    Args:
        successor: tree [T, N, ...], the successors of all steps. Their shape is always the same.
        final_index: [K] int64, the steps that end an episode; it may name steps that end none, too.
    """

    successor: Tree

    @property
    def ends(self) -> Tensor:
        """Return where a trajectory ended [T, N]: with its episode."""
        return self.done

    @property
    def next_obs(self) -> Tree:
        """The true successors, a tree [T, N, ...]."""
        return self.successor

    def successors_at(self, index: Tensor) -> Tree:
        """Return the true successors of the steps t * N + n [K], a tree [K, ...]."""
        return map_tree(lambda x: x.flatten(0, 1)[index], self.successor)

    def valid_cells(self, tree: Tree) -> Tree:
        """Return the steps of a tree [T, N, ...] as [T * N, ...], time first: all are valid."""
        return map_tree(lambda x: x.flatten(0, 1), tree)

    def of_one_shape(self) -> Self:
        """Return it with a fixed number of final observations, for compiled code.

        The number is a sixteenth of the steps, or all steps if more episodes ended.
        """
        num_steps, index = self.reward.numel(), self.final_index
        if len(index) > num_steps // 16 or num_steps < 16:
            return self._with_finals(torch.arange(num_steps, device=index.device))
        # The first step fills the rest: writing its successor twice changes nothing.
        return self._with_finals(torch.cat([index, index.new_zeros(num_steps // 16 - len(index))]))

    def plain(self) -> Rollout:
        """Return it as any other rollout [T, N], for code that may change it."""
        whole = self._with_finals(self.done.flatten().nonzero().squeeze(1))
        return Rollout(**{field.name: getattr(whole, field.name) for field in dataclasses.fields(Rollout)})

    def _with_finals(self, index: Tensor) -> Self:
        final_obs = map_tree(lambda x: x.flatten(0, 1).index_select(0, index), self.successor)
        return dataclasses.replace(self, final_obs=final_obs, final_index=index)


@dataclass(slots=True)
class UpdateResult:
    """The outcome of an update, or of one gradient step of it.

    Args:
        metrics: losses and other numbers to log; scalar tensors or floats, means over the gradient steps.
        num_gradient_steps: how many gradient steps were taken.
        td_error: [B] or [K, B], `target - prediction` for prioritised replay; None if there is none.
        counts: how many gradient steps reported a metric that not all of them did (a delayed actor's loss).
    """

    metrics: dict[str, Tensor | float] = field(default_factory=dict)
    num_gradient_steps: NonNegativeInt = 1
    td_error: Tensor | None = None
    counts: dict[str, PositiveInt] = field(default_factory=dict)

    @classmethod
    def mean(cls, parts: "list[UpdateResult]") -> "UpdateResult":
        """Merge results into one; each metric is the mean over all gradient steps that reported it."""
        if len(parts) == 1 and parts[0].td_error is None:  # one gradient step per env step, most often
            return parts[0]
        # Weighted by gradient steps, so that means of means are the mean over all steps.
        merged = merge([Part(part.metrics, part.num_gradient_steps, {**part.counts}) for part in parts])
        errors = [part.td_error for part in parts if part.td_error is not None]
        return cls(
            metrics=dict(merged.values),
            num_gradient_steps=int(merged.weight),
            td_error=torch.stack(errors) if errors and len(errors) == len(parts) else None,
            counts={name: int(count) for name, count in merged.weights.items()},
        )

    def floats(self) -> dict[str, float]:
        """Return the metrics as floats; waits for the device."""
        return floats(self.metrics)
