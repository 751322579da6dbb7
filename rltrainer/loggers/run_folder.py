"""The folder of a run, `runs/<name>/`, with its params, logs, models, checkpoints and videos; loggers by name."""

import json
import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Unpack, get_args

from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.files.atomic_write import refuse_links, write_errors
from rltrainer.loggers.file_logger import CSVLogger, NumberedPath, write_new
from rltrainer.loggers.json_lines import JSONLinesLogger
from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, MultiLogger, Row
from rltrainer.loggers.services import MLflowLogger, WandbLogger
from rltrainer.loggers.tensorboard import TensorBoardLogger
from rltrainer.loggers.terminal import ConsoleLogger
from rltrainer.ranks.torch_ranks import process_ranks
from rltrainer.validation.field_rules import AnyPath, AnyText, Rule, checked
from rltrainer.validation.suggestions import check_arguments, did_you_mean

_NAME = re.compile(rb"[^/\\\0]{1,240}")
FolderName = Annotated[
    str,
    Rule(
        "a name for a folder, without / and \\, of at most 240 bytes",
        lambda v: isinstance(v, str) and v not in (".", "..") and bool(_NAME.fullmatch(v.encode(errors="replace"))),
    ),
]
LoggerName = Literal["tensorboard", "csv", "jsonl", "console", "wandb", "mlflow"]
# Each class, and its file in the folder: "" is the folder itself, None is no path.
_CLASSES: dict[str, tuple[type[Logger], str | None]] = {
    "tensorboard": (TensorBoardLogger, ""),
    "csv": (CSVLogger, "log.csv"),
    "jsonl": (JSONLinesLogger, "log.jsonl"),
    "console": (ConsoleLogger, None),
    "wandb": (WandbLogger, ""),
    "mlflow": (MLflowLogger, ""),
}
# The names of files and folders that rltrainer writes in the folder of a run.
WRITTEN = (
    "params.json", "recipe.json", "start.safetensors", "best.safetensors", "logs",
    "checkpoints", "checkpoints/rows", "checkpoints/episodes", "videos", "page.html", "learning_curve.png",
)  # fmt: skip


def get_logger(name: LoggerName, /, folder: str | os.PathLike[str] = "runs", **options: Any) -> Logger:
    """Return a logger by its name, with its files in a folder: "csv" writes `log.csv`, "jsonl" `log.jsonl`.

    `options` are further arguments of its class, such as `training_interval=1000` or `project="control"`. An unknown
    name raises a `ParamsError`, an unknown option an `ArgumentError`.
    """
    if not isinstance(name, str) or name not in _CLASSES:
        names = get_args(LoggerName)
        hint = did_you_mean(name, names).strip() if isinstance(name, str) else ""
        raise ParamsError.about("get_logger", "name", f"must be one of {names}", name, hint)
    cls, file = _CLASSES[name]
    folder = Path(checked("get_logger", "folder", folder, AnyPath))
    args = () if file is None else (folder / file,)
    check_arguments("get_logger", cls.__init__, (None, *args), options, "option", cls.argument_hint)
    return cls(*args, **options)


@dataclass(frozen=True, init=False)
class RunFolder:
    """The files of one run: `RunFolder.new("cartpole")` makes a folder that no other run has.

    `RunFolder(folder)` is an existing folder, for a run that continues. What is no path raises a `ParamsError`.

    Attributes:
        path: the folder.
        params: the file of the run's params, which `logger` writes.
        best: the file of the best algorithm.
        logs, checkpoints, videos: the folders of these.
    """

    path: Path
    params: Path = field(repr=False)
    best: Path = field(repr=False)
    logs: Path = field(repr=False)
    checkpoints: Path = field(repr=False)
    videos: Path = field(repr=False)

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(checked("RunFolder", "folder", folder, AnyPath))
        vars(self).update(path=path, params=path / "params.json", best=path / "best.safetensors")  # frozen
        vars(self).update({name: path / name for name in ("logs", "checkpoints", "videos")})

    @classmethod
    def new(cls, name: str, root: str | os.PathLike[str] = "runs") -> Self:
        """Make `<root>/<name>`, or the same with the next number (`cartpole-2`) if it is taken, by any process.

        Under `torchrun` all processes make this call, and have one folder. A name that is none of a folder is a
        `ParamsError`, a failure to make it a `CheckpointError`.
        """
        name = checked("RunFolder.new", "name", name, FolderName)
        root = checked("RunFolder.new", "root", root, AnyPath)
        with (ranks := process_ranks()).reporting(), write_errors(Path(root) / name, CheckpointError):
            return cls(ranks.on_first(lambda: str(NumberedPath(Path(root) / name, "").claim())))

    def refuse_links(self) -> None:
        """Raise a `CheckpointError` for a link in the folder, which may come from elsewhere, before a run writes."""
        logs = [] if self.logs.is_symlink() else self.logs.glob("*")
        refuse_links([*(self.path / name for name in WRITTEN), *logs], CheckpointError)

    def logger(self, *names: LoggerName, **options: Unpack[LoggerOptions]) -> MultiLogger:
        """Return a logger that writes here: the params to `params.json`, rows to JSON lines and to further loggers.

        `names` are further loggers of `get_logger`; "jsonl", which `open_run` and pictures read, is always there. A
        service's run takes the folder's name.
        """
        self.refuse_links()
        loggers: list[Logger] = [ParamsFile(self.params)]
        for name in dict.fromkeys(("jsonl", *names)):
            # A service lists all runs: the folder's name finds this one there.
            own = {"name": self.path.name} if name in ("wandb", "mlflow") else {}
            loggers.append(get_logger(name, self.logs, **own, **options))
        return MultiLogger(*loggers)

    def save_best(self, algorithm: Any) -> None:
        """Write the best algorithm; a trainer's `save_best_fn`."""
        self.refuse_links()
        algorithm.save(self.best)


class ParamsFile(Logger):
    """Writes the params of a run to a file of its own, with the state of git, and no row."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __repr__(self) -> str:
        return f"ParamsFile({str(self._path)!r})"

    def is_due(self, kind: Kind, step: int, update_step: int = 0, gradient_step: int | None = None) -> bool:
        """Return False."""
        return False

    def gather(self, *args: Any, **options: Any) -> None:
        """Do nothing."""

    def log(self, kind: Kind, values: Row, step: int, update_step: int = 0, gradient_step: int | None = None) -> None:
        """Note the step, which tells this run from the next one."""
        self._state.last_step = step

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        return

    def _write_params(self, params: Mapping[str, Any]) -> None:
        text = json.dumps({**params, "git": git_state()}, indent=2) + "\n"
        NumberedPath(self._path, ".json").claim(partial(write_new, text=text))


def generate_exp_name(prefix: str, *parts: str) -> str:
    """Return a name that no other run has, with the time and a random end: `ppo_Ant-v5_26_11_22-09_30_00_1f2e3d4c`.

    Names of one prefix sort by time. Characters that a folder's name should not have become `-`. A prefix or part that
    is no text raises a `ParamsError`.
    """
    given = (("prefix", prefix), *(("parts", part) for part in parts))
    texts = [checked("generate_exp_name", field, text, AnyText) for field, text in given]
    time = datetime.now().strftime("%y_%m_%d-%H_%M_%S")
    return "_".join([*(re.sub(r"[^\w.-]+", "-", text) for text in texts), time, secrets.token_hex(4)])


def git_state() -> dict[str, Any] | None:
    """Return the `commit` of the current folder's repository, and whether tracked files differ from it (`dirty`).

    None without a repository, a commit, or git itself.
    """
    commit = _git("rev-parse", "--verify", "HEAD")
    if commit is None or commit.returncode != 0:
        return None
    differs = _git("diff-index", "--quiet", "HEAD", "--")
    return {"commit": commit.stdout.strip(), "dirty": differs is None or differs.returncode != 0}


def _git(*args: str) -> "subprocess.CompletedProcess[str] | None":
    # A repository may configure programs that git would run: these settings switch them off. A repository on a drive
    # that does not answer in time counts as none.
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=" + os.devnull, *args]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
