"""Log to TensorBoard."""

import json
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Unpack

from rltrainer.errors import CheckpointError, ParamsError, field_error_text
from rltrainer.loggers.event_file import EVENT_FILES, beginning, new_name, row
from rltrainer.loggers.extent import Extent
from rltrainer.loggers.file_logger import AppendedFile, Epochs, FileLogger
from rltrainer.loggers.logger import Kind, LoggerOptions, Row
from rltrainer.regular_file import open_regular

PROGRESS_TAG = "epoch/progress"


class TensorBoardLogger(FileLogger):
    """Write scalars for TensorBoard; look at them with `tensorboard --logdir <path>`.

    A log is continued in a new event file. `log_epoch` also writes its row as JSON text, which keeps what a scalar
    cannot: counts beyond float32 and None. The params of the run are among the texts.

    Args:
        path: the folder of event files; it is made at the first row. If a run has used it, `cartpole-2` and so on.
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

    def _epochs(self, path: Path) -> Epochs:
        from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]  # has no types

        if not path.is_dir():
            return
        for file in path.iterdir():
            if "tfevents" in file.name:  # what TensorBoard opens, and would wait for if it is a pipe
                _check_regular(file)
        log = event_accumulator.EventAccumulator(str(path), size_guidance={"tensors": 0, "scalars": 1})
        try:
            log.Reload()
        except Exception as error:  # whatever TensorBoard says of a file that is none of its own
            text = f"TensorBoard cannot read it ({type(error).__name__}: {error})"
            raise CheckpointError(f"{path}: no run goes on from it: {text}") from error
        tag = f"{PROGRESS_TAG}/text_summary"
        events = log.Tensors(tag) if tag in log.Tags()["tensors"] else []
        # By time, because event files of one second are read in no certain order.
        for event in sorted(events, key=lambda event: event.wall_time):
            yield f"the epoch row of step {event.step}", b"".join(event.tensor_proto.string_val[:1])

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        scalars = {name: value for name, value in values.items() if value is not None}
        texts = {PROGRESS_TAG: json.dumps(dict(values))} if kind == "epoch" else {}
        self._append(row(step, scalars, texts))

    def _write_params(self, params: Mapping[str, Any]) -> None:
        texts = {f"params/{name}": f"```\n{json.dumps(value, indent=2)}\n```" for name, value in params.items()}
        self._append(row(0, {}, texts))

    def _is_log(self, path: Path) -> bool:
        return any(path.glob(f"{EVENT_FILES}*"))

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
        file = AppendedFile(self.path / new_name())
        self._purge_step, self._next_purge_step = self._next_purge_step, None
        return file

    def _beginning(self) -> bytes:
        return beginning(self._purge_step)


def _check_regular(file: Path) -> None:
    """Raise a `CheckpointError` if what is to be read is no file."""
    try:
        open_regular(file).close()
    except OSError as error:
        raise CheckpointError(f"{file}: {error.strerror or error}") from error
