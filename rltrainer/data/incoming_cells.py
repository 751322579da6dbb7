"""Cells on their way into a replay buffer: those of a rollout that are valid, or those of another buffer's stream."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rltrainer.data.storage import Array
from rltrainer.spaces import ValueRange
from rltrainer.tree import Tree, leaves, map_tree
from rltrainer.types import Rollout


@dataclass(slots=True)
class Cells:
    """M cells in the time order of their envs, taken out of S values.

    Args:
        columns: by name trees of tensors [S, ...].
        source: [M] int64, where in S each cell is.
        env: [M] int64, the env into whose stream it goes.
        ended: [M] bool, whether a trace ends there, in an episode's end or a boundary.
        final_obs: tree [K, ...], the successors of the cells that ended, in their order.
        last_obs: tree [N, ...], the successor of each env's last cell; not looked at if that cell ended.
    """

    columns: dict[str, Tree]
    source: Array
    env: Array
    ended: Array
    final_obs: Tree
    last_obs: Tree


def cells_of_rollout(rollout: Rollout) -> Cells:
    """Return the valid cells.

    A trace also ends where an invalid cell follows: the next cell of that env does not hold the successor. But not
    where nothing but idle cells follow, which hold it until the env goes on.
    """
    valid = to_array(rollout.valid)
    source = np.flatnonzero(valid)
    ended = to_array(rollout.ends).reshape(-1)[source]
    last_obs = rollout.last_obs
    if len(source) < valid.size and (idle := to_array(rollout.idle))[-1].any():
        goes_on = np.zeros_like(idle)
        goes_on[:-1] = idle[1:] & ~to_array(rollout.done)[:-1]
        goes_on.reshape(-1)[to_array(rollout.final_index)] = False
        ended &= ~goes_on.reshape(-1)[source]
        rows = torch.from_numpy((~idle).sum(0)), torch.arange(idle.shape[1])  # of what each env saw last
        last_obs = map_tree(lambda x, last: torch.cat([x, last.unsqueeze(0)])[rows], rollout.obs, last_obs)
    names = ("obs", "action", "reward", "terminated", "truncated", "extra")
    columns = {name: map_tree(lambda x: x.flatten(0, 1), getattr(rollout, name)) for name in names}
    at = torch.from_numpy(source[ended]).to(rollout.reward.device)
    final_obs = map_tree(lambda x: x.flatten(0, 1).index_select(0, at), rollout.next_obs)
    return Cells(columns, source, source % valid.shape[1], ended, final_obs, last_obs)


def outside_text(name: str, values: ValueRange, array: Array, axes: tuple[str, ...]) -> str:
    """Say which value is the first that lies outside its space.

    Args:
        name: what the text begins with.
        values: the space.
        array: [..., *shape], some of it outside.
        axes: what the leading axes count, such as `("row", "env")`.
    """
    at = tuple(np.argwhere(values.outside(array))[0].tolist()[: len(axes)])
    where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=True))
    return f"{name}: must lie in {values.space}; {where} is {array[at].tolist()!r}"


def to_array(value: Array | Tensor) -> Array:
    """Return a tensor's values on the host; arrays, and whatever else NumPy understands, as they are."""
    if type(value) is np.ndarray:
        return value
    return value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def differ(tree: Tree, other: Tree) -> Tensor:
    """Return which of the values of two trees [M, ...] differ in any leaf, [M] bool on the first one's device."""
    pairs = zip(leaves(tree), leaves(other), strict=True)
    differs = [(a != b.to(a.device, a.dtype)).reshape(len(a), a.shape[1:].numel()).any(1) for a, b in pairs]
    return torch.stack(differs).any(0)


def count_up(counts: Array) -> Array:
    """Return 0, 1, 2, ... up to each count, one after the other."""
    first: Array = np.repeat(np.cumsum(counts) - counts, counts)
    return np.arange(len(first)) - first
