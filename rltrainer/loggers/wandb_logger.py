"""Log to Weights & Biases."""

import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Unpack
from urllib.parse import quote

from rltrainer.errors import ParamsError, field_error_text, missing_extra
from rltrainer.loggers.log_state import LoggerState
from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, Row
from rltrainer.types import Load
from rltrainer.validation.field_rules import AnyPath, AnyText, checked

Mode = Literal["online", "offline", "disabled"]


class WandbLogger(Logger):
    """Write rows to a run of Weights & Biases, over our steps; what the run was told is its config. Extra `wandb`.

    A run that is restored, or resumed by `resume_from_log`, continues the same run of the service. Online the service
    tells how far that has come, and rows that it has already are left out: none is doubled or missing (of the last
    step before a kill, the row may hold a part only). Offline each start has a folder of its own under one id;
    `wandb sync` of all of them sends the rows between a checkpoint and a kill twice.

    Args:
        folder: where W&B keeps files, in `<folder>/wandb`, and we the counters that `resume_from_log` reads; it is made
            with the first row.
        project: of the service.
        name: of the run, as it is shown; None leaves it to W&B.
        mode: "offline" writes files only, which `wandb sync` sends; None is what W&B is set to (WANDB_MODE), or online.
        init: further arguments of `wandb.init`, such as `{"entity": "lab", "tags": ["sweep"]}`.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        MissingExtraError: W&B is not installed.
        ParamsError: an argument breaks its rule.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = "runs",
        project: str = "rltrainer",
        name: str | None = None,
        *,
        mode: Mode | None = None,
        init: Mapping[str, Any] | None = None,
        **options: Unpack[LoggerOptions],
    ) -> None:
        super().__init__(**options)
        self.folder = Path(checked("WandbLogger", "folder", folder, AnyPath))
        self.project = checked("WandbLogger", "project", project, AnyText)
        self.name = checked("WandbLogger", "name", name, AnyText | None)
        self.mode = checked("WandbLogger", "mode", mode, Mode | None)
        own = {"dir", "project", "name", "mode", "id", "resume"}
        if not isinstance(init, Mapping | None) or own & set(init or {}):
            rule = f"must be a mapping of arguments of wandb.init without {', '.join(sorted(own))}"
            raise ParamsError(field_error_text("WandbLogger", "init", rule, init))
        self._init = dict(init or {})
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("WandbLogger", "wandb", error) from error
        self._wandb = wandb
        self._run: Any = None
        self._id: str | None = None

    def __repr__(self) -> str:
        return f"WandbLogger({str(self.folder)!r}, {self.project!r}, id={self._id!r})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        run = self._opened()
        if step >= run.step:  # else the service has it: the run was resumed behind what it had written
            run.log({name: value for name, value in values.items() if value is not None}, step=step)

    def _write_params(self, params: Mapping[str, Any]) -> None:
        self._opened().config.update(dict(params), allow_val_change=True)

    def _opened(self) -> Any:
        if self._run is None:
            self._id = self._id or secrets.token_hex(4)
            self.folder.mkdir(parents=True, exist_ok=True)
            quiet = {"settings": self._wandb.Settings(silent=True)}
            self._run = self._wandb.init(
                **(quiet | self._init), dir=str(self.folder), project=self.project, name=self.name, mode=self.mode,
                id=self._id, resume="allow",
            )  # fmt: skip
            place = self._run.dir if self._run.offline else self._run.url
            logging.getLogger("rltrainer").info("WandbLogger: run %s at %s", self._id, place)
        return self._run

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()

    def _counters_file(self) -> Path:
        return self.folder / f"wandb.{quote(self.project, '')}.{quote(self.name or '', '')}.progress.json"

    def _place_name(self) -> str | None:
        return self._id

    def _take_new_place(self) -> None:
        self._close()
        self._id = None

    def _prepare_files(self, state: LoggerState) -> Load | None:
        def load() -> None:
            self._close()
            self._id = state.place

        return load
