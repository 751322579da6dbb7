"""Log to TensorBoard."""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.loggers.event_file import EVENT_FILES, EventFile
from rltrainer.loggers.extent import Extent
from rltrainer.loggers.file_logger import FileLogger
from rltrainer.loggers.logger import Kind, LoggerOptions, Row
from rltrainer.loggers.progress import Progress, parse_progress
from rltrainer.loggers.run_path import RunPath

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
        super().__init__(RunPath(Path(path), "", _is_log), **options)
        self._file: EventFile | None = None
        self._purge_step: int | None = None

    def _read_progress(self, path: Path) -> Progress | None:
        """Return what the last intact `log_epoch` wrote, or None; broken ones are skipped with a warning."""
        from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]  # has no types

        if not path.is_dir():
            return None
        log = event_accumulator.EventAccumulator(str(path), size_guidance={"tensors": 0, "scalars": 1})
        log.Reload()
        tag = f"{PROGRESS_TAG}/text_summary"
        events = log.Tensors(tag) if tag in log.Tags()["tensors"] else []
        # By time, because event files of one second are read in no certain order.
        for event in sorted(events, key=lambda event: event.wall_time, reverse=True):
            try:
                return parse_progress(json.loads(event.tensor_proto.string_val[0]))
            except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
                text = f"{path}: skipped the epoch row of step {event.step}, which is broken ({error})"
                warnings.warn(text, RuntimeWarning, stacklevel=3)
        return None

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        scalars = {name: value for name, value in values.items() if value is not None}
        texts = {PROGRESS_TAG: json.dumps(dict(values))} if kind == "epoch" else {}
        self._append(step, scalars, texts)

    def _write_params(self, params: Mapping[str, Any]) -> None:
        texts = {f"params/{name}": f"```\n{json.dumps(value, indent=2)}\n```" for name, value in params.items()}
        self._append(0, {}, texts)

    def _append(self, step: int, scalars: Mapping[str, float], texts: Mapping[str, str]) -> None:
        if self._file is None:
            self._file, self._purge_step = EventFile(self.path, self._purge_step), None
        self._file.append(step, scalars, texts)

    def _move(self, path: Path) -> None:
        super()._move(path)
        self._purge_step = None

    def _drop_after(self, step: int) -> None:
        self._purge_step = step + 1

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _measure_files(self) -> dict[str, Extent]:
        return {file.name: Extent.of(file, file.stat().st_size) for file in self._event_files()}

    def _file_at(self, place: Path, name: str) -> Path | None:
        return place / name if Path(name).name == name and name.startswith(EVENT_FILES) else None

    def _hide_rows_after(self, step: int) -> None:
        # Files begun after the checkpoint are left in place; TensorBoard hides their rows from this step on.
        self._purge_step = step + 1

    def _event_files(self) -> list[Path]:
        return sorted(self.path.glob(f"{EVENT_FILES}*"))


def _is_log(path: Path) -> bool:
    return any(path.glob(f"{EVENT_FILES}*"))
