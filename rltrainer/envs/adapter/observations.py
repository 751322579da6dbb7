"""The memory of an adapter: observations in the dtypes that are stored, and the result of a step."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rltrainer.envs.adapter.episode_clock import Rows
from rltrainer.envs.checks import describe
from rltrainer.errors import SpaceError
from rltrainer.spaces import leaf_shape, stored_dtype
from rltrainer.tree import Tree, leaves, map_tree, named_leaves, packed_like


@dataclass(slots=True)
class ObsMemory:
    """One observation of all envs, copied from the env at once."""

    obs: Tree  # [N, ...], arrays or tensors as the env returns
    tensor: Tree  # the same as tensors on the policy's device
    shares: bool  # whether `tensor` is in the memory of `obs`, so that nothing has to be uploaded
    # The bytes of `obs`, in pinned memory, and of `tensor`, for arrays that are uploaded; and the end of an upload.
    packed: tuple[torch.Tensor, torch.Tensor, torch.cuda.Event] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep shared memory shared, and packed memory packed, in a copy."""
        return _copied_memory, (self.obs, None if self.shares else self.tensor, self.packed is not None)

    @classmethod
    def allocate(
        cls, space: Tree, num_envs: int, device: torch.device, env_device: torch.device | None,
        partner: "ObsMemory | None" = None,
    ) -> "ObsMemory":  # fmt: skip
        """Make memory [N, ...] for a tree of leaf spaces; `env_device` is None if the env returns NumPy arrays.

        What is uploaded goes to the place on the device that `partner` has: one of the two is acted on at a time, and a
        graph that acts reads one place.
        """
        home = env_device or torch.device("cpu")
        is_packed = env_device is None and device.type == "cuda"

        def zeros(leaf: Any) -> torch.Tensor:
            shape = (num_envs, *leaf_shape(leaf))
            return torch.zeros(shape, dtype=stored_dtype(leaf), device="meta" if is_packed else home)

        tensor = map_tree(zeros, space)
        if is_packed:
            return _packed_memory(tensor, device, partner)
        obs = map_tree(torch.Tensor.numpy, tensor) if env_device is None else tensor
        if device == home:
            return cls(obs, tensor, True)
        return cls(obs, map_tree(lambda leaf: torch.empty_like(leaf, device=device), tensor), False)

    def write(self, obs: Tree) -> None:
        """Copy the observations of all envs [N, ...]."""
        self._end_upload()
        if type(self.obs) is np.ndarray:  # the common case without a walk over the tree, at each step
            self.obs[...] = obs
        else:
            self.write_rows(..., obs)

    def write_rows(self, rows: Any, values: Tree) -> None:
        """Copy values [len(rows), ...] into some envs' rows."""

        def assign(here: Any, there: Any) -> None:
            here[rows] = torch.as_tensor(there).to(here) if isinstance(here, torch.Tensor) else there

        self._end_upload()
        map_tree(assign, self.obs, values)

    def write_row(self, n: int, value: Tree) -> None:
        """Copy one env's observation [...]; raise a `SpaceError` if a leaf of it has another shape."""
        ordered = leaves(map_tree(lambda here, there: there, self.obs, value))
        for (name, here), there in zip(named_leaves(self.obs), ordered, strict=True):
            shape = tuple(here.shape[1:])
            if np.shape(there) != shape:
                raise SpaceError(f"env {n} final_obs{name}: expected shape {shape}, got {describe(there)}")
            here[n] = torch.as_tensor(there) if isinstance(here, torch.Tensor) else there

    def _end_upload(self) -> None:
        """Wait for a copy from the arrays: mostly it is over, as an action was chosen since."""
        if self.packed is not None:
            self.packed[2].synchronize()

    @property
    def num_changes(self) -> int:
        """The changes that PyTorch made in the memory of an env's arrays: a policy's, as our own are NumPy's."""
        # A walk over a tree takes several us, at each collection.
        tensors = [self.tensor] if isinstance(self.tensor, torch.Tensor) else leaves(self.tensor)
        return sum(tensor._version for tensor in tensors) if self.shares else 0

    def upload(self) -> None:
        """Bring `tensor` up to date, where it is in memory of its own."""
        if self.packed is not None:
            here, there, event = self.packed
            there.copy_(here, non_blocking=True)
            event.record(torch.cuda.current_stream(there.device))
            return
        for here, there in zip(leaves(self.tensor), leaves(self.obs), strict=True) if not self.shares else ():
            here.copy_(torch.as_tensor(there))


@dataclass(slots=True)
class EnvStep:
    """Result of one step of all envs; the adapter reuses it, so it is valid until the next step.

    Args:
        next_obs: tree [N, ...], the true successors: at the end of an episode its final observation.
        reward: [N] float32, or [N, A] for A agents.
        terminated, truncated: [N] bool.
        valid: [N] bool, False where the env spent the step on its reset, or was restarted; None if all are valid.
        finished: [K] int64, the envs that ended an episode with this step; None if none did.
    """

    next_obs: Tree
    reward: Any
    terminated: Any
    truncated: Any
    valid: Any = None
    finished: Rows | None = None

    @classmethod
    def like(cls, reward: Any, terminated: Any, truncated: Any) -> "EnvStep":
        """Return memory for results like this one."""
        is_tensor = isinstance(reward, torch.Tensor)
        zeros: Any = torch.zeros_like if is_tensor else np.zeros_like
        float32: Any = torch.float32 if is_tensor else np.float32
        return cls(None, zeros(reward, dtype=float32), zeros(terminated), zeros(truncated))

    def void(self, rows: Rows) -> None:
        """Mark the steps that these envs [K] spent on a reset as no transitions."""
        self.valid = np.ones(len(self.reward), np.bool_)
        self.valid[rows] = False
        is_tensor = isinstance(self.reward, torch.Tensor)
        kept: Any = torch.from_numpy(self.valid).to(self.reward.device) if is_tensor else self.valid
        self.reward[~kept] = 0.0
        self.terminated &= kept
        self.truncated &= kept


def all_finite(values: Tree) -> bool:
    """Return whether all numbers of a tree of arrays or tensors, of any shapes, are finite."""
    if not isinstance(values, np.ndarray | torch.Tensor):
        return all(map(all_finite, leaves(values)))
    if isinstance(values, np.ndarray):
        # Counting is several times as fast as `all`.
        return values.dtype.kind != "f" or int(np.count_nonzero(np.isfinite(values))) == values.size
    return not values.is_floating_point() or bool(torch.isfinite(values).all())


def take_rows(obs: Tree, rows: Any) -> Tree:
    """Return a copy of some envs' rows [len(rows), ...]."""
    return map_tree(lambda leaf: leaf[rows], obs)


def _packed_memory(like: Tree, device: torch.device, partner: ObsMemory | None = None) -> ObsMemory:
    """Return memory for arrays like these tensors [N, ...], which goes up in one copy from pinned memory."""
    # An upload from pinned memory is several times faster.
    here, pinned = packed_like(like, "cpu", pin_memory=True)
    if partner is not None and partner.packed is not None:
        there, tensor = partner.packed[1], partner.tensor
    else:
        there, tensor = packed_like(like, device)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch ships no type of it
    return ObsMemory(map_tree(torch.Tensor.numpy, pinned), tensor, False, (here, there, event))


def _copied_memory(obs: Tree, tensor: Tree | None, is_packed: bool) -> ObsMemory:
    if is_packed:
        memory = _packed_memory(tensor, leaves(tensor)[0].device)
        memory.write(obs)
        memory.upload()
        return memory
    return ObsMemory(obs, map_tree(torch.as_tensor, obs) if tensor is None else tensor, tensor is None)
