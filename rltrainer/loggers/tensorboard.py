"""Log to TensorBoard, in event files that the caller writes at once.

TensorBoard's own writer leaves this to a thread: its failures would not reach the caller.
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

from rltrainer.errors import ParamsError
from rltrainer.loggers.file_logger import AppendedFile, FileLogger
from rltrainer.loggers.logger import Kind, LoggerOptions, Row
from rltrainer.validation.field_rules import AnyPath, checked

EVENT_FILES = "events.out.tfevents."
# The first event file of a run: the same name in all processes, so that only one of them can make it.
FIRST = f"{EVENT_FILES}0000000000.first"
_NUMBERS = itertools.count()


class TensorBoardLogger(FileLogger):
    """Writes scalars for TensorBoard; `tensorboard --logdir <folder>` shows them.

    A continued log takes a new event file; `tensorboard.progress.json` beside it holds the counters for
    `resume_from_log`. The params of the run are among the texts.

    If a run has used the folder, a new one takes `cartpole-2` and so on. What is no path of a folder raises a
    `ParamsError`.
    """

    def __init__(self, folder: str | os.PathLike[str], **options: Unpack[LoggerOptions]) -> None:
        if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
            raise ParamsError.about("TensorBoardLogger", "folder", "must be the path of a folder", folder)
        checked("TensorBoardLogger", "folder", folder, AnyPath)
        if Path(folder).is_file():
            raise ParamsError.about("TensorBoardLogger", "folder", "must be a folder, not a file", folder)
        super().__init__(Path(folder), "", **options)
        self._hiding = b""  # an event that is written before the next piece

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

    def _move(self, path: Path, cuts: dict[Path, int], last_step: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]  # has no types

        super()._move(path, cuts, last_step)
        # Cuts do not reach event files that are newer than the checkpoint: this event hides their rows of later steps.
        start = SessionLog(status=SessionLog.START)
        self._hiding = b"" if last_step is None else _event(last_step + 1, session_log=start)

    def _files(self, path: Path) -> dict[str, Path]:
        return {file.name: file for file in sorted(path.glob(f"{EVENT_FILES}*"))}

    def _open(self) -> FileIO:
        first = self.path / FIRST
        is_claimed = first.is_file() and first.stat().st_size == 0
        name = f"{EVENT_FILES}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        return AppendedFile(first if is_claimed else self.path / name)

    def _header(self) -> bytes:
        return _event(0, file_version="brain.Event:2")

    def _counters_of(self, path: Path) -> Path:
        return path / "tensorboard.progress.json"


def _row(step: int, scalars: Mapping[str, float], texts: Mapping[str, str]) -> bytes:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # type: ignore[import-untyped]
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[import-untyped]

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    for tag, text in texts.items():
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        tensor.tensor_shape.dim.add(size=1)
        values.append(Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor))
    return _event(step, summary=Summary(value=values))


def _event(step: int, **contents: object) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

    # Length and checksums frame a record: a reader stops before one that a kill broke off.
    stream = io.BytesIO()
    RecordWriter(stream).write(Event(wall_time=time.time(), step=step, **contents).SerializeToString())
    return stream.getvalue()
