"""Logged data of one stream as cells of a replay buffer: checked, and with every successor known."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.data.columns import column_specs
from rltrainer.data.incoming_cells import Cells, differ, outside_text
from rltrainer.data.storage import Spec, matching_leaves
from rltrainer.errors import ReplayBufferError, SpaceError
from rltrainer.spaces import ValueRange, leaf_spaces
from rltrainer.tree import Tree, leaves, map_tree, rebuild

OWNER = "ReplayBuffer.from_arrays"
REWARDS = spaces.Box(-np.inf, np.inf, (), np.float32)


def cells_from_arrays(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    columns: tuple[Tree, Any, Any, Any, Any],
    next_observations: Tree | None,
) -> Cells:
    """Check logged data and work out each row's successor; see `ReplayBuffer.from_arrays`, for what it raises too.

    Args:
        observation_space, action_space: of one env.
        columns: observations, actions, rewards, terminations, truncations.
        next_observations: None if the successors are the next rows.
    """
    specs = column_specs(OWNER, observation_space, action_space, {})
    observations, actions, rewards, terminations, truncations = columns
    obs = _tensors("observations", specs["obs"], observations, observation_space)
    num_rows = len(leaves(obs)[0])
    if num_rows == 0:
        raise ReplayBufferError(f"{OWNER}: observations: must hold at least one row; got 0")
    action = _tensors("actions", specs["action"], actions, action_space, num_rows, in_bounds=True)
    reward = _tensors("rewards", specs["reward"], rewards, REWARDS, num_rows)
    terminated = _flags("terminations", terminations, num_rows)
    truncated = _flags("truncations", truncations, num_rows)
    if next_observations is not None:
        after = _tensors("next_observations", specs["obs"], next_observations, observation_space, num_rows)
        ended = terminated | truncated
        ended[:-1] |= differ(map_tree(lambda x: x[:-1], after), map_tree(lambda x: x[1:], obs))
        kept, final_row, last_obs = torch.arange(num_rows), ended.nonzero().squeeze(1), after
    else:
        after, last_obs = obs, obs
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
        # Before a row that is left out the trace breaks: that row's observation is still the successor.
        ended = terminated | torch.cat([is_unknown[1:], is_last[-1:]])
        at = kept[ended[kept]]
        # Nothing is bootstrapped from a terminated row: any observation does.
        final_row = torch.where(terminated[at], at, at + 1)
    return Cells(
        columns={
            "obs": obs,
            "action": action,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "extra": {},
        },
        source=kept.numpy(),
        env=np.zeros(len(kept), np.int64),
        ended=ended[kept].numpy(),
        final_obs=map_tree(lambda x: x[final_row], after),
        last_obs=map_tree(lambda x: x[-1:], last_obs),
    )


def _tensors(
    name: str, specs: Tree, values: Tree, space: gym.Space[Any], num_rows: int | None = None, in_bounds: bool = False
) -> Tree:
    """Return the leaves as tensors of the stored dtype, each checked; the first one sets `num_rows` if that is None."""
    found: list[Tensor] = []
    paths = matching_leaves(specs, values, f"{OWNER}: {name}")
    for part, spec, (path, value) in zip(leaves(leaf_spaces(space)), leaves(specs), paths, strict=True):
        tensor = _leaf(path, spec, value)
        num_rows = len(tensor) if num_rows is None else num_rows
        if len(tensor) != num_rows:
            raise ReplayBufferError(f"{path}: expected {num_rows} rows, as observations have, got {len(tensor)}")
        choices, array = ValueRange(part), tensor.numpy()
        if (in_bounds or not isinstance(part, spaces.Box)) and not choices.holds(array):
            raise SpaceError(outside_text(path, choices, array, ("row",)))
        found.append(tensor)
    return rebuild(specs, found)


def _leaf(path: str, spec: Spec, value: Any) -> Tensor:
    tensor = _as_tensor(path, value)
    expected = f"{str(spec.dtype).removeprefix('torch.')} of shape {('M', *spec.shape)}".replace("'", "")
    if tensor.ndim == 0 or tuple(tensor.shape[1:]) != spec.shape or not torch.can_cast(tensor.dtype, spec.dtype):
        found = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
        raise SpaceError(f"{path}: expected {expected}, got {found}")
    stored = tensor.to(spec.dtype)
    if stored.is_floating_point():
        _refuse_rows(path, ~torch.isfinite(stored), tensor, "must be finite", ReplayBufferError)
    elif tensor.dtype != spec.dtype:
        differs = torch.from_numpy(stored.numpy() != tensor.numpy())  # PyTorch compares no signed with unsigned numbers
        _refuse_rows(path, differs, tensor, spec.rule, SpaceError)
    return stored


def _flags(name: str, value: Any, num_rows: int) -> Tensor:
    """Return [M] bool; numbers are accepted if they are 0 and 1."""
    path = f"{OWNER}: {name}"
    tensor = _as_tensor(path, value)
    if tuple(tensor.shape) != (num_rows,):
        raise ReplayBufferError(f"{path}: expected shape {(num_rows,)}, got {tuple(tensor.shape)}")
    _refuse_rows(path, (tensor != 0) & (tensor != 1), tensor, "must be True or False", ReplayBufferError)
    return tensor != 0


def _as_tensor(path: str, value: Any) -> Tensor:
    try:
        if isinstance(value, Tensor):
            return value.detach().cpu()
        array = np.asarray(value)
        # torch cannot share an array that is read-only (a memory map), and says so with a warning.
        return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())
    except (TypeError, ValueError) as error:
        text = f"{path}: expected an array or tensor of numbers, got {type(value).__name__}"
        raise ReplayBufferError(text) from error


def _refuse_rows(path: str, is_bad: Tensor, values: Tensor, rule: str, error: type[Exception]) -> None:
    """Raise about the first row that holds a bad value."""
    if bool(is_bad.any()):
        row = int(is_bad.nonzero()[0, 0])
        raise error(f"{path}: {rule}; row {row} is {values[row].tolist()!r}")
