"""Transitions for a ring that come from logged arrays, or from another ring."""

import logging
from bisect import bisect_right
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.ring import NewTransitions, Ring, count_up, differ
from rltrainer.data.storage import Array, Spec, column_specs, described, matching_leaves, outside_text
from rltrainer.errors import ReplayBufferError, SpaceError
from rltrainer.spaces import Space, ValueRange
from rltrainer.tree import Tree, leaves, map_tree, rebuild

OWNER = "ReplayBuffer.from_arrays"
# The buffer's columns by the names of its arguments.
COLUMNS = {
    "observations": "obs", "actions": "action", "rewards": "reward", "terminations": "terminated",
    "truncations": "truncated",
}  # fmt: skip
CHUNK_SIZE = 65536
"""Transitions that are copied at once where a whole buffer is read."""


def transitions_from_arrays(
    observation_space: Space, action_space: Space, columns: tuple[Any, ...], next_observations: Tree | None
) -> NewTransitions:
    """Check logged data [M, ...], in the order of `COLUMNS`, and find each row's successor.

    See `ReplayBuffer.from_arrays`, for errors too.
    """
    specs = column_specs(OWNER, observation_space, action_space, {})
    found: dict[str, Any] = {"extra": {}}
    num_rows = 0
    for (name, column), values in zip(COLUMNS.items(), columns, strict=True):
        found[column] = _tensors(name, specs[column], values, num_rows)
        num_rows = len(leaves(found["obs"])[0])
        if num_rows == 0:
            raise ReplayBufferError(f"{OWNER}: observations: must hold at least one row; got 0")
    obs, terminated, truncated = (found[column] for column in ("obs", "terminated", "truncated"))
    if next_observations is not None:
        after = _tensors("next_observations", specs["obs"], next_observations, num_rows)
        ended = terminated | truncated
        # A row ends its trajectory if its successor is not the next row: logs of several episodes have no other mark.
        ended[:-1] |= differ(map_tree(lambda x: x[:-1], after), map_tree(lambda x: x[1:], obs))
        kept, final_row = torch.arange(num_rows), ended.nonzero().squeeze(1)
    else:
        after = obs
        is_last = torch.arange(num_rows) == num_rows - 1
        is_unknown = ~terminated & (truncated | is_last)
        num_unknown = int(is_unknown.sum())
        if num_unknown == num_rows:
            text = f"none of the {num_rows} transitions has a known successor. Pass next_observations."
            raise ReplayBufferError(f"{OWNER}: {text}")
        if num_unknown:
            text = "from_arrays: %d of %d transitions have no known successor and are left out"
            logging.getLogger("rltrainer").warning(text, num_unknown, num_rows)
        kept = (~is_unknown).nonzero().squeeze(1)
        # Before a row that is left out the trajectory ends: that row's observation is still the successor.
        ended = terminated | torch.cat([is_unknown[1:], is_last[-1:]])
        at = kept[ended[kept]]
        # Nothing is bootstrapped from a terminated row, so any observation will do.
        final_row = torch.where(terminated[at], at, at + 1)
    final_obs, last_obs = map_tree(lambda x: x[final_row], after), map_tree(lambda x: x[-1:], after)
    return NewTransitions(found, kept.numpy(), np.zeros(len(kept), np.int64), ended[kept].numpy(), final_obs, last_obs)


def _tensors(name: str, specs: Tree, values: Tree, num_rows: int) -> Tree:
    """Return the leaves as checked tensors of the stored dtype; the first one sets `num_rows` if that is 0."""
    found: list[Tensor] = []
    for spec, (path, value) in zip(leaves(specs), matching_leaves(specs, values, f"{OWNER}: {name}"), strict=True):
        tensor = _leaf(path, spec, value)
        num_rows = num_rows or len(tensor)
        if len(tensor) != num_rows:
            raise ReplayBufferError(f"{path}: expected {num_rows} rows, as observations have, got {len(tensor)}")
        if spec.space is not None and (name == "actions" or not isinstance(spec.space, gym.spaces.Box)):
            inside = ValueRange(spec.space)
            if not inside.holds(tensor.numpy()):
                raise SpaceError(outside_text(path, inside, tensor.numpy(), ("row",)))
        found.append(tensor)
    return rebuild(specs, found)


def _leaf(path: str, spec: Spec, value: Any) -> Tensor:
    try:
        # torch warns where it shares a read-only array, such as a memory map.
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        tensor = torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())
    except (TypeError, ValueError) as error:
        text = f"expected an array or tensor of numbers, got {type(value).__name__}"
        raise ReplayBufferError(f"{path}: {text}") from error
    is_flag = spec.dtype == torch.bool and spec.space is None  # numbers are accepted if they are 0 and 1
    is_castable = is_flag or torch.can_cast(tensor.dtype, spec.dtype)
    if tensor.ndim == 0 or tuple(tensor.shape[1:]) != spec.shape or not is_castable:
        expected = described(spec.dtype, ("M", *spec.shape)).replace("'", "")
        raise SpaceError(f"{path}: expected {expected}, got {described(tensor.dtype, tuple(tensor.shape))}")
    stored = tensor.to(spec.dtype)
    if is_flag:
        _refuse_rows(path, (tensor != 0) & (tensor != 1), tensor, "must be True or False", ReplayBufferError)
    elif stored.is_floating_point():
        _refuse_rows(path, ~torch.isfinite(stored), tensor, "must be finite", ReplayBufferError)
    elif tensor.dtype != spec.dtype:
        # PyTorch does not compare signed with unsigned numbers.
        _refuse_rows(path, torch.from_numpy(stored.numpy() != tensor.numpy()), tensor, spec.rule, SpaceError)
    return stored


def _refuse_rows(path: str, is_bad: Tensor, values: Tensor, rule: str, error: type[Exception]) -> None:
    if bool(is_bad.any()):
        row = int(is_bad.nonzero()[0, 0])
        raise error(f"{path}: {rule}; row {row} is {values[row].tolist()!r}")


def append(source: Ring, target: Ring, caller: str) -> None:
    """Append the newest transitions of a ring to another one, which forgets its oldest; log how many do not fit."""
    capacity = target.env_capacity * target.num_envs
    if (num_left_out := len(source) - capacity) > 0:
        text = "%s: %d of %d transitions do not fit into a capacity of %d and are left out; the newest are kept"
        logging.getLogger("rltrainer").warning(text, caller, num_left_out, len(source), capacity)
    copy_transitions(source, target, *_lay_out(source, target, capacity))


def copy_transitions(source: Ring, target: Ring, slots: Array, env: Array, ended: Array) -> None:
    """Append transitions of a ring, at slots [M], oldest first, to envs [M] of another one of the same columns."""
    # They are trajectories of their own, which end where `ended` [M] says.
    target.end_trajectory(None)
    columns = {name: column.flat for name, column in source.columns.items()}
    for start in range(0, len(slots), CHUNK_SIZE):
        chunk, to, ends = (x[start : start + CHUNK_SIZE] for x in (slots, env, ended))
        last = np.zeros(target.num_envs, np.int64)
        last[to] = chunk  # of several assignments to an env the last one stays
        final_obs, last_obs = (source.stored_successors(source.on_device(at)) for at in (chunk[ends], last))
        kept, origin = target.store(NewTransitions(columns, chunk, to, ends, final_obs, last_obs))
        if target.sampler is not None and source.sampler is not None and origin is not None:
            target.sampler.copied(target.on_device(kept), source.sampler, source.on_device(origin))
    target.end_trajectory(None)


def _lay_out(source: Ring, target: Ring, capacity: int) -> tuple[Array, Array, Array]:
    """Return the newest slots [M], oldest first, the envs that each goes to, and whether a trajectory ends there."""
    kept = newest(source.sizes(), capacity)
    remaining = newest(target.sizes(), capacity - int(kept.sum()))
    if source.num_envs == target.num_envs and (kept + remaining <= target.env_capacity).all():
        # Nothing is lost if each env's transitions go to the same env.
        slots = np.concatenate([source.newest_slots(env, size) for env, size in enumerate(kept.tolist())])
        env, length = np.arange(source.num_envs), kept
    else:  # whole trajectories go to the env that holds the fewest, and are split where it is full
        slots, lengths = _by_trajectory(source, kept)
        env, length = _place(lengths, remaining, target.env_capacity)
    ended = source.final.index.reshape(-1)[slots] > 0
    ended[np.cumsum(length)[length > 0] - 1] = True
    return slots, np.repeat(env, length), ended


def newest(sizes: Array, count: int) -> Array:
    """Return how many of its newest transitions each env keeps [N], if all envs together keep the newest `count`."""
    if int(sizes.sum()) <= count:
        return sizes
    rows = bisect_right(range(int(sizes.max())), count, key=lambda n: int(np.minimum(sizes, n).sum())) - 1
    kept = np.minimum(sizes, rows)
    kept[np.flatnonzero(sizes > rows)[: count - int(kept.sum())]] += 1
    return kept


def _by_trajectory(ring: Ring, kept: Array) -> tuple[Array, Array]:
    """Return the slots that are kept [M], in the order in which their trajectories ended, and all lengths."""
    index = ring.final.index.reshape(-1)
    by_env, lengths, ages = [], [], []
    for env, size in enumerate(kept.tolist()):
        slots = ring.newest_slots(env, size)
        ends = np.union1d(np.flatnonzero(index[slots]), [size - 1] if size else [])
        by_env.append(slots)
        lengths.append(np.diff(ends, prepend=-1))
        ages.append(size - ends)
    slots, length, age = np.concatenate(by_env), np.concatenate(lengths), np.concatenate(ages)
    length = length.astype(np.int64)
    order = np.argsort(-age, kind="stable")
    first = (np.cumsum(length) - length)[order]
    return slots[np.repeat(first, length[order]) + count_up(length[order])], length[order]


def _place(lengths: Array, filled: Array, limit: int) -> tuple[Array, Array]:
    """Return the env and the length of each piece of the trajectories, given how full the envs are."""
    filled, pieces = filled.copy(), []
    for left in lengths.tolist():
        while left:
            env = int(filled.argmin())
            piece = min(left, limit - int(filled[env]))
            pieces.append((env, piece))
            filled[env] += piece
            left -= piece
    placed = np.array(pieces, np.int64).reshape(-1, 2)
    return placed[:, 0], placed[:, 1]
