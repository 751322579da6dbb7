"""The loggers by name: a closed set, from which one is chosen by a word."""

import os
from pathlib import Path
from typing import Any, Literal, get_args

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.loggers.console import ConsoleLogger
from rltrainer.loggers.csv_file import CSVLogger
from rltrainer.loggers.json_lines import JSONLinesLogger
from rltrainer.loggers.logger import Logger
from rltrainer.loggers.mlflow_logger import MLflowLogger
from rltrainer.loggers.tensorboard import TensorBoardLogger
from rltrainer.loggers.wandb_logger import WandbLogger
from rltrainer.validation.field_rules import AnyPath, checked
from rltrainer.validation.suggestions import check_arguments, did_you_mean

LoggerName = Literal["tensorboard", "csv", "jsonl", "console", "wandb", "mlflow"]

_CLASSES: dict[str, tuple[type[Logger], str | None]] = {
    "tensorboard": (TensorBoardLogger, ""),
    "csv": (CSVLogger, "log.csv"),
    "jsonl": (JSONLinesLogger, "log.jsonl"),
    "console": (ConsoleLogger, None),
    "wandb": (WandbLogger, ""),
    "mlflow": (MLflowLogger, ""),
}
"""Each class, and what it writes in the folder: `` the folder itself, None nothing."""


def get_logger(name: LoggerName, /, folder: str | os.PathLike[str] = "runs", **options: Any) -> Logger:
    """Return a logger by its name.

    Args:
        name: "tensorboard", "csv" (`log.csv`), "jsonl" (`log.jsonl`), "console", "wandb" or "mlflow".
        folder: where it writes; "console" does not.
        options: further arguments of its class, such as `training_interval=1000` or `project="control"`.

    Raises:
        ParamsError: there is no such logger, or it has no such option.
        MissingExtraError: it needs an extra that is not installed.
    """
    if not isinstance(name, str) or name not in _CLASSES:
        names = get_args(LoggerName)
        hint = did_you_mean(name, names).strip() if isinstance(name, str) else ""
        raise ParamsError(field_error_text("get_logger", "name", f"must be one of {names}", name, hint))
    cls, file = _CLASSES[name]
    folder = Path(checked("get_logger", "folder", folder, AnyPath))
    args = () if file is None else (folder / file,)
    check_arguments("get_logger", cls, args, options, "option")
    return cls(*args, **options)
