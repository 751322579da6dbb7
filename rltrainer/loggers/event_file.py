"""Event files, as TensorBoard reads them. Written at once and by the caller, so that he sees what goes wrong.

TensorBoard's own writer leaves that to a thread, which prints where nobody can answer.
"""

import io
import itertools
import os
import socket
import time
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from rltrainer.loggers.extent import Extent
from rltrainer.loggers.log_file import AppendedFile, LogFile

EVENT_FILES = "events.out.tfevents."
_NUMBERS = itertools.count()


class EventFolder(LogFile):
    """A folder of event files: a log is continued in a new one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Rows of earlier files are hidden from this step on, by this file and by the next one; None hides none.
        self._purge_step: int | None = None
        self._next_purge_step: int | None = None

    def append_row(self, step: int, scalars: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Write one row, all or nothing; it is with the operating system when this returns.

        Raises:
            OSError: it could not be written; the file is as before.
        """
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # type: ignore[import-untyped]  # has no types
        from tensorboard.compat.proto.tensor_pb2 import TensorProto  # type: ignore[import-untyped]

        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        for tag, text in texts.items():
            tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
            tensor.tensor_shape.dim.add(size=1)
            values.append(Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor))
        self.append(_record(step, summary=Summary(value=values)))

    def is_log(self, path: Path) -> bool:
        """Return whether a folder holds event files."""
        return any(path.glob(f"{EVENT_FILES}*"))

    def move(self, path: Path) -> None:
        """Write to another folder from now on."""
        super().move(path)
        self._next_purge_step = None

    def drop_after(self, step: int) -> None:
        """Have the next file hide the rows of later steps, which TensorBoard leaves out from then on."""
        self._next_purge_step = step + 1

    hide_after = drop_after

    def extents(self) -> dict[str, Extent]:
        """Return how far each event file was written."""
        files = sorted(self.path.glob(f"{EVENT_FILES}*"))
        return {file.name: Extent.of(file, file.stat().st_size) for file in files}

    def find(self, place: Path, name: str) -> Path | None:
        """Return an event file of a folder."""
        return place / name if Path(name).name == name and name.startswith(EVENT_FILES) else None

    def _open(self) -> FileIO:
        name = f"{EVENT_FILES}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        file = AppendedFile(self.path / name)
        self._purge_step, self._next_purge_step = self._next_purge_step, None
        return file

    def _beginning(self) -> bytes:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]

        begin = _record(0, file_version="brain.Event:2")
        if self._purge_step is not None:
            begin += _record(self._purge_step, session_log=SessionLog(status=SessionLog.START))
        return begin


def _record(step: int, **what: object) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

    stream = io.BytesIO()
    RecordWriter(stream).write(Event(wall_time=time.time(), step=step, **what).SerializeToString())
    return stream.getvalue()
