"""Preallocated memory for a tree of values, one value per cell. Knows shapes and dtypes, not what the values mean."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.errors import ReplayBufferError, SpaceError, readable
from rltrainer.spaces import leaf_shape, leaf_spaces, stored_dtype
from rltrainer.tree import Tree, map_tree, rebuild

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of one value, and the space that it lies in, if it has one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    space: gym.Space[Any] | None = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of one value."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def rule(self) -> str:
        """The rule that an error names for an integer that the dtype cannot hold."""
        return f"must fit into {self.dtype}" if self.space is None else f"must lie in {readable(self.space)}"


def space_specs(space: gym.Space[Any]) -> Tree:
    """Return the tree of specs that holds a space's values."""
    return map_tree(lambda leaf: Spec(leaf_shape(leaf), stored_dtype(leaf), leaf), leaf_spaces(space))


@dataclass(frozen=True, slots=True)
class Rows:
    """M transitions, numbered from the first that each env ever stored; see `numbered` for their order.

    Attributes:
        start, stop: [N] of each env the first number, and the first one after them.
        columns: trees [M, ...].
        final_index: [K] those of the M that end a trajectory, ascending.
        final_obs: tree [K, ...], their successors.
    """

    start: Array
    stop: Array
    columns: dict[str, Tree]
    final_index: Array
    final_obs: Tree


def numbered(start: Array, stop: Array) -> tuple[Array, Array]:
    """Return env and number of each of M transitions, [M] each: the first of each env, then the second, and so on.

    Args:
        start, stop: [N] of each env the first number, and the first one after them.
    """
    envs = np.flatnonzero(stop > start)
    count = (stop - start)[envs]
    if len(envs) and (count == count[0]).all():
        env, offset = np.tile(envs, count[0]), np.repeat(np.arange(count[0]), len(envs))
    else:
        env = np.repeat(envs, count)
        offset = np.arange(len(env)) - np.repeat(np.cumsum(count) - count, count)
        order = np.argsort(offset, kind="stable")
        env, offset = env[order], offset[order]
    return env, start[env] + offset


class Storage:
    """A tree of tensors `[*shape, ...]`, such as [rows, N, ...]: written many cells at a time, by a `RowWriter` a row.

    Args:
        name: what errors call it, such as `ReplayBuffer.obs`.
        specs: a tree of `Spec`, one per leaf.
        shape: the cells; its first axis are the rows, and a flat index runs over all of it.
        device: where the tensors live.

    Attributes:
        leaves: one `Leaf` per tensor, in the order of the specs.
    """

    def __init__(self, name: str, specs: Tree, shape: tuple[int, ...], device: torch.device) -> None:
        self.name, self.specs, self.shape, self.device = name, specs, shape, device
        self.leaves = [Leaf(path, spec, shape, device) for path, spec in matching_leaves(specs, specs, name)]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(leaf.tensor.nbytes for leaf in self.leaves)

    def check(self, values: Tree) -> None:
        """Check a tree of tensors [S, ...] before `scatter`.

        Raises:
            ReplayBufferError: a leaf is missing, or has another shape or kind of number.
        """
        for leaf, (_, value) in zip(self.leaves, matching_leaves(self.specs, values, self.name), strict=True):
            leaf.check(value, tuple(value.shape[:1]) + leaf.spec.shape)

    def scatter(self, index: Array, values: Tree, source: Array | None = None) -> None:
        """Write cells given by their flat index.

        Args:
            index: [M] int64, the cells.
            values: tree of tensors [S, ...] on any device.
            source: [M] int64, which of the S values goes into each cell; None takes them in order (S = M).
        """
        where = torch.from_numpy(index).to(self.device)
        for leaf, (_, value) in zip(self.leaves, matching_leaves(self.specs, values, self.name), strict=True):
            if source is not None:
                value = value.index_select(0, torch.from_numpy(source).to(value.device))
            leaf.flat.index_copy_(0, where, value.to(self.device, leaf.spec.dtype))

    def gather(self, index: Tensor) -> Tree:
        """Return copies of the cells of a flat index [M], a tree [M, ...]."""
        return self._tree([leaf.flat.index_select(0, index) for leaf in self.leaves])

    def grow(self, rows: int) -> None:
        """Reserve more rows; what is stored stays, views handed out before show the old memory."""
        shape = (rows, *self.shape[1:])
        for leaf in self.leaves:
            leaf.allocate(shape, leaf.tensor)
        self.shape = shape  # last: what an interrupt breaks off is seen, and made again

    def rows(self, stop: int, start: int = 0) -> Tree:
        """Return views of some rows."""
        return self._tree([leaf.tensor[start:stop] for leaf in self.leaves])

    def row(self, i: int) -> Tree:
        """Return views of a row; on the CPU arrays."""
        return self._tree([leaf.target[i] for leaf in self.leaves])

    @property
    def flat(self) -> Tree:
        """The tree of tensors, with one flat axis of cells."""
        return self._tree([leaf.flat for leaf in self.leaves])

    def _tree(self, parts: list[Any]) -> Tree:
        """Arrange what belongs to the leaves as the specs are; a bare leaf, as most are, takes 1 us less."""
        return parts[0] if isinstance(self.specs, Spec) else rebuild(self.specs, parts)


class Leaf:
    """One tensor of a storage.

    Attributes:
        tensor: [*shape, ...].
        flat: the same with one flat axis of cells.
        target: what row writes go to; on the CPU an array in the same memory.
        row_shape: the shape of a row.
        dtype: of such an array; None for a tensor on a device.
    """

    def __init__(self, name: str, spec: Spec, shape: tuple[int, ...], device: torch.device) -> None:
        self.name, self.spec, self.device = name, spec, device
        self.row_shape = shape[1:] + spec.shape
        self.allocate(shape)

    def allocate(self, shape: tuple[int, ...], stored: Tensor | None = None) -> None:
        """Reserve memory, all zero but for the first rows: a thread that reads these sees them before and after."""
        if self.device.type == "cpu":
            # NumPy writes a row in a tenth of torch's time, and its zeroed pages cost nothing until they are used.
            array = np.zeros(shape + self.spec.shape, str(self.spec.dtype).removeprefix("torch."))
            tensor = torch.from_numpy(array)
        else:
            tensor = torch.zeros(shape + self.spec.shape, dtype=self.spec.dtype, device=self.device)
        if stored is not None:
            tensor[: len(stored)] = stored
        self.tensor = tensor
        self._view()

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the tensor only: an array would be copied apart from it, and writes to it lost."""
        return vars(self) | {"flat": None, "target": None, "dtype": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the views of the tensor anew."""
        vars(self).update(state)
        self._view()

    def _view(self) -> None:
        self.flat = self.tensor.flatten(0, self.tensor.ndim - len(self.spec.shape) - 1)
        array = self.tensor.numpy() if self.device.type == "cpu" else None
        self.target: Any = self.tensor if array is None else array
        self.dtype: np.dtype[Any] | None = None if array is None else array.dtype

    def accept(self, value: Any, row_shape: tuple[int, ...] | None = None) -> Any:
        """Return a row, or what has another shape, as what `target` takes.

        Raises:
            ReplayBufferError: it has another shape or kind of number.
        """
        row_shape = row_shape or self.row_shape
        if type(value) is np.ndarray and value.dtype is self.dtype and value.shape == row_shape:
            return value
        try:
            # A copy of an array, because torch warns about those that are not writable.
            tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        except (TypeError, ValueError) as error:
            expected = _describe(self.spec.dtype, row_shape)
            raise ReplayBufferError(f"{self.name}: expected {expected}, got {value!r}") from error
        self.check(tensor, row_shape)
        tensor = tensor.to(self.device, self.spec.dtype)
        return tensor if self.dtype is None else tensor.numpy()

    def is_finite(self, rows: int) -> bool:
        """Return whether all numbers in the first rows are finite."""
        if not self.spec.dtype.is_floating_point:
            return True
        values = self.target[:rows]
        if self.dtype is None:
            return bool(torch.isfinite(values).all())
        return bool(np.count_nonzero(np.isfinite(values)) == values.size)  # several times as fast as `all`

    def check(self, value: Tensor, shape: tuple[int, ...]) -> None:
        """Check that a value has this shape, and numbers that can be stored.

        Raises:
            ReplayBufferError: it has another shape or kind of number.
            SpaceError: it holds an integer that the stored dtype cannot hold.
        """
        if tuple(value.shape) != shape or not torch.can_cast(value.dtype, self.spec.dtype):
            expected, found = _describe(self.spec.dtype, shape), _describe(value.dtype, tuple(value.shape))
            raise ReplayBufferError(f"{self.name}: expected {expected}, got {found}")
        if value.dtype is not self.spec.dtype and not self.spec.dtype.is_floating_point:
            array = value.cpu().numpy()  # PyTorch compares no signed with unsigned numbers
            differs = array.astype(self.dtype or str(self.spec.dtype).removeprefix("torch.")) != array
            if differs.any():
                raise SpaceError(f"{self.name}: {self.spec.rule}; got {array[differs][0]} ({array.dtype})")


def _describe(dtype: torch.dtype, shape: tuple[int, ...]) -> str:
    return f"{str(dtype).removeprefix('torch.')} of shape {shape}"


def matching_leaves(specs: Tree, values: Tree, name: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf in the order of the specs.

    Raises:
        ReplayBufferError: the values are not a tree of the same form.
    """
    if isinstance(specs, dict):
        if not isinstance(values, dict) or values.keys() != specs.keys():
            found = f"the keys {list(values)}" if isinstance(values, dict) else f"a {type(values).__name__}"
            raise ReplayBufferError(f"{name}: expected a dict with the keys {list(specs)}, got {found}")
        for key, part in specs.items():
            yield from matching_leaves(part, values[key], f'{name}["{key}"]')
    elif isinstance(specs, tuple):
        if not isinstance(values, tuple) or len(values) != len(specs):
            found = f"{len(values)} parts" if isinstance(values, tuple) else f"a {type(values).__name__}"
            raise ReplayBufferError(f"{name}: expected a tuple of {len(specs)} parts, got {found}")
        for i, part in enumerate(specs):
            yield from matching_leaves(part, values[i], f"{name}[{i}]")
    else:
        yield name, values
