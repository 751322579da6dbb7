"""Episodes repeated from their seeds and actions, so that all envs of a vector arrive where they were together."""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.envs.adapter.actions import lent
from rltrainer.envs.adapter.episode_seeds import Mask, Rows
from rltrainer.envs.adapter.observation_memory import ObsMemory, take_rows
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.envs.resuming.action_trail import as_array
from rltrainer.tree import leaves

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Repeated:
    """Outcome of repeated episodes.

    Args:
        failed: [N] bool, the envs whose episode ended on the way.
        returns: [N] or [N, A], the sums of rewards; None if no step was taken.
    """

    failed: Mask
    returns: Array | None


def repeat_episodes(
    envs: gym.vector.VectorEnv[Any, Any, Any],
    seeds: list[int | None],
    table: Any,
    num_steps: Rows,
    memory: ObsMemory,
    env_device: torch.device | None,
) -> Repeated:
    """Bring envs that were just reset to where these actions lead.

    An env with a shorter episode than others begins it later, with a reset of its own. Before that, and when its
    episode has ended too early, it is left out of steps, or takes some that nobody looks at.

    Args:
        envs: their masked resets work.
        seeds: of the running episodes.
        table: array [L, N, ...] of actions, for the longest episode; others come at the end.
        num_steps: of the episodes [N].
        memory: for the last observations.
        env_device: of envs that take tensors.
    """
    begins, result = len(table) - num_steps, Repeated(np.zeros(envs.num_envs, np.bool_), None)
    _leave_out(envs, seeds, begins > 0, is_done=False)
    for number, row in enumerate(table):
        if number:
            _reset(envs, seeds, begins == number)
        row = lent(row)  # the table is also the record of the running episodes
        action = row if env_device is None else torch.from_numpy(row).to(env_device)
        obs, reward, terminated, truncated, _ = envs.step(action)
        if number == len(table) - 1:
            memory.write(obs)
        counts = (begins <= number) & ~result.failed
        gained = as_array(reward).astype(np.float32)  # as whoever counted them got them
        result.returns = np.zeros(gained.shape) if result.returns is None else result.returns
        result.returns[counts] += gained[counts]
        done = as_array(terminated) | as_array(truncated)
        result.failed |= counts & done
        _leave_out(envs, seeds, done, is_done=True)
    late = begins == len(table)
    if len(table) and late.any():
        memory.write_rows(np.flatnonzero(late), take_rows(_reset(envs, seeds, late), np.flatnonzero(late)))
    return result


def differing(saved: list[Any], obs: Any) -> Mask:
    """Return which envs observe something else [N], in any bit, than these leaves say."""
    differs: Any = False
    for there, here in zip(saved, leaves(obs), strict=True):
        differs = differs | (_bits(there) != _bits(here)).any(1)
    return np.asarray(differs)


def _bits(leaf: Any) -> Array:
    rows = as_array(leaf)
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)


def _leave_out(envs: Any, seeds: list[int | None], mask: Mask, is_done: bool) -> None:
    """Keep envs from being stepped; where that cannot be, see to it that they can be."""
    if not mask.any():
        return
    if isinstance(envs.unwrapped, MaskedVectorEnv):
        envs.unwrapped.park(np.flatnonzero(mask))
    elif is_done:
        _reset(envs, seeds, mask)


def _reset(envs: Any, seeds: list[int | None], mask: Mask) -> Any:
    """Begin the episodes of some envs; return the observations of all."""
    if not mask.any():
        return None
    due = [seed if mask[n] else None for n, seed in enumerate(seeds)]
    return envs.reset(seed=due, options={"reset_mask": mask})[0]
