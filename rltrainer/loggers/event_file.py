"""Event files, as TensorBoard reads them. Written at once and by the caller, so that he sees what goes wrong.

TensorBoard's own writer leaves that to a thread, which prints where nobody can answer.
"""

import io
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rltrainer.errors import CheckpointError
from rltrainer.regular_file import open_regular

_HEAD = struct.Struct("<QI")
EVENT_FILES = "events.out.tfevents."
FIRST = f"{EVENT_FILES}0000000000.first"
"""The first event file of a run: one name for all processes, so that only one of them can make it."""
_NUMBERS = itertools.count()


def new_name() -> str:
    """Return a name that no event file has."""
    return f"{EVENT_FILES}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"


def beginning(purge_step: int | None) -> bytes:
    """Return what stands at the beginning of a file; rows of earlier files are hidden from `purge_step` on."""
    from tensorboard.compat.proto.event_pb2 import SessionLog  # type: ignore[import-untyped]  # has no types

    begin = _record(0, file_version="brain.Event:2")
    if purge_step is not None:
        begin += _record(purge_step, session_log=SessionLog(status=SessionLog.START))
    return begin


def events(path: Path) -> Iterator[Any]:
    """Yield the events of a file; one that a kill broke off ends it.

    Raises:
        CheckpointError: it is no event file, or damaged.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c  # type: ignore[import-untyped]

    try:
        with open_regular(path) as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                size, checksum = _HEAD.unpack(head)
                if masked_crc32c(head[:8]) != checksum:
                    raise ValueError("a checksum differs")
                data = file.read(min(size, os.fstat(file.fileno()).st_size))  # it may claim anything
                if len(data) < size or len(tail := file.read(4)) < 4:
                    return
                if masked_crc32c(data) != int.from_bytes(tail, "little"):
                    raise ValueError("a checksum differs")
                yield Event.FromString(data)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # of protobuf too
        raise CheckpointError(f"{path}: damaged, or no event file ({error})") from error


def row(step: int, scalars: Mapping[str, float], texts: Mapping[str, str]) -> bytes:
    """Return the event of a row."""
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
