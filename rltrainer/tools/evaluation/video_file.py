"""An MP4 or GIF file that frames are streamed into: no more than one of them is in memory here."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from rltrainer.errors import EnvError, MissingExtraError, RLTrainerError, install_extra
from rltrainer.files.atomic_write import hidden_name, remove, remove_abandoned, replace_flushed

FORMATS: dict[str, dict[str, Any]] = {
    # What players understand has an even width and height; a black line makes up for an odd one.
    ".mp4": {"output_params": ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]},
    # A palette for each frame: one for all of them would keep them all in ffmpeg's memory until the last is known.
    ".gif": {
        "codec": "gif",
        "pix_fmt_out": "pal8",
        "output_params": ["-vf", "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"],
    },
}
"""Arguments with which ffmpeg writes files, by the ends of their names."""

FEW_PIXELS = 32
"""A frame that is smaller both ways is enlarged, to ENLARGED pixels or a few less: it could not be seen."""
ENLARGED = 240


def require_encoder(owner: str) -> Any:
    """Return the module that runs ffmpeg.

    Raises:
        MissingExtraError: it is not installed, or has no ffmpeg.
    """
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        text = f"{owner}: needs ffmpeg to write videos: {error}. {install_extra('video')}"
        raise MissingExtraError(text) from error
    return imageio_ffmpeg


class VideoFile:
    """Writes frames to a file, which is there once `close` was called, and complete.

    Args:
        path: the file, an MP4 or a GIF; missing parent folders are made, an existing one is replaced.
        fps: frames a second.

    Raises:
        MissingExtraError: there is no ffmpeg.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps, self._kind = path, fps, path.suffix.lower()
        self._part = hidden_name(path, self._kind[1:])
        self._module = require_encoder("VideoFile")
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()

    def add(self, frame: Any) -> None:
        """Write a frame: uint8 [H, W, 3], or floats in [0, 1], as MinAtar renders.

        Raises:
            EnvError: it is none, or of another size than the first.
            RLTrainerError: ffmpeg failed.
        """
        frame = _as_shown(frame)
        is_frame = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
        if not is_frame or frame.shape != (self._shape or frame.shape):
            expected = list(self._shape) or "[H, W, 3]"
            found = f"{frame.dtype} {list(frame.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise EnvError(f"{self._path}: expected a frame uint8 {expected} from render(), found {found}")
        with self._explained():
            if self._stream is None:
                self._shape = frame.shape
                self._path.parent.mkdir(parents=True, exist_ok=True)
                remove_abandoned(self._path, self._kind[1:])
                self._stream = self._open(frame.shape[1], frame.shape[0])
            self._stream.send(np.ascontiguousarray(frame))

    def close(self) -> None:
        """Let ffmpeg finish, and put the file in its place."""
        if self._stream is None:
            return
        with self._explained():
            stream, self._stream = self._stream, None
            stream.close()
            replace_flushed(self._part, self._path)

    def discard(self) -> None:
        """End ffmpeg, and leave no file; never raises."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(Exception):
                stream.close()
        remove(self._part)

    def _open(self, width: int, height: int) -> Any:
        options = {"fps": self._fps, "macro_block_size": 1, "ffmpeg_log_level": "error", **FORMATS[self._kind]}
        stream = self._module.write_frames(str(self._part), (width, height), **options)
        stream.send(None)
        return stream

    @contextlib.contextmanager
    def _explained(self) -> Any:
        try:
            yield
        except OSError as error:
            self.discard()
            raise RLTrainerError(f"{self._path}: the video could not be written ({error})") from error


def _as_shown(frame: Any) -> Any:
    """Return floats in [0, 1] as bytes, and a frame of few pixels enlarged; whatever is no frame as it is."""
    if not (isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3 and frame.size):
        return frame
    if frame.dtype.kind == "f":
        if not (frame.min() >= 0 and frame.max() <= 1):
            return frame
        frame = np.rint(255 * frame).astype(np.uint8)
    times = ENLARGED // largest if (largest := max(frame.shape[:2])) < FEW_PIXELS else 1
    return frame.repeat(times, 0).repeat(times, 1)
