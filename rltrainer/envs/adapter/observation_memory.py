"""The memory in which the adapter keeps observations: copied from the env at once, in the dtypes they are stored in."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rltrainer.envs.adapter.checks import describe
from rltrainer.errors import SpaceError
from rltrainer.spaces import leaf_shape, stored_dtype
from rltrainer.tree import Tree, leaves, map_tree, named_leaves


@dataclass(slots=True)
class ObsMemory:
    """One observation of all envs, as the env's arrays or tensors and as the policy's tensors.

    Args:
        obs: tree [N, ...] in the env's own currency.
        tensor: the same as tensors on the policy's device.
        shares: whether these are in the memory of `obs`, so that nothing is to be uploaded.
    """

    obs: Tree
    tensor: Tree
    shares: bool

    def __getstate__(self) -> tuple[Any, ...]:
        """Copy and pickle memory that is shared once."""
        return self.obs, None if self.shares else self.tensor, self.shares

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Share the memory again."""
        self.obs, self.tensor, self.shares = state
        if self.shares:
            self.tensor = map_tree(torch.as_tensor, self.obs)

    @classmethod
    def allocate(cls, space: Tree, num_envs: int, device: torch.device, env_device: torch.device | None) -> "ObsMemory":
        """Make memory for a tree of leaf spaces.

        Args:
            space: tree of leaf spaces.
            num_envs: N.
            device: the policy's device.
            env_device: the device of an env that returns tensors; None if it returns NumPy arrays.
        """
        home = env_device or torch.device("cpu")
        # An upload from pinned memory is several times faster.
        is_pinned = env_device is None and device.type == "cuda"

        def zeros(leaf: Any) -> torch.Tensor:
            shape = (num_envs, *leaf_shape(leaf))
            return torch.zeros(shape, dtype=stored_dtype(leaf), device=home, pin_memory=is_pinned)

        tensor = map_tree(zeros, space)
        obs = map_tree(torch.Tensor.numpy, tensor) if env_device is None else tensor
        shares = device == home
        return cls(
            obs, tensor if shares else map_tree(lambda leaf: torch.empty_like(leaf, device=device), tensor), shares
        )

    def write(self, obs: Tree) -> None:
        """Copy what the env returned [N, ...]."""
        if type(self.obs) is np.ndarray:
            self.obs[...] = obs
        else:
            copy_tree(self.obs, obs)

    def write_rows(self, rows: Any, values: Tree) -> None:
        """Copy values [len(rows), ...] into some envs' rows."""
        map_tree(_assign, self.obs, map_tree(lambda leaf: _as_index(rows, leaf), self.obs), values)

    def write_row(self, n: int, value: Tree) -> None:
        """Copy one env's observation, of which nothing is known yet.

        Raises:
            SpaceError: a leaf has another shape.
        """
        ordered = leaves(map_tree(lambda here, there: there, self.obs, value))
        for (name, here), there in zip(named_leaves(self.obs), ordered, strict=True):
            shape = tuple(here.shape[1:])
            if np.shape(there) != shape:
                raise SpaceError(f"env {n} final_obs{name}: expected shape {shape}, got {describe(there)}")
            here[n] = torch.as_tensor(there) if isinstance(here, torch.Tensor) else there

    def is_finite(self) -> bool:
        """Return whether all numbers are finite."""
        obs = self.obs
        return all_finite(obs) if type(obs) is np.ndarray else all(all_finite(leaf) for leaf in leaves(obs))

    def upload(self) -> None:
        """Bring `tensor` up to date; nothing to do where memory is shared."""
        if not self.shares:
            for here, there in zip(leaves(self.tensor), leaves(self.obs), strict=True):
                here.copy_(torch.as_tensor(there))


def all_finite(values: Any) -> bool:
    """Return whether all numbers of an array or tensor are finite."""
    if isinstance(values, np.ndarray):
        # Counting is several times as fast as `all`.
        return values.dtype.kind != "f" or int(np.count_nonzero(np.isfinite(values))) == values.size
    return not values.is_floating_point() or bool(torch.isfinite(values).all())


def copy_tree(target: Tree, source: Tree) -> None:
    """Copy arrays into arrays or tensors into tensors, casting."""
    if isinstance(target, np.ndarray | torch.Tensor):
        target[...] = source
    elif isinstance(target, dict):
        for key, part in target.items():
            copy_tree(part, source[key])
    else:
        for part, item in zip(target, source, strict=True):
            copy_tree(part, item)


def device_of(obs: Tree) -> torch.device | None:
    """Return the device of an observation made of tensors, None for arrays."""
    first = leaves(obs)[0]
    return first.device if isinstance(first, torch.Tensor) else None


def take_rows(obs: Tree, rows: Any) -> Tree:
    """Return a copy of some envs' rows [len(rows), ...]."""
    return map_tree(lambda leaf: leaf[_as_index(rows, leaf)], obs)


def _assign(target: Any, index: Any, values: Any) -> None:
    target[index] = values.to(target.dtype) if isinstance(target, torch.Tensor) else values


def _as_index(rows: Any, leaf: Any) -> Any:
    return torch.from_numpy(rows).to(leaf.device) if isinstance(leaf, torch.Tensor) else rows
