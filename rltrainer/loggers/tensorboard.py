"""Log to TensorBoard."""

import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Unpack

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.loggers.event_file import EVENT_FILES, FIRST, beginning, events, new_name, row
from rltrainer.loggers.extent import Extent
from rltrainer.loggers.file_logger import AppendedFile, Epochs, FileLogger
from rltrainer.loggers.logger import Kind, LoggerOptions, Row

PROGRESS_TAG = "epoch/progress"
_TEXT = f"{PROGRESS_TAG}/text_summary"
"""The tag that TensorBoard gives a text."""


class TensorBoardLogger(FileLogger):
    """Write scalars for TensorBoard; look at them with `tensorboard --logdir <path>`.

    A log is continued in a new event file. `log_epoch` also writes its row as JSON text, which keeps what a scalar
    cannot: counts beyond float32 and None. The params of the run are among the texts.

    Args:
        path: the folder of event files; it is made when a run begins. If a run has used it, `cartpole-2` and so on.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a file, or an option breaks its rule.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise ParamsError(field_error_text("TensorBoardLogger", "path", "must be the path of a folder", path))
        if Path(path).is_file():
            raise ParamsError(field_error_text("TensorBoardLogger", "path", "must be a folder, not a file", path))
        super().__init__(Path(path), "", **options)
        # Rows of earlier files are hidden from this step on, by this file and by the next one; None hides none.
        self._purge_step: int | None = None
        self._next_purge_step: int | None = None
        self._claimed: Path | None = None

    def _epochs(self, path: Path) -> Epochs:
        # By time, because the names of event files of one second are in no certain order.
        found = [event for file in path.glob(f"{EVENT_FILES}*") for event in events(file) if _matters(event)]
        rows: list[tuple[int, bytes]] = []
        for event in sorted(found, key=lambda event: float(event.wall_time)):
            if event.session_log.status == event.session_log.START:  # which hides later rows of earlier files
                rows = [row for row in rows if row[0] < event.step]
            texts = [each.tensor.string_val[:1] for each in event.summary.value if each.tag == _TEXT]
            rows += [(event.step, b"".join(text)) for text in texts]
        for step, text in rows:
            yield f"the epoch row of step {step}", text

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        scalars = {name: value for name, value in values.items() if value is not None}
        texts = {PROGRESS_TAG: json.dumps(dict(values))} if kind == "epoch" else {}
        self._append(row(step, scalars, texts))

    def _write_params(self, params: Mapping[str, Any]) -> None:
        texts = {f"params/{name}": f"```\n{json.dumps(value, indent=2)}\n```" for name, value in params.items()}
        self._append(row(0, {}, texts))

    def _is_log(self, path: Path) -> bool:
        return any(path.glob(f"{EVENT_FILES}*"))

    def _claim(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / FIRST).touch(exist_ok=False)
        self._claimed = path / FIRST

    def _move(self, path: Path) -> None:
        super()._move(path)
        self._next_purge_step = None

    def _drop_after(self, step: int) -> None:
        """Have the next file hide the rows of later steps, which TensorBoard leaves out from then on."""
        self._next_purge_step = step + 1

    _hide_after = _drop_after

    def _measure_files(self) -> dict[str, Extent]:
        files = sorted(self.path.glob(f"{EVENT_FILES}*"))
        return {file.name: Extent.of(file, file.stat().st_size) for file in files}

    def _find(self, place: Path, name: str) -> Path | None:
        return place / name if Path(name).name == name and name.startswith(EVENT_FILES) else None

    def _open(self) -> FileIO:
        claimed, self._claimed = self._claimed, None
        is_ours = claimed is not None and claimed.parent == self.path
        file = AppendedFile(claimed if claimed and is_ours else self.path / new_name())
        self._purge_step, self._next_purge_step = self._next_purge_step, None
        return file

    def _beginning(self) -> bytes:
        return beginning(self._purge_step)


def _matters(event: Any) -> bool:
    """Return whether an event says how far a run has come, or hides what others say."""
    return event.HasField("session_log") or any(each.tag == _TEXT for each in event.summary.value)
