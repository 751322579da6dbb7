"""Files of the batches that a run learned from."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rltrainer.errors import ReplayBufferError, readable
from rltrainer.files.atomic_write import write_errors
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.interval import Every, as_every
from rltrainer.state.state_file import read_state, write_state
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.tree import Tree, named_leaves
from rltrainer.types import Load, Rollout, Sequences, State, Transitions
from rltrainer.validation.field_rules import AnyPath, PositiveInt, checked

_DTYPES = {
    **dict.fromkeys(("terminated", "truncated", "valid", "starts", "first"), (torch.bool,)),
    **dict.fromkeys(("index", "final_index"), (torch.int64,)),
    **dict.fromkeys(("reward", "discount", "weight"), (torch.float32, torch.float64)),
}
"""Of those fields of batches that have one."""
BATCHES: dict[str, type[Any]] = {cls.__name__: cls for cls in (Rollout, Transitions, Sequences)}


class BatchRecorder(TrainerHook):
    """Writes the batch of a training step to a safetensors file: raw, as collected, or as `batch_process` made it.

    On policy that is the `Rollout` of the update, off policy that of the cells just stored, offline the sampled
    `Transitions`. The file `batch_000000007.safetensors` is of training step 7. Of its own files it keeps the newest.

    Args:
        folder: for the files; made where it is missing.
        every: the interval, an int in training steps.
        max_files: how many files are kept.

    Raises:
        ParamsError: an argument breaks its rule.
        ReplayBufferError: in the run, a file could not be written.
    """

    def __init__(self, folder: str | Path, every: int | Every = 100, max_files: int = 10) -> None:
        self.folder = Path(checked("BatchRecorder", "folder", folder, AnyPath))
        self.every: Every = as_every("BatchRecorder", every, "training_step")
        self.max_files = checked("BatchRecorder", "max_files", max_files, PositiveInt)
        self._names: list[str] = []

    def pre_steps_log(self, ctx: TrainerContext, batch: Rollout | Transitions) -> None:
        """Write the batch, if one is due, and remove the oldest of too many."""
        if not ctx.crossed(self.every):
            return
        name = f"batch_{ctx.training_step:09d}.safetensors"
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        with write_errors(self.folder / name, ReplayBufferError):
            write_state(self.folder / name, "batch", {"class": type(batch).__name__, "fields": fields})
            self._names = [*(other for other in self._names if other != name), name]
            for old in self._names[: -self.max_files]:
                (self.folder / old).unlink(missing_ok=True)
            del self._names[: -self.max_files]

    @staticmethod
    def load(path: str | Path) -> Rollout | Transitions:
        """Read a batch from a file; the file runs nothing.

        Raises:
            ReplayBufferError: it is missing, damaged, or holds no batch.
        """
        path = Path(checked("BatchRecorder.load", "path", path, AnyPath))
        state = read_state(path, "batch", ReplayBufferError)
        cls, fields = BATCHES.get(str(state.get("class"))), state.get("fields")
        names = set() if cls is None else {field.name for field in dataclasses.fields(cls)}
        if cls is None or not isinstance(fields, dict) or fields.keys() != names:
            raise ReplayBufferError(f"{path}: expected the fields of {' or '.join(BATCHES)}, found something else")
        batch: Rollout | Transitions = cls(**{name: _tree(path, name, value) for name, value in fields.items()})
        _check(path, batch)
        return batch

    def reset(self) -> None:
        """Forget the files of an earlier run."""
        self._names = []

    def state_dict(self) -> State:
        """Return the names of the files that it keeps."""
        return dict(to_state(BatchRecorderState(self._names)))

    def prepare_load(self, state: State) -> Load:
        """Check them, and return what goes on with them."""
        found = from_state(BatchRecorderState, state, type(self).__name__)

        def load() -> None:
            self._names = found.names

        return load


@dataclasses.dataclass
class BatchRecorderState:
    """State of a `BatchRecorder`."""

    names: list[str]

    def problem(self) -> str | None:
        """Return which name is none of a batch's file; they are removed in time, and nothing else must be."""
        wrong = [name for name in self.names if not re.fullmatch(r"batch_\d{9,}\.safetensors", name)]
        return f"names: {wrong[0]!r} is no file of a batch" if wrong else None


def _tree(path: Path, name: str, value: Any) -> Tree:
    """Return a tree of tensors; tuples are lists in a file."""
    if isinstance(value, dict):
        return {key: _tree(path, f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, list):
        return tuple(_tree(path, f"{name}.{i}", part) for i, part in enumerate(value))
    if not isinstance(value, Tensor):
        raise ReplayBufferError(f"{path}: {name}: expected a tensor, found {readable(value)}")
    return value


def _check(path: Path, batch: Rollout | Transitions) -> None:
    """Check that all fields are of the same cells, which those of a reward are.

    Raises:
        ReplayBufferError: one is of others, or of another kind of number.
    """
    cells, axes = {}, batch.reward.shape if isinstance(batch.reward, Tensor) else torch.Size()
    if isinstance(batch, Rollout):
        ends = len(batch.final_index) if isinstance(batch.final_index, Tensor) and batch.final_index.ndim else 0
        cells = dict.fromkeys(("last_obs", "starts"), axes[1:]) | dict.fromkeys(("final_obs", "final_index"), (ends,))
    elif isinstance(batch, Sequences):
        cells = {'extra["state"]': axes[:-2] + axes[-1:]}  # what the first transition was acted on with
    for field in dataclasses.fields(batch):
        for name, leaf in named_leaves(getattr(batch, field.name), field.name):
            expected = tuple(cells.get(name, cells.get(field.name, axes)))
            dtypes, is_number = _DTYPES.get(field.name, (leaf.dtype,)), field.name in _DTYPES
            fits = leaf.dtype in dtypes and tuple(leaf.shape[: leaf.ndim if is_number else len(expected)]) == expected
            if not fits:
                found = f"{leaf.dtype} {tuple(leaf.shape)}"
                raise ReplayBufferError(f"{path}: {name}: expected {dtypes[0]} of the cells {expected}, found {found}")
    if isinstance(batch, Rollout) and not ((batch.final_index >= 0) & (batch.final_index < batch.reward.numel())).all():
        raise ReplayBufferError(f"{path}: final_index: names no cells")
