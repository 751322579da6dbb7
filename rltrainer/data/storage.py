"""The columns of a buffer: preallocated memory for trees of values, written a row or many slots at a time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, Literal, get_args

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError, readable
from rltrainer.spaces import ValueRange, leaf_shape, leaf_spaces, stored_dtype
from rltrainer.tree import Tree, is_on_host, leaves, map_tree, rebuild, to_array
from rltrainer.types import to_device
from rltrainer.validation.field_rules import PositiveInt, Rule, are_names, as_python, checked, is_int

Array = np.ndarray[Any, Any]
# Shape (of one transition) and dtype of each extra, by name.
Extra = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
# The dtypes of extras, by their names in files.
ExtraDtype = Literal["float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
EXTRA_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in get_args(ExtraDtype)}


def _is_extra(value: Any) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2 or not isinstance(value[0], tuple | list):
        return False
    return value[1] in EXTRA_DTYPES.values() and all(is_int(n) and n >= 0 for n in as_python(value[0]))


EXTRAS_RULE = "a mapping from names to (shape, dtype)"
AnyExtras = Annotated[Any, Rule(EXTRAS_RULE, lambda v: isinstance(v, Mapping) and are_names([*v]))]
EXTRA_RULE = f"(shape, dtype), such as ((3,), torch.float32); dtype one of {', '.join(EXTRA_DTYPES)}"
AnyExtra = Annotated[Any, Rule(EXTRA_RULE, _is_extra)]


def require_extra(owner: str, extra: Extra | None) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the declared extras as a dict of tuples; a `ParamsError` if one breaks its rule."""
    declared = {} if extra is None else checked(owner, "extra", extra, AnyExtras)
    items = {name: checked(owner, f"extra[{name!r}]", each, AnyExtra) for name, each in declared.items()}
    return {name: (tuple(as_python(shape)), dtype) for name, (shape, dtype) in items.items()}


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of one value, and its space, if it has one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    space: gym.Space[Any] | None = field(default=None, compare=False, repr=False)

    @property
    def rule(self) -> str:
        """The rule of an error about an integer beyond the dtype."""
        return f"must fit into {self.dtype}" if self.space is None else f"must lie in {readable(self.space)}"


def column_specs(
    owner: str, observation_space: gym.Space[Any], action_space: gym.Space[Any], extra: Extra
) -> dict[str, Tree]:
    """Return the specs [...] of one value of the columns `obs, action, reward, terminated, truncated, extra`.

    A space that cannot be stored is a `SpaceError`.
    """
    if not isinstance(leaf_spaces(action_space), gym.Space):
        rule = "must be a Box, Discrete, MultiDiscrete or MultiBinary"
        raise SpaceError.about(owner, "action_space", rule, action_space)
    obs, action = (
        map_tree(lambda leaf: Spec(leaf_shape(leaf), stored_dtype(leaf), leaf), leaf_spaces(space))
        for space in (observation_space, action_space)
    )
    return {
        "obs": obs,
        "action": action,
        "reward": Spec((), torch.float32),
        "terminated": Spec((), torch.bool),
        "truncated": Spec((), torch.bool),
        "extra": {name: Spec(shape, dtype) for name, (shape, dtype) in extra.items()},
    }


def slot_nbytes(specs: dict[str, Tree]) -> int:
    """Return the bytes of one slot in all columns, of specs [...]."""
    return sum(prod(spec.shape) * spec.dtype.itemsize for spec in leaves(specs))


class Storage:
    """A tree of tensors [*shape, ...], such as [rows, N, ...]; a flat index runs over all slots of `shape`."""

    def __init__(self, name: str, specs: Tree, shape: tuple[int, ...], device: torch.device) -> None:
        self.name, self.specs, self.shape, self.device = name, specs, shape, device
        self.leaves = [Leaf(path, spec, shape, device) for path, spec in matching_leaves(specs, specs, name)]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(leaf.tensor.nbytes for leaf in self.leaves)

    def matched(self, values: Tree) -> Iterator[tuple["Leaf", Any]]:
        """Return each leaf with its value in a tree [S, ...]; a `ReplayBufferError` for another form of tree."""
        found = (value for _, value in matching_leaves(self.specs, values, self.name))
        return zip(self.leaves, found, strict=True)

    def check(self, values: Tree) -> None:
        """Check a tree of tensors [S, ...] before `scatter`; see `Leaf.check` for errors."""
        for leaf, value in self.matched(values):
            leaf.check(value, (*value.shape[:1], *leaf.spec.shape))

    def scatter(self, index: Array, values: Tree, source: Array | None = None) -> None:
        """Write values [S, ...], on any device, into slots [M]; `source` [M] are their places in S, None all."""
        where = to_device(torch.from_numpy(index), self.device)
        for leaf, value in self.matched(values):
            if source is not None:
                value = value.index_select(0, to_device(torch.from_numpy(source), value.device))
            leaf.flat.index_copy_(0, where, to_device(value.to(leaf.spec.dtype), self.device))

    def gather(self, index: Tensor) -> Tree:
        """Return copies of the values at a flat index [M], a tree [M, ...]."""
        return self._tree([leaf.flat.index_select(0, index) for leaf in self.leaves])

    def grow(self, rows: int) -> None:
        """Reserve more rows; what is stored stays, views handed out before show the old memory."""
        shape = (rows, *self.shape[1:])
        for leaf in self.leaves:
            leaf.allocate(shape, leaf.tensor)
        self.shape = shape  # last, so that an interrupted `grow` is repeated

    def rows(self, stop: int, start: int = 0) -> Tree:
        """Return views of the rows from `start` to `stop` [T, N, ...]; [T, ...] of a flat store."""
        return self._tree([leaf.tensor[start:stop] for leaf in self.leaves])

    def row(self, i: int) -> Tree:
        """Return views of a row [N, ...]; on the CPU arrays."""
        return self._tree([leaf.target[i] for leaf in self.leaves])

    @property
    def flat(self) -> Tree:
        """The tree of tensors [slots, ...] with one flat axis of slots."""
        return self._tree([leaf.flat for leaf in self.leaves])

    def _tree(self, parts: list[Any]) -> Tree:
        # Most trees are a bare leaf, which takes 1 us less without `rebuild`.
        return parts[0] if isinstance(self.specs, Spec) else rebuild(self.specs, parts)


class Leaf:
    """One tensor of a storage: `flat` has one axis of slots; `target` takes rows, on the CPU an array of `dtype`."""

    target: Any
    dtype: np.dtype[Any] | None

    def __init__(self, name: str, spec: Spec, shape: tuple[int, ...], device: torch.device) -> None:
        self.name, self.spec, self.device = name, spec, device
        self.row_shape = shape[1:] + spec.shape
        self.is_packed = False
        self.allocate(shape)

    def allocate(self, shape: tuple[int, ...], stored: Tensor | None = None) -> None:
        """Reserve memory [*shape, ...]: zeros but for the `stored` rows, which a reading thread sees all the time."""
        if self.device.type == "cpu":
            # NumPy's zeroed pages cost nothing until they are used.
            tensor = torch.from_numpy(np.zeros(shape + self.spec.shape, str(self.spec.dtype).removeprefix("torch.")))
        else:
            tensor = torch.zeros(shape + self.spec.shape, dtype=self.spec.dtype, device=self.device)
        if stored is not None:
            tensor[: len(stored)] = stored
        self.tensor = tensor
        self._view()

    def place(self, tensor: Tensor, step: Array) -> None:
        """Lie in packed rows [R, N, ...] of a device; `target` [2, N, ...]: a step's row on the host, and the next."""
        self.tensor, self.is_packed = tensor, True
        self._view()
        self.target, self.dtype = step, step.dtype

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle the tensor only: an array would be copied apart from it, and writes to it lost."""
        return vars(self) | {"flat": None, "target": None, "dtype": None} | ({"tensor": None} if self.is_packed else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if not self.is_packed:
            self._view()

    def _view(self) -> None:
        self.flat = self.tensor.flatten(0, self.tensor.ndim - len(self.spec.shape) - 1)
        # NumPy writes a row in a tenth of torch's time.
        array = self.tensor.numpy() if self.device.type == "cpu" else None
        self.target = self.tensor if array is None else array
        self.dtype = None if array is None else array.dtype

    def accept(self, value: Any, row_shape: tuple[int, ...] | None = None) -> Any:
        """Return a row, or a value of another `row_shape`, as `target` takes it; see `check` for errors."""
        row_shape = row_shape or self.row_shape
        if type(value) is np.ndarray and value.dtype is self.dtype and value.shape == row_shape:
            return value
        try:
            # A copy of an array, because torch warns about an array that is not writable.
            tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        except (TypeError, ValueError) as error:
            text = f"expected {described(self.spec.dtype, row_shape)}, got {value!r}"
            raise ReplayBufferError(f"{self.name}: {text}") from error
        self.check(tensor, row_shape)
        if self.dtype is None:
            return tensor.to(self.device, self.spec.dtype)
        return tensor.to("cpu", self.spec.dtype).numpy()

    def is_finite(self, rows: int) -> bool:
        """Return whether all numbers in the first rows are finite."""
        if not self.spec.dtype.is_floating_point:
            return True
        values = self.target[:rows]
        if self.dtype is None:
            return bool(torch.isfinite(values).all())
        return bool(np.count_nonzero(np.isfinite(values)) == values.size)  # several times as fast as `all`

    def check(self, value: Tensor, shape: tuple[int, ...]) -> None:
        """Check a value [*shape]: its shape is a `ReplayBufferError`, a number that cannot be stored a `SpaceError`."""
        if tuple(value.shape) != shape or not torch.can_cast(value.dtype, self.spec.dtype):
            expected, found = described(self.spec.dtype, shape), described(value.dtype, tuple(value.shape))
            raise ReplayBufferError(f"{self.name}: expected {expected}, got {found}")
        if value.dtype is not self.spec.dtype and not self.spec.dtype.is_floating_point:
            array = value.cpu().numpy()  # PyTorch does not compare signed with unsigned numbers
            differs = array.astype(self.dtype or str(self.spec.dtype).removeprefix("torch.")) != array
            if differs.any():
                raise SpaceError(f"{self.name}: {self.spec.rule}; got {array[differs][0]} ({array.dtype})")


class RowStorage:
    """All columns of a buffer [R, N]: one step of all envs, or many slots, are written at a time.

    `actions` is where actions must lie to be written, None anywhere. `has_heads`: the heads' observations are on the
    host, in row 1 of their column's target.
    """

    has_heads = False

    def __init__(
        self,
        owner: str,
        specs: dict[str, Tree],
        shape: tuple[int, int],
        device: torch.device,
        actions: ValueRange | None = None,
    ) -> None:
        self.columns = {name: Storage(f"{owner}.{name}", part, shape, device) for name, part in specs.items()}
        self._actions = actions
        self._obs, self._extra = self.columns["obs"], self.columns["extra"]
        self._is_plain = not isinstance(self._obs.specs, dict | tuple) and not self._extra.leaves
        names = ("action", "reward", "terminated", "truncated", "extra")
        here = [(leaf, 0) for name in names for leaf in self.columns[name].leaves]
        # 1: the row after. Last the observations that were acted on, which that row may hold already.
        after, before = ([(leaf, k) for leaf in self._obs.leaves] for k in (1, 0))
        self._new_leaves, self._action_at = after + here, len(after)
        self._leaves = self._new_leaves + before

    def write(self, at: Any, step: tuple[Any, ...], num_envs: int | None = None, holds_obs: bool = False) -> None:
        """Write a step of all envs, or of so many [num_envs, ...]; nothing if a value does not fit.

        `at` are the step's row and the successors' row; each is a number, or index arrays (rows, envs). `step` is `obs,
        action, reward, next_obs, terminated, truncated, extra`. `holds_obs`: the row has these observations already.
        An action outside of `actions` is a `SpaceError`; for other errors see `Leaf.check`.
        """
        obs, action, reward, next_obs, terminated, truncated, extra = step
        values: tuple[Any, ...] = (next_obs, action, reward, terminated, truncated, obs)
        if not self._is_plain or extra is not None:
            extras = _values(self._extra, {} if extra is None else extra)
            flags = (terminated, truncated)
            values = (*_values(self._obs, next_obs), action, reward, *flags, *extras, *_values(self._obs, obs))
        pairs = zip(self._leaves, values, strict=True)
        if num_envs is None:
            accepted = [
                # The first lines of `accept`, inlined: this runs for every leaf at every env step.
                value
                if type(value) is np.ndarray and value.dtype is leaf.dtype and value.shape == leaf.row_shape
                else leaf.accept(value)
                for (leaf, _), value in pairs
            ]
        else:
            accepted = [leaf.accept(value, (num_envs, *leaf.spec.shape)) for (leaf, _), value in pairs]
        if self._actions is not None:
            env_action = action if type(action) is np.ndarray else to_array(accepted[self._action_at])
            if not self._actions.holds(env_action):
                raise SpaceError(outside_text(self.columns["action"].name, self._actions, env_action, ("env",)))
        leaves = self._new_leaves if holds_obs else self._leaves
        for (leaf, k), value in zip(leaves, accepted, strict=False):
            leaf.target[at[k]] = value

    def store(
        self, slots: Array, values: dict[str, Tree], source: Array | None, heads: Array, obs: Tree, envs: Array
    ) -> None:
        """Write values [S, ...] of all columns into slots [M]; `source` [M] are their places in S, None all.

        The observations [N, ...] of some envs [K] go to their `heads` [K].
        """
        for name, column in self.columns.items():
            column.scatter(slots, values[name], source)
        self.store_heads(heads, obs, envs)

    def store_heads(self, heads: Array, obs: Tree, envs: Array | None = None) -> None:
        """Write the observations [N, ...] of all or some envs [K] to their `heads` [K]."""
        self._obs.scatter(heads, obs, envs)


class PackedRowStorage(RowStorage):
    """Columns on a device in one memory, so that rows are written by one copy and one kernel."""

    def __init__(
        self, owner: str, specs: dict[str, Tree], shape: tuple[int, int], device: torch.device, actions: ValueRange
    ) -> None:
        super().__init__(owner, specs, (0, shape[1]), device, actions)
        self._specs, self._starts, size = leaves(specs), list[int](), 0
        for spec in self._specs:
            size = -(-size // spec.dtype.itemsize) * spec.dtype.itemsize
            self._starts.append(size)
            size += prod(spec.shape) * spec.dtype.itemsize
        # In words of 8 bytes, which are copied more quickly than bytes.
        self._memory = torch.zeros(*shape, -(-size // 8), dtype=torch.int64, device=device)
        # The rows of a step of all envs and of its successors, on the host.
        self._step = torch.zeros(2, shape[1], -(-size // 8), dtype=torch.int64)
        self._place()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the copy's state, and let its columns lie in its own memory."""
        vars(self).update(state)
        self._place()

    def _place(self) -> None:
        """Let the leaves of columns lie in `_memory`, and their targets in `_step`."""
        self._packed = [leaf for column in self.columns.values() for leaf in column.leaves]
        for leaf, tensor, step in zip(self._packed, self._views(self._memory), self._views(self._step), strict=True):
            leaf.place(tensor, step.numpy())

    def write(self, at: Any, step: tuple[Any, ...], num_envs: int | None = None, holds_obs: bool = False) -> None:
        """Write a step of all envs; see `RowStorage`."""
        self.has_heads = False  # in case of an interrupt
        for leaf in self._obs.leaves if holds_obs else ():
            leaf.target[0] = leaf.target[1]
        super().write((0, 1), step, holds_obs=holds_obs)
        envs = np.arange(self._step.shape[1])
        rows = [row[0] if isinstance(row, tuple) else row for row in at]
        self._send(np.concatenate([row * len(envs) + envs for row in rows]), self._step.flatten(0, 1))
        self.has_heads = True

    def store(
        self, slots: Array, values: dict[str, Tree], source: Array | None, heads: Array, obs: Tree, envs: Array
    ) -> None:
        """Write values [S, ...] of all columns, and the heads [K]; see `RowStorage`. Host values need no waiting."""
        if not is_on_host(values["reward"], obs):
            return super().store(slots, values, source, heads, obs, envs)
        rows = self._rows(len(slots), [(column, values[name], source) for name, column in self.columns.items()])
        of_heads = self._rows(len(envs), [(self._obs, obs, envs)])
        self._send(np.concatenate([slots, heads]), torch.cat([rows, of_heads]))
        self._step[1, envs] = of_heads
        self.has_heads |= len(envs) == self._step.shape[1]

    def store_heads(self, heads: Array, obs: Tree, envs: Array | None = None) -> None:
        """Write the observations [N, ...] of heads [K]; see `RowStorage`."""
        self.has_heads = False
        super().store_heads(heads, obs, envs)

    def _views(self, rows: Tensor) -> list[Tensor]:
        """Return the values of each leaf in rows [*axes, words], views [*axes, ...]."""
        data, found = rows.view(torch.uint8), []
        for spec, start in zip(self._specs, self._starts, strict=True):
            part = data[..., start : start + prod(spec.shape) * spec.dtype.itemsize]
            found.append(part.view(spec.dtype).view(*rows.shape[:-1], *spec.shape))
        return found

    def _rows(self, num: int, parts: Iterable[tuple[Storage, Tree, Array | None]]) -> Tensor:
        """Return rows [M, words] of the host with values [S, ...] of some columns, at places [M] in S, or all."""
        rows = torch.zeros(num, self._step.shape[-1], dtype=torch.int64)
        views = dict(zip(self._packed, self._views(rows), strict=True))
        for column, tree, source in parts:
            for leaf, value in column.matched(tree):
                views[leaf].copy_(value if source is None else value.index_select(0, torch.from_numpy(source)))
        return rows

    def _send(self, slots: Array, rows: Tensor) -> None:
        """Write rows [M, words] of the host into slots [M]; nothing waits."""
        num, memory = len(slots), self._memory.flatten(0, 1)
        # PyTorch keeps pinned memory until the device has read it.
        staged = torch.empty(num * (1 + memory.shape[1]), dtype=torch.int64, pin_memory=True)
        staged[:num] = torch.from_numpy(slots)
        staged[num:].view(num, -1).copy_(rows)
        sent = staged.to(memory.device, non_blocking=True)
        memory.index_copy_(0, sent[:num], sent[num:].view(num, -1))


def _values(column: Storage, tree: Tree) -> tuple[Any, ...]:
    return tuple(value for _, value in matching_leaves(column.specs, tree, column.name))


class FinalObservations:
    """The successors where a trajectory ended, in a store that grows to the most there ever were at once."""

    def __init__(self, specs: Tree, shape: tuple[int, int], device: torch.device) -> None:
        # [R, N]: where a slot's successor lies in the store. 0, a place that is never used, says that the trajectory
        # continues: the successor is the next row's observation.
        self.index = np.zeros(shape, np.int32)
        self._device = device
        self._on_device = None if device.type == "cpu" else torch.from_numpy(self.index.reshape(-1)).to(device)
        self._store = Storage("final_obs", specs, (16,), device)
        self._free = list(range(1, 16))

    @property
    def nbytes(self) -> int:
        """Bytes of the store and the index."""
        return self._store.nbytes + self.index.nbytes

    def put(self, slots: Array, values: Tree, source: Array | None = None) -> None:
        """End a trajectory at each slot [K]; the successors are values [S, ...], at `source` [K] or all."""
        size, num_missing = self._store.shape[0], len(slots) - len(self._free)
        if num_missing > 0:
            self._store.grow(max(size + num_missing, size * 2))
            self._free.extend(range(size, self._store.shape[0]))
        index = np.array([self._free.pop() for _ in slots], np.int64)
        self._store.scatter(index, values, source)
        self._set(slots, index)

    def release(self, slots: Array) -> None:
        """Forget the ends at slots [M], where there are any."""
        index = self.index.reshape(-1)[slots]
        ended = index > 0
        if ended.any():
            self._free.extend(index[ended].tolist())
            self._set(slots[ended], np.zeros(1, np.int64))

    def repair(self, heads: Array) -> None:
        """Find the free places again after an interrupt; no trajectory ends at the heads [N]."""
        index = self.index.reshape(-1)
        index[heads] = 0
        self._free = np.setdiff1d(np.arange(1, self._store.shape[0]), index).tolist()
        if self._on_device is not None:
            self._on_device.copy_(torch.from_numpy(index))

    def is_end(self, slots: Tensor) -> Tensor:
        """Return whether a trajectory ends at each slot [*axes], in the same shape."""
        index = torch.from_numpy(self.index.reshape(-1)) if self._on_device is None else self._on_device
        return index[slots] > 0

    def replace(self, slots: Tensor, next_obs: Tree) -> Tree:
        """Put the successors of slots [B] that end a trajectory into the next rows' observations [B, ...], in place."""
        if self._on_device is not None:
            # A device graph needs fixed shapes: look up a successor for every slot, then select.
            index = self._on_device.index_select(0, slots)
            final = self._store.gather(index)
            return map_tree(lambda x, y: torch.where((index > 0).view(-1, *[1] * (x.ndim - 1)), y, x), next_obs, final)
        ends = self.index.reshape(-1)[slots.numpy()]  # arrays: most batches hold no end, and NumPy sees it quicker
        if np.count_nonzero(ends):
            ended = np.flatnonzero(ends)
            for after, final in zip(leaves(next_obs), self._store.leaves, strict=True):
                after.numpy()[ended] = final.target[ends[ended]]
        return next_obs

    def clear(self) -> None:
        """Forget all ends; the memory is kept."""
        if len(self._free) < self._store.shape[0] - 1:  # spares an empty buffer the search
            self.release(np.flatnonzero(self.index))

    def of(self, slots: Array) -> Tree:
        """Return copies of the successors of slots [K] that end a trajectory [K, ...]."""
        return self._store.gather(torch.from_numpy(self.index.reshape(-1)[slots]).to(self._device))

    def _set(self, slots: Array, index: Array) -> None:
        self.index.reshape(-1)[slots] = index
        if self._on_device is not None:
            values = to_device(torch.from_numpy(index.astype(np.int32)), self._device).expand(len(slots))
            self._on_device.index_copy_(0, to_device(torch.from_numpy(slots), self._device), values)


def described(dtype: torch.dtype, shape: tuple[object, ...]) -> str:
    """Return a tensor's description for error texts."""
    return f"{str(dtype).removeprefix('torch.')} of shape {shape}"


def matching_leaves(specs: Tree, values: Tree, name: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value [...] of each leaf in the specs' order; a `ReplayBufferError` for another form of tree."""
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


class FrameStack:
    """Takes stacks apart, as gymnasium's `FrameStackObservation` makes them, the oldest frame first.

    Raises:
        ParamsError: `num_frames` is no positive integer.
        SpaceError: the space is no Box with so many frames.
    """

    def __init__(self, owner: str, space: gym.Space[Any], num_frames: int) -> None:
        self.num_frames = checked(owner, "frame_stack", num_frames, PositiveInt)
        if not isinstance(space, gym.spaces.Box) or space.shape[:1] != (num_frames,):
            rule = f"must be a Box with {num_frames} frames along its first axis"
            raise SpaceError.about(owner, "observation_space", rule, space)
        self._owner, self._shape = owner, space.shape
        # The space of a single frame.
        self.space = gym.spaces.Box(space.low[-1], space.high[-1], space.shape[1:], space.dtype.type)

    def newest(self, obs: Any, num_axes: int = 1) -> Any:
        """Return each stack's [*axes, k, ...] newest frame [*axes, ...]; a `ReplayBufferError` for another shape."""
        obs = obs if isinstance(obs, Tensor) else to_array(obs)
        if tuple(obs.shape[num_axes:]) != self._shape:
            text = f"expected stacks of shape {self._shape}, got {tuple(obs.shape)}"
            raise ReplayBufferError(f"{self._owner}.obs: {text}")
        return obs[(slice(None),) * num_axes + (-1,)]

    def check(self, obs: Any, next_obs: Any) -> None:
        """Raise a `ParamsError` unless successors [M, k, ...] are their observations with one new frame at the end."""
        if not np.array_equal(to_array(obs)[:, 1:], to_array(next_obs)[:, :-1]):
            rule = "must be the number of frames in an observation, and the next one must repeat all but the oldest"
            hint = "Leave it out, or wrap the env in gymnasium.wrappers.FrameStackObservation."
            raise ParamsError.about(self._owner, "frame_stack", rule, self.num_frames, hint)


def outside_text(name: str, values: ValueRange, array: Array, axes: tuple[str, ...]) -> str:
    """Return an error's text about the first value of an array [*axes, *shape] outside its space."""
    at = tuple(np.argwhere(values.outside(array))[0].tolist()[: len(axes)])
    where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=True))
    return f"{name}: must lie in {values.space}; {where} is {array[at].tolist()!r}"
