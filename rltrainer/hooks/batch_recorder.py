"""Files of the batches that a run learned from."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rltrainer.errors import ReplayBufferError, readable
from rltrainer.files.atomic_write import write_errors
from rltrainer.hooks.hook import TrainerContext, TrainerHook
from rltrainer.hooks.hook_runner import misshapen
from rltrainer.interval import Every, as_every
from rltrainer.state.state_file import read_state, write_state
from rltrainer.tree import Tree
from rltrainer.types import Rollout, Sequences, Transitions
from rltrainer.validation.field_rules import AnyPath, PositiveInt, checked

# Dtypes of the fields that have a fixed one.
DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    **dict.fromkeys(("terminated", "truncated", "valid", "starts", "first"), (torch.bool,)),
    **dict.fromkeys(("index", "final_index"), (torch.int64,)),
    **dict.fromkeys(("reward", "discount", "weight"), (torch.float32, torch.float64)),
}
BATCHES: dict[str, type[Any]] = {cls.__name__: cls for cls in (Rollout, Transitions, Sequences)}


@dataclasses.dataclass
class _BatchRecorderState:
    names: list[str] = dataclasses.field(default_factory=list)

    def problem(self) -> str | None:
        # The hook removes files by these names, which come from a file.
        wrong = [name for name in self.names if not re.fullmatch(r"batch_\d{9,}\.safetensors", name)]
        return f"names: {wrong[0]!r} is no file of a batch" if wrong else None


class BatchRecorder(TrainerHook):
    """Writes the batch of a training step to a safetensors file: raw, as collected, or as `batch_process` made it.

    On policy that is the `Rollout` of the update, off policy the newly stored rollout, offline the sampled
    `Transitions`; in a run of several shards, the first shard's. Training step 7 writes
    `batch_000000007.safetensors`. The hook keeps the newest of its own files.

    Args:
        folder: of the files; the hook makes a missing one. A failure to write is a `ReplayBufferError` in the run.
        max_files: the number of files to keep.
    """

    state_class = _BatchRecorderState

    def __init__(self, folder: str | Path, every: int | Every = 100, max_files: int = 10) -> None:
        self.folder = Path(checked("BatchRecorder", "folder", folder, AnyPath))
        self.every: Every = as_every("BatchRecorder", every)
        self.max_files = checked("BatchRecorder", "max_files", max_files, PositiveInt)
        self.state = _BatchRecorderState()

    def pre_steps_log(self, ctx: TrainerContext, batch: Rollout | Transitions) -> None:
        """Write the batch, if one is due, and remove the oldest files beyond the limit."""
        if ctx.crossed(self.every):
            ctx.once(self._write, f"batch_{ctx.training_step:09d}.safetensors", batch)

    def _write(self, name: str, batch: Rollout | Transitions) -> None:
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        with write_errors(self.folder / name, ReplayBufferError):
            write_state(self.folder / name, "batch", {"class": type(batch).__name__, "fields": fields})
            # A resumed run writes the files after its checkpoint again: each has one place in the order of ages.
            names = [*(other for other in self.state.names if other != name), name]
            self.state.names = names[-self.max_files :]
            for old in names[: -self.max_files]:
                (self.folder / old).unlink(missing_ok=True)

    @staticmethod
    def load(path: str | Path) -> Rollout | Transitions:
        """Read a batch from a file, which runs nothing; a file without a whole batch is a `ReplayBufferError`."""
        path = Path(checked("BatchRecorder.load", "path", path, AnyPath))
        state = read_state(path, "batch", ReplayBufferError)
        cls, fields = BATCHES.get(str(state.get("class"))), state.get("fields")
        names = set() if cls is None else {field.name for field in dataclasses.fields(cls)}
        if cls is None or not isinstance(fields, dict) or fields.keys() != names:
            raise ReplayBufferError(f"{path}: expected the fields of {' or '.join(BATCHES)}, found something else")
        batch: Rollout | Transitions = cls(**{name: _tree(path, name, value) for name, value in fields.items()})
        for name in names & DTYPES.keys():
            value = getattr(batch, name)
            if not isinstance(value, Tensor) or value.dtype not in DTYPES[name]:
                raise ReplayBufferError(f"{path}: {name}: expected {DTYPES[name][0]}, found {readable(value)}")
        if problem := misshapen(batch):
            raise ReplayBufferError(f"{path}: {problem}")
        ends = batch.final_index if isinstance(batch, Rollout) else batch.weight.new_zeros(0)
        if not ((ends >= 0) & (ends < batch.reward.numel())).all():
            raise ReplayBufferError(f"{path}: final_index: expected positions of its {batch.reward.numel()} steps")
        return batch


def _tree(path: Path, name: str, value: Any) -> Tree:
    """Return a tree of tensors; tuples are lists in a file."""
    if isinstance(value, dict):
        return {key: _tree(path, f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, list):
        return tuple(_tree(path, f"{name}.{i}", part) for i, part in enumerate(value))
    if not isinstance(value, Tensor):
        raise ReplayBufferError(f"{path}: {name}: expected a tensor, found {readable(value)}")
    return value
