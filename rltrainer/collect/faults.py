"""The first fault of a collection: a number that is not finite, or a choice that does not exist.

Steps are counted from 1, as vector envs count them: `step 5` is an env's fifth step since its collector was made, and
an observation, reward or action of step 5 is what that step returned or was given.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rltrainer.data.incoming_cells import to_array
from rltrainer.envs import EnvStep
from rltrainer.errors import NonFiniteError, SpaceError
from rltrainer.spaces import ValueRange
from rltrainer.tree import Tree, leaves, named_leaves
from rltrainer.types import Rollout

Array = np.ndarray[Any, Any]

Fault = tuple[int, int, str, type[Exception]]
"""A fault in the order of time, and within a row of what causes what: the row, its rank there (0 for what was acted on,
1 for the action, 2 for the reward, 3 for a final observation), its text and its error."""


def check_rollout(rollout: Rollout, num_steps_before: int | Array, actions: ValueRange, hint: str) -> None:
    """Look at a whole collection.

    Args:
        rollout: the collection [T, N].
        num_steps_before: how many steps each env had taken before it, or [N] int64 how many which.
        actions: the action space; of a Box only finiteness is asked, as a rollout holds samples.
        hint: what follows the text.

    Raises:
        NonFiniteError: the first NaN or infinity, with env, step, name and value.
        SpaceError: the first choice that does not exist, if that comes first.
    """
    _raise_first(_faults(rollout, np.broadcast_to(num_steps_before, rollout.reward.shape[1]), actions), hint)


def check_step(step: EnvStep, env_action: Any, counts: Array | None, num_steps: int, actions: ValueRange) -> None:
    """Look at the action and reward of the last of so many steps; `counts` as below."""
    action, reward = to_array(env_action)[None], to_array(step.reward)[None]
    valid = np.ones(action.shape[:2], np.bool_) if counts is None else counts[None]
    _raise_first(_cell_faults(action, reward, valid, np.full(action.shape[1], num_steps - 1), actions), "")


def check_obs(obs: Tree, counts: Array | None, num_steps: int, is_first: bool, hint: str) -> None:
    """Look at one observation of all envs [N, ...], which a reset or a step returned after so many steps.

    `counts` [N] bool says which envs are looked at, None all; errors as `check_rollout`'s.
    """
    for name, leaf in named_leaves(obs, "obs"):
        values = to_array(leaf)
        index = _first_bad(values, np.ones(len(values), np.bool_) if counts is None else counts)
        if index is not None:
            when = f"reset after {num_steps} steps" if is_first else f"step {num_steps}"
            raise NonFiniteError(f"env {index[0]}, {when}: {name} = {values[index]}{hint}")


def _faults(rollout: Rollout, num_before: Array, actions: ValueRange) -> Iterator[Fault]:
    """Yield the first fault of each leaf."""
    num_envs = rollout.reward.shape[1]
    valid, final_index = to_array(rollout.valid), to_array(rollout.final_index)
    goes_on = valid.copy()
    goes_on.reshape(-1)[final_index] = False
    # What follows a valid cell counts, even if it is not acted on.
    no_row = np.zeros((1, num_envs), np.bool_)
    counts = np.concatenate([valid, no_row]) | np.concatenate([no_row, goes_on])
    for (name, leaf), last in zip(named_leaves(rollout.obs, "obs"), leaves(rollout.last_obs), strict=True):
        values = np.concatenate([to_array(leaf), to_array(last)[None]])
        index = _first_bad(values, counts)
        if index is not None:
            row, env = index[:2]
            is_first = row == 0 or (row - 1) * num_envs + env in final_index
            num_steps = num_before[env] + row
            when = f"reset after {num_steps} steps" if is_first else f"step {num_steps}"
            yield row, 0, f"env {env}, {when}: {name} = {values[index]}", NonFiniteError
    action, reward = to_array(rollout.action), to_array(rollout.reward)
    yield from _cell_faults(action, reward, valid, num_before, actions)
    for name, leaf in named_leaves(rollout.final_obs, "obs"):
        index = _first_bad(values := to_array(leaf), valid.reshape(-1)[final_index])
        if index is not None:
            row, env = divmod(int(final_index[index[0]]), num_envs)
            yield row, 3, f"env {env}, step {num_before[env] + row + 1}: {name} = {values[index]}", NonFiniteError


def _cell_faults(action: Array, reward: Array, valid: Array, num_before: Array, actions: ValueRange) -> Iterator[Fault]:
    """Yield the first fault of actions [T, N, ...] and of rewards [T, N] or [T, N, A]."""
    for rank, name, values in ((1, "action", action), (2, "reward", reward)):
        index = _first_bad(values, valid)
        if index is not None:
            text = f"env {index[1]}, step {num_before[index[1]] + index[0] + 1}: {name} = {values[index]}"
            yield index[0], rank, text, NonFiniteError
    if action.dtype.kind == "f" or actions.holds(action):
        return
    index = _first(actions.outside(action) & _spread(valid, action))
    if index is not None:
        chosen = action[index[: action.ndim - len(actions.space.shape or ())]].tolist()
        where = f"env {index[1]}, step {num_before[index[1]] + index[0] + 1}"
        yield index[0], 1, f"{where}: action = {chosen!r}, which must lie in {actions.space}", SpaceError


def _raise_first(faults: Iterator[Fault], hint: str) -> None:
    found = list(faults)
    if found:
        *_, text, error = min(found)
        raise error(text + hint)


def _first_bad(values: Array, counts: Array) -> tuple[int, ...] | None:
    """Return the index of the first number that is not finite among the cells that count, or None."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return None
    return _first(~np.isfinite(values) & _spread(counts, values))


def _first(bad: Array) -> tuple[int, ...] | None:
    return tuple(np.argwhere(bad)[0].tolist()) if bad.any() else None


def _spread(counts: Array, values: Array) -> Array:
    return counts.reshape(*counts.shape, *[1] * (values.ndim - counts.ndim))
