"""Cells on their way into a replay buffer: those of a rollout that are valid, or those of another buffer's stream."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rltrainer.data.storage import Array
from rltrainer.spaces import ValueRange
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Rollout


@dataclass(slots=True)
class Cells:
    """M cells in the time order of their envs, taken out of S values.

    Args:
        columns: by name trees of tensors [S, ...].
        source: [M] int64, where in S each cell is.
        env: [M] int64, the env into whose stream it goes.
        rank: [M] int64, its number among the cells of its env: 0, 1, 2, ...
        ended: [M] bool, whether a trace ends there, in an episode's end or a boundary.
        final_obs: tree [K, ...], the successors of the cells that ended, in their order.
        last_obs: tree [N, ...], the successor of each env's last cell; not looked at if that cell ended.
    """

    columns: dict[str, Tree]
    source: Array
    env: Array
    rank: Array
    ended: Array
    final_obs: Tree
    last_obs: Tree


def cells_of_rollout(rollout: Rollout) -> Cells:
    """Return the valid cells.

    A trace also ends where an invalid cell follows: the next cell of that env does not hold the successor.
    """
    valid, done = to_array(rollout.valid), to_array(rollout.done)
    num_envs = valid.shape[1]
    final_row = np.full(valid.size, -1)
    final_row[to_array(rollout.final_index)] = np.arange(len(rollout.final_index))
    goes_on = np.ones_like(valid)
    goes_on[:-1] = valid[1:]
    source = np.flatnonzero(valid)
    ended = (done | ~goes_on).reshape(-1)[source] | (final_row[source] >= 0)
    rank = (np.cumsum(valid, axis=0) - 1).reshape(-1)[source]
    names = ("obs", "action", "reward", "terminated", "truncated", "extra")
    columns = {name: map_tree(lambda x: x.flatten(0, 1), getattr(rollout, name)) for name in names}
    at = source[ended]

    def successor(obs: Tensor, last: Tensor, final: Tensor) -> Tensor:
        after = torch.from_numpy(at + num_envs).to(obs.device)
        is_last = after >= len(obs)
        value = obs.index_select(0, after.clamp(max=len(obs) - 1))
        value[is_last] = last[after[is_last] - len(obs)]
        row = torch.from_numpy(final_row[at]).to(obs.device)
        value[row >= 0] = final[row[row >= 0]]
        return value

    final_obs = map_tree(successor, columns["obs"], rollout.last_obs, rollout.final_obs)
    return Cells(columns, source, source % num_envs, rank, ended, final_obs, rollout.last_obs)


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
