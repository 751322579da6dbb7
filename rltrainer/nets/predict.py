"""NumPy in, NumPy out: how a policy is asked by a program that has one observation, or a few."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltrainer.errors import NonFiniteError, ParamsError, SpaceError, field_error_text, readable
from rltrainer.nets.modes import eval_mode
from rltrainer.spaces import ACTION_MASK, Array, Space, ValueRange, leaf_shape, leaf_spaces, num_choices, numpy_dtype
from rltrainer.tree import Tree, leaves, map_tree


def predict(policy: Any, obs: Tree, state: Any, explore: bool, generator: torch.Generator | None) -> Any:
    """Do what `Policy.predict` says."""
    name, device = f"{type(policy).__name__}.predict", policy.device
    batch, is_single = _to_batch(f"{name}: obs", policy, obs)
    if policy.has_mask:
        parts = torch.split(policy.mask_of(batch), num_choices(policy.action_space) or 0, 1)
        is_stuck = ~torch.stack([part.any(1) for part in parts]).all(0)
        for row in is_stuck.nonzero()[:1].flatten().tolist():
            of_row = "" if is_single else f" in row {row}"
            raise SpaceError(f'{name}: obs["{ACTION_MASK}"]: allows no action{of_row}')
    memory: Any = policy.initial_state(len(leaves(batch)[0])) if policy.is_recurrent or state is not None else None
    if state is not None:
        shape = None if memory is None else tuple(memory.shape[is_single:])
        if np.shape(state) != shape:
            rule = "must be None, as it has no memory" if shape is None else f"must have the shape {shape}"
            raise ParamsError(field_error_text(name, "state", rule, state))
        memory = torch.from_numpy(np.array(state, np.float32)).view(memory.shape).to(device)
    with eval_mode(policy):
        if memory is None:
            return _to_numpy(policy.act(batch, explore=explore, generator=generator), policy.action_space, is_single)
        action, memory = policy.act(batch, memory, explore=explore, generator=generator)
    memory = memory[0] if is_single else memory
    return _to_numpy(action, policy.action_space, is_single), memory.cpu().numpy()


def check_tensors(who: str, space: Space, obs: Any, unseen: Collection[str] = ()) -> None:
    """Check that observations are tensors [N, ...] of a space; keys in `unseen` may be missing.

    Raises:
        SpaceError: they are not; the text begins with `who`.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping) or space.spaces.keys() - set(obs) - set(unseen):
            raise SpaceError(f"{who}: expected a dict with the keys {list(space.spaces)}, got {readable(obs)}")
        for key, part in space.spaces.items():
            if key in obs:
                check_tensors(f'{who}["{key}"]', part, obs[key])
    elif isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            raise SpaceError(f"{who}: expected a tuple of {len(space.spaces)}, got {readable(obs)}")
        for i, part in enumerate(space.spaces):
            check_tensors(f"{who}[{i}]", part, obs[i])
    elif not isinstance(obs, Tensor):
        expected, hint = f"a tensor {('N', *leaf_shape(space))}", "policy.predict(obs) takes NumPy arrays and lists."
        raise SpaceError(f"{who}: expected {expected}, got {readable(obs)}. {hint}")
    elif obs.shape[1:] != leaf_shape(space) or not obs.dim():
        is_single = obs.shape == leaf_shape(space)
        hint = "Give it an axis in front: obs.unsqueeze(0)." if is_single else "The policy was made for these spaces."
        raise SpaceError(f"{who}: expected shape {('N', *leaf_shape(space))}, got {tuple(obs.shape)}. {hint}")


def _to_batch(who: str, policy: Any, obs: Tree) -> tuple[Tree, bool]:
    """Return observations as tensors [N, ...], zeros where nobody looks, and whether it was a single one."""
    tree = leaf_spaces(policy.observation_space)
    arrays = _arrays(who, tree, obs, policy.unseen_keys)
    found = [(leaf, leaf_shape(s)) for leaf, s in zip(leaves(arrays), leaves(tree), strict=True) if leaf is not None]
    batches = {leaf.shape[: leaf.ndim - len(shape)] for leaf, shape in found}
    if len(batches) != 1:
        raise SpaceError(f"{who}: expected leaves of one number of observations, got {sorted(batches)}")
    batch = batches.pop() or (1,)

    def to_tensor(space: Space, leaf: Array | None) -> Tensor:
        values = np.zeros((*batch, *leaf_shape(space)), numpy_dtype(space))
        values[:] = 0 if leaf is None else leaf
        return torch.from_numpy(values).to(policy.device)

    return map_tree(to_tensor, tree, arrays), found[0][0].ndim == len(found[0][1])


def _to_numpy(action: Tensor, space: Space, is_single: bool) -> Any:
    """Return actions [N, ...], or the only one, in the dtype of their space, and within it."""
    array = action.cpu().numpy().astype(space.dtype)
    array = np.clip(array, space.low, space.high) if isinstance(space, spaces.Box) else array
    return array[0] if is_single else array


def _arrays(who: str, space: Tree, obs: Any, unseen: Collection[str]) -> Tree:
    """Return the leaves as arrays; None for those that are missing and may be."""
    if isinstance(space, dict):
        if not isinstance(obs, Mapping) or space.keys() - set(obs) - set(unseen):
            raise SpaceError(f"{who}: expected a dict with the keys {list(space)}, got {readable(obs)}")
        parts = {key: _arrays(f'{who}["{key}"]', part, obs[key], ()) for key, part in space.items() if key in obs}
        return {key: parts[key] if key in parts else map_tree(lambda _: None, space[key]) for key in space}
    if isinstance(space, tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space):
            raise SpaceError(f"{who}: expected a tuple of {len(space)}, got {readable(obs)}")
        return tuple(_arrays(f"{who}[{i}]", *pair, ()) for i, pair in enumerate(zip(space, obs, strict=True)))
    try:
        return _array(who, space, np.asarray(obs))
    except ValueError as error:
        if isinstance(error, SpaceError):
            raise
        hint = "env.reset() returns (obs, info): pass the first." if isinstance(obs, tuple) else "Pass an array."
        raise SpaceError(f"{who}: expected an array, got {readable(obs)}. {hint}") from error


def _array(who: str, space: Space, value: Array) -> Array:
    shape, dtype = leaf_shape(space), numpy_dtype(space)
    num_axes = value.ndim - len(shape)
    is_cast = np.can_cast(value.dtype, dtype, "same_kind") or (value.dtype.kind in "iu" and dtype.kind in "iu")
    if num_axes not in (0, 1) or value.shape[num_axes:] != shape or not is_cast:
        expected = f"{space.dtype} {shape}, or {('N', *shape)} for several"
        hint = "Pass what env.reset() or env.step() returned first; the policy was made for these spaces."
        is_object = value.dtype.kind == "O" and value.ndim == 0
        found = readable(value.item()) if is_object else f"{value.dtype} {value.shape}"
        raise SpaceError(f"{who}: expected {expected}; got {found}. {hint}")
    if value.dtype.kind == "f" and not (np.abs(value) <= np.finfo(dtype).max).all():
        found = "NaN or infinity" if not np.isfinite(value).all() else f"a number that is infinite in {dtype}"
        raise NonFiniteError(f"{who}: holds {found}: {readable(value)}. Where does it come from?")
    if not isinstance(space, spaces.Box) and ValueRange(space).outside(value).any():
        raise SpaceError(f"{who}: expected choices of {space}, got {readable(value)}")
    return value
