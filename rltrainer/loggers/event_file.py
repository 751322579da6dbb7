"""An event file, as TensorBoard reads it. Written at once and by the caller, so that he sees what goes wrong.

TensorBoard's own writer leaves that to a thread, which prints where nobody can answer.
"""

import io
import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from rltrainer.loggers.append_file import AppendFile

EVENT_FILES = "events.out.tfevents."
_NUMBERS = itertools.count()


class EventFile:
    """A new file of rows in a folder; the folder and the file are made at the first one.

    Args:
        folder: where TensorBoard looks.
        purge_step: rows of earlier files of the folder are hidden from this step on; None hides none.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        name = f"{EVENT_FILES}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self._path, self._purge_step = folder / name, purge_step
        self._file: AppendFile | None = None

    def append(self, step: int, scalars: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Write one row, all or nothing; it is with the operating system when this returns.

        Raises:
            OSError: it could not be written; the file is as before.
        """
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = AppendFile(self._path)
        before = self._file.seek(0, os.SEEK_END)
        data = (self._beginning() if before == 0 else b"") + _row(step, scalars, texts)
        num_written = self._file.write(data)
        if num_written != len(data):
            self._file.truncate(before)
            raise OSError(f"{self._path}: only {num_written} of {len(data)} bytes could be written")

    def close(self) -> None:
        """Release the file; a later row would continue it."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _beginning(self) -> bytes:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]  # has no types

        begin = _record(0, file_version="brain.Event:2")
        if self._purge_step is not None:
            begin += _record(self._purge_step, session_log=SessionLog(status=SessionLog.START))
        return begin


def _row(step: int, scalars: Mapping[str, float], texts: Mapping[str, str]) -> bytes:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # type: ignore[import-untyped]
    from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[import-untyped]

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    for tag, text in texts.items():
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        tensor.tensor_shape.dim.add(size=1)
        values.append(Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor))
    return _record(step, summary=Summary(value=values))


def _record(step: int, **what: object) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

    stream = io.BytesIO()
    RecordWriter(stream).write(Event(wall_time=time.time(), step=step, **what).SerializeToString())
    return stream.getvalue()
