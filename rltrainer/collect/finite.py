"""Whether a collection holds only finite numbers; looked at once, at its end."""

import torch
from torch import Tensor

from rltrainer.errors import NonFiniteError
from rltrainer.tree import Tree, named_leaves
from rltrainer.types import Rollout


def check_finite(rollout: Rollout, num_rows_after: int) -> None:
    """Check reward, action and observations.

    Args:
        rollout: the collection [T, N].
        num_rows_after: how many steps each env has taken, this collection included.

    Raises:
        NonFiniteError: the first NaN or infinity, with env, step, name and value.
    """
    num_rows, num_envs = rollout.reward.shape
    first_step = num_rows_after - num_rows
    grid = [("reward", rollout.reward), ("action", rollout.action), *named_leaves(rollout.obs, "obs")]
    for name, values in grid:
        if (bad := _first_bad(values, rollout.valid)) is not None:
            _refuse(int(bad[1]), first_step + int(bad[0]), name, values[tuple(bad)])
    for name, values in named_leaves(rollout.last_obs, "obs"):
        if (bad := _first_bad(values, rollout.valid[-1])) is not None:
            _refuse(int(bad[0]), num_rows_after, name, values[tuple(bad)])
    for name, values in named_leaves(rollout.final_obs, "final obs"):
        if (bad := _first_bad(values, rollout.valid.flatten()[rollout.final_index])) is not None:
            row, env = divmod(int(rollout.final_index[bad[0]]), num_envs)
            _refuse(env, first_step + row, name, values[tuple(bad)])


def check_obs_finite(obs: Tree, step: int) -> None:
    """Check what is acted on at a step [N, ...].

    Raises:
        NonFiniteError: the first NaN or infinity, with env, step, name and value.
    """
    for name, values in named_leaves(obs, "obs"):
        if (bad := _first_bad(values, torch.ones(len(values), dtype=torch.bool, device=values.device))) is not None:
            _refuse(int(bad[0]), step, name, values[tuple(bad)])


def _first_bad(values: Tensor, counts: Tensor) -> Tensor | None:
    """Return the index of the first number that is not finite among the cells that count, or None."""
    if not values.is_floating_point() or bool(torch.isfinite(values).all()):
        return None
    bad = ~torch.isfinite(values) & counts.reshape(*counts.shape, *[1] * (values.dim() - counts.dim()))
    return bad.nonzero()[0] if bool(bad.any()) else None


def _refuse(env: int, step: int, name: str, value: Tensor) -> None:
    raise NonFiniteError(f"env {env}, step {step}: {name} = {float(value)}; nothing of this collection was stored")
