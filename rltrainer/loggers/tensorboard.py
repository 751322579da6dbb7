"""Log to TensorBoard, in event files that are written at once and by the caller, so that failures reach him.

TensorBoard's own writer leaves that to a thread, which prints where nobody can answer.
"""

import io
import itertools
import json
import os
import socket
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Unpack

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.loggers.file_logger import AppendedFile, FileLogger
from rltrainer.loggers.logger import Kind, LoggerOptions, Row

EVENT_FILES = "events.out.tfevents."
FIRST = f"{EVENT_FILES}0000000000.first"
"""The first event file of a run: one name for all processes, so that only one of them can make it."""
_NUMBERS = itertools.count()


class TensorBoardLogger(FileLogger):
    """Write scalars for TensorBoard; look at them with `tensorboard --logdir <folder>`.

    A log is continued in a new event file, with the counters that `resume_from_log` reads in
    `tensorboard.progress.json` beside it. The params of the run are among the texts.

    Args:
        folder: where the event files are; it is made when a run begins. If a run has used it, `cartpole-2` and so on.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        ParamsError: the path is a file, or an option breaks its rule.
    """

    def __init__(self, folder: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise ParamsError(field_error_text("TensorBoardLogger", "folder", "must be the path of a folder", folder))
        if Path(folder).is_file():
            raise ParamsError(field_error_text("TensorBoardLogger", "folder", "must be a folder, not a file", folder))
        super().__init__(Path(folder), "", **options)
        self._hiding = b""  # an event that hides rows of earlier files, written before the next piece

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        self._append(_row(step, {name: value for name, value in values.items() if value is not None}, {}))

    def _write_params(self, params: Mapping[str, Any]) -> None:
        texts = {f"params/{name}": f"```\n{json.dumps(value, indent=2)}\n```" for name, value in params.items()}
        self._append(_row(0, {}, texts))

    def _append(self, data: bytes) -> None:
        super()._append(self._hiding + data)
        self._hiding = b""

    def _is_log(self, path: Path) -> bool:
        return any(path.glob(f"{EVENT_FILES}*"))

    def _claim(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        (path / FIRST).touch(exist_ok=False)

    def _move(self, path: Path) -> None:
        super()._move(path)
        self._hiding = b""

    def _hide_after(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]  # has no types

        self._hiding = _event(step + 1, session_log=SessionLog(status=SessionLog.START))

    def _files(self) -> dict[str, Path]:
        return {file.name: file for file in sorted(self.path.glob(f"{EVENT_FILES}*"))}

    def _find(self, place: Path, name: str) -> Path | None:
        return place / name if Path(name).name == name and name.startswith(EVENT_FILES) else None

    def _size(self, file: Path) -> int:
        return file.stat().st_size

    def _open(self) -> FileIO:
        first = self.path / FIRST
        is_claimed = first.is_file() and first.stat().st_size == 0
        name = f"{EVENT_FILES}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        return AppendedFile(first if is_claimed else self.path / name)

    def _beginning(self) -> bytes:
        return _event(0, file_version="brain.Event:2")

    def _counters_of(self, path: Path) -> Path:
        return path / "tensorboard.progress.json"


def _row(step: int, scalars: Mapping[str, float], texts: Mapping[str, str]) -> bytes:
    """Return the event of a row."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # type: ignore[import-untyped]
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[import-untyped]

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    for tag, text in texts.items():
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        tensor.tensor_shape.dim.add(size=1)
        values.append(Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor))
    return _event(step, summary=Summary(value=values))


def _event(step: int, **what: object) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

    stream = io.BytesIO()
    RecordWriter(stream).write(Event(wall_time=time.time(), step=step, **what).SerializeToString())
    return stream.getvalue()
