"""The folder of a run, read back: its params, its numbers, its best algorithm, its newest checkpoint."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from rltrainer.algorithms import Algorithm, load
from rltrainer.checkpoint.store import checkpoints_in
from rltrainer.errors import CheckpointError, readable
from rltrainer.files.regular_file import neighbours_hint
from rltrainer.loggers import RunFolder
from rltrainer.loggers.file_logger import NumberedPath
from rltrainer.loggers.json_lines import Columns, LogRow, columns, read_log
from rltrainer.loggers.log_state import read_json_file
from rltrainer.state.registry import Named
from rltrainer.state.state_file import read_state
from rltrainer.validation.field_rules import AnyPath, checked


@dataclass(frozen=True)
class Run:
    """A run in its folder, which may still be training; `open_run` makes one. Log and models are read on access.

    Attributes:
        name: the name of the folder.
        params: the contents of `params.json`.
        trainer: the fields of the trainer's params as plain data; live objects are only named.
        algorithm: the fields of the algorithm's params as plain data.
        runtime: the fields of its runtime params, with a value for each "auto".
        algorithm_class: the name of the algorithm's class.
        versions: the versions of the packages that ran.
        devices: where its "networks" and its replay "buffer" were at the start: such as "cpu", "cuda:0".
        command: the command that started the run.
        git: `commit`, and `dirty` if tracked files differed from it; None outside a repository.
        env_id: the gymnasium id of the env; None if a factory or wrappers made it, or if the id has a module
            (`my_package:MyEnv-v0`), which gymnasium would import: files are data.
        env_kwargs: the arguments of the env beside its id, as plain data.
    """

    folder: RunFolder
    params: Mapping[str, Any] = field(repr=False)
    name: str = field(init=False, repr=False)
    trainer: dict[str, Any] = field(init=False, repr=False)
    algorithm: dict[str, Any] = field(init=False, repr=False)
    runtime: dict[str, Any] = field(init=False, repr=False)
    algorithm_class: str | None = field(init=False, repr=False)
    versions: dict[str, str | None] = field(init=False, repr=False)
    devices: dict[str, str] = field(init=False, repr=False)
    command: str | None = field(init=False, repr=False)
    git: dict[str, Any] | None = field(init=False, repr=False)
    env_id: str | None = field(init=False, repr=False)
    env_kwargs: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        def part(found: Any) -> dict[str, Any]:
            return dict(found) if isinstance(found, Mapping) else {}  # a file may hold anything

        params, env = self.params, part(self.params.get("env"))
        texts = {name: params.get(name) for name in ("algorithm_class", "command")}
        fields = {name: part(params.get(name)).get("fields") for name in ("trainer", "algorithm", "runtime")}
        env_id = env.get("id")
        vars(self).update({name: text if isinstance(text, str) else None for name, text in texts.items()})  # frozen
        vars(self).update({name: part(found) for name, found in fields.items()})
        vars(self).update(
            name=self.folder.path.name, versions=part(params.get("versions")), git=part(params.get("git")) or None,
            env_id=env_id if isinstance(env_id, str) and ":" not in env_id else None,
            env_kwargs=part(part(env.get("kwargs")).get("dict")),
            devices={name: found for name, found in part(params.get("devices")).items() if isinstance(found, str)},
        )  # fmt: skip

    @cached_property
    def log(self) -> list[LogRow]:
        """The rows of its newest JSON lines, read once; `open_run` reads them again."""
        return read_log(self.folder.logs)

    @property
    def kinds(self) -> list[str]:
        """The kinds of rows in the log, in order of first appearance."""
        return list(dict.fromkeys(row.kind for row in self.log))

    def rows(self, kind: str) -> Columns:
        """Return the R rows of one of `kinds` as columns: `run.rows("test")["score"]`.

        Returns:
            `step` [R] int64, and each number by its name, [R] float64, NaN where a row lacks it.
        """
        return columns(self.log, kind)

    def load_best(self, *, classes: Named = (), device: str | torch.device = "cpu") -> Algorithm:
        """Return the algorithm of the best test step; takes and raises what `rl.load` does."""
        return load(self.folder.best, classes=classes, device=device)

    @property
    def newest_checkpoint(self) -> Path | None:
        """The newest checkpoint with a readable manifest, or None."""
        return next((each.path for each in checkpoints_in(self.folder.checkpoints) if each.manifest is not None), None)

    @property
    def videos(self) -> list[Path]:
        """The videos of the run, by name."""
        return sorted(path for path in self.folder.videos.glob("*") if path.suffix in (".mp4", ".webm", ".gif"))

    @property
    def pictures(self) -> list[Path]:
        """The pictures in the run's folder, by name, and its page."""
        return sorted(path for path in self.folder.path.glob("*") if path.suffix in (".png", ".svg", ".pdf", ".html"))

    @property
    def stop_reason(self) -> str | None:
        """The reason of its end: "max_epochs", "stop_fn", or a hook's reason; None while it may continue.

        Only checkpoints hold a hook's reason, and a sweep removes them: `SweepTrial.state` tells pruned trials.
        """
        if (checkpoint := self.newest_checkpoint) is not None:
            reason = read_state(checkpoint / "trainer.safetensors", "trainer", CheckpointError).get("stop_reason")
            if isinstance(reason, str) and reason not in ("signal", "max_epochs"):
                return reason
        if not (epochs := [row.values for row in self.log if row.kind == "epoch"]):
            return None
        if epochs[-1].get("is_stopped"):
            return "stop_fn"
        max_epochs = self.trainer.get("max_epochs")
        is_over = isinstance(max_epochs, int) and (epochs[-1].get("epoch") or 0) >= max_epochs
        return "max_epochs" if is_over else None

    @property
    def is_finished(self) -> bool:
        """True if the run has ended; see `stop_reason`."""
        return self.stop_reason is not None


def open_run(folder: str | os.PathLike[str]) -> Run:
    """Read the run in a folder that `RunFolder`, or `rl.train`, has written. Nothing in it is imported or run.

    Raises:
        CheckpointError: the folder is missing, or holds neither `params.json` nor a log.
    """
    run_folder = RunFolder(Path(checked("open_run", "folder", folder, AnyPath)))
    if not _is_run(path := run_folder.path):
        if path.is_dir():
            found, meant = "holds neither params.json nor logs", sorted(filter(_is_run, path.iterdir()))
        elif path.exists():
            found, meant = "is a file", list(filter(_is_run, path.parents))
        else:
            found, meant = "is no folder", list(filter(_is_run, [Path("runs") / path]))
            found += "" if meant else neighbours_hint(path)
        hint = f". Did you mean {str(meant[0])!r}?" if meant else ""
        raise CheckpointError(f"{path}: expected the folder of a run, as rl.RunFolder makes it; it {found}{hint}")
    file = _params_file(run_folder)
    params = read_json_file(file, "the params of a run") if file.is_file() else {}
    if not isinstance(params, dict):
        raise CheckpointError(f"{file}: expected the params of a run, found {readable(params)}")
    return Run(run_folder, params)


def _params_file(folder: RunFolder) -> Path:
    return NumberedPath(folder.params, ".json").newest(Path.is_file)


def _is_run(path: Path) -> bool:
    folder = RunFolder(path)
    return folder.logs.is_dir() or _params_file(folder).is_file()


def run_of(path: Path) -> Path | None:
    """Return the folder of the run to which a path belongs, or None."""
    return next(filter(_is_run, [path, *path.parents][:4]), None)


def runs_in(path: Path) -> list[Path]:
    """Return the folder of a run, or the folders of all runs below it, by name."""
    if not path.is_dir() or _is_run(path):
        return [path]
    folders = [each for each in path.iterdir() if each.is_dir() and not each.is_symlink()]  # links may be circular
    return sorted(run for each in folders for run in runs_in(each) if _is_run(run))
