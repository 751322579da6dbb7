"""Writing one step of all envs into a buffer's columns: what a buffer does once per env step."""

from typing import Any

import numpy as np

from rltrainer.data.incoming_cells import outside_text, to_array
from rltrainer.data.storage import Storage, matching_leaves
from rltrainer.errors import SpaceError
from rltrainer.spaces import ValueRange
from rltrainer.tree import Tree


class RowWriter:
    """Writes a row of every column, or, where any value does not fit, nothing.

    Args:
        columns: the buffer's `obs, action, reward, terminated, truncated, extra`.
        actions: what actions must lie in; None for samples, which may lie outside.
    """

    def __init__(self, columns: dict[str, Storage], actions: ValueRange | None = None) -> None:
        self._actions, self._action_name = actions, columns["action"].name
        self._action_at = len(columns["obs"].leaves)
        self._obs, self._extra = columns["obs"], columns["extra"]
        self._is_plain = not isinstance(self._obs.specs, dict | tuple) and not self._extra.leaves
        names = ("obs", "action", "reward", "terminated", "truncated", "extra")
        here = [leaf for name in names for leaf in columns[name].leaves]
        self._leaves = [(leaf, 0) for leaf in here] + [(leaf, 1) for leaf in self._obs.leaves]  # 1: of the row after

    def write(
        self, at: Any, obs: Tree, action: Any, reward: Any, next_obs: Tree, terminated: Any, truncated: Any, extra: Any
    ) -> None:
        """Write one row, and its successors into another; see `ReplayBuffer.add`.

        Args:
            at: the row, and that of the successors, both as a number or as a tuple (rows, envs) of index arrays.
            obs, action, reward, next_obs, terminated, truncated, extra: see there.
        """
        values: tuple[Any, ...] = (obs, action, reward, terminated, truncated, next_obs)
        if not self._is_plain or extra is not None:
            extras = _values(self._extra, {} if extra is None else extra)
            flags = (terminated, truncated)
            values = (*_values(self._obs, obs), action, reward, *flags, *extras, *_values(self._obs, next_obs))
        accepted = [
            # The fast way of `accept`, spelled out: this is done for every leaf at every env step.
            value
            if type(value) is np.ndarray and value.dtype is leaf.dtype and value.shape == leaf.row_shape
            else leaf.accept(value)
            for (leaf, _), value in zip(self._leaves, values, strict=True)
        ]
        if self._actions is not None:
            env_action = action if type(action) is np.ndarray else to_array(accepted[self._action_at])
            if not self._actions.holds(env_action):
                raise SpaceError(outside_text(self._action_name, self._actions, env_action, ("env",)))
        for (leaf, k), value in zip(self._leaves, accepted, strict=True):
            leaf.target[at[k]] = value


def _values(column: Storage, tree: Tree) -> tuple[Any, ...]:
    return tuple(value for _, value in matching_leaves(column.specs, tree, column.name))
