"""Films of envs: frames that an env renders, streamed into MP4 or GIF files, one frame in memory at a time."""

import contextlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rltrainer.errors import EnvError, MissingExtraError, ParamsError, RLTrainerError, install_extra
from rltrainer.files.atomic_write import hidden_name, remove, remove_abandoned, replace_flushed

DEFAULT_FPS = 30.0
# Error text to look for, and the setting that makes the library draw without a display.
_HEADLESS = {
    r"GL|gl[A-Z]|OSMesa": "Set MUJOCO_GL=egl (a GPU) or MUJOCO_GL=osmesa (none; libosmesa6) before Python starts.",
    "video|pygame": "Set SDL_VIDEODRIVER=dummy before Python starts.",
}
_SDL = "SDL_VIDEODRIVER"
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", _SDL)
# Arguments of ffmpeg by the ending of the file.
FORMATS: dict[str, dict[str, Any]] = {
    # Players need an even width and height; a black line makes an odd one even.
    ".mp4": {"output_params": ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]},
    # A palette for each frame: one for all would keep all frames in ffmpeg's memory until the last is known.
    ".gif": {
        "codec": "gif",
        "pix_fmt_out": "pal8",
        "output_params": ["-vf", "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"],
    },
}

# A frame that is smaller in both directions is too small to see: it is enlarged to about ENLARGED pixels.
FEW_PIXELS = 32
ENLARGED = 240


def has_display() -> bool:
    """Return whether a window may open: on Linux the environment must name a display or a driver of SDL."""
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in _DISPLAYS)


def require_frames(owner: str, env: Any) -> None:
    """Raise a `ParamsError` unless an env, or a vector of envs, renders frames as arrays."""
    found = getattr(env, "render_mode", None)
    if found != "rgb_array":
        hint = 'Make it with render_mode="rgb_array", or pass the id: it is made so.'
        if isinstance(env, gym.vector.VectorEnv):
            hint = 'Make it with render_mode="rgb_array": rl.make_vec(env_id, render_mode=...).'
        raise ParamsError(f"{owner}: must render frames; got render_mode={found!r}. {hint}")


def frames_per_second(env: Any) -> float:
    """Return the frame rate in an env's metadata, or 30."""
    return float(env.metadata.get("render_fps") or DEFAULT_FPS)


def rendered(render: Callable[[], Any]) -> Any:
    """Return a frame; without a display an `EnvError` names the remedy."""
    is_headless = not has_display()
    if is_headless:  # SDL, with which pygame draws, would warn that it finds no display
        os.environ[_SDL] = "dummy"
    try:
        return render()
    except Exception as error:
        text = f"the env could not be rendered ({type(error).__name__}: {error})"
        raise EnvError(with_hint(text, type(error).__module__)) from error
    finally:
        if is_headless:
            del os.environ[_SDL]


def with_hint(text: str, module: str = "") -> str:
    """Append the remedy to an error's text if it is about a missing display."""
    hint = next((hint for words, hint in _HEADLESS.items() if re.search(words, f"{module} {text}")), "")
    return text if hint in text else f"{text}. {hint}"


def require_encoder(owner: str) -> Any:
    """Return the module that runs ffmpeg, or raise a `MissingExtraError`."""
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise MissingExtraError(f"{owner}: needs ffmpeg to write videos: {error}. {install_extra('video')}") from error
    return imageio_ffmpeg


class VideoFile:
    """Writes frames to an MP4 or GIF, which appears when `close` is called, complete.

    Missing parent folders are made, an existing file is replaced.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps, self._kind = path, fps, path.suffix.lower()
        self._part = hidden_name(path, self._kind[1:])
        self._module = require_encoder("VideoFile")
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()

    def add(self, frame: Any) -> None:
        """Write a frame: uint8 [H, W, 3], or floats in [0, 1], as MinAtar renders; another one is an `EnvError`."""
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
                options = {"fps": self._fps, "macro_block_size": 1, "ffmpeg_log_level": "error", **FORMATS[self._kind]}
                self._stream = self._module.write_frames(str(self._part), frame.shape[1::-1], **options)
                self._stream.send(None)
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

    @contextlib.contextmanager
    def _explained(self) -> Any:
        try:
            yield
        except OSError as error:
            self.discard()
            raise RLTrainerError(f"{self._path}: the video could not be written ({error})") from error


def _as_shown(frame: Any) -> Any:
    # Floats in [0, 1] become bytes, and a tiny frame is enlarged; `add` refuses anything else.
    if not (isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[2] == 3 and frame.size):
        return frame
    if frame.dtype.kind == "f":
        if not (frame.min() >= 0 and frame.max() <= 1):
            return frame
        frame = np.rint(255 * frame).astype(np.uint8)
    times = ENLARGED // largest if (largest := max(frame.shape[:2])) < FEW_PIXELS else 1
    return frame.repeat(times, 0).repeat(times, 1)


class FilmedEnvs(gym.vector.VectorWrapper[Any, Any, Any, Any]):
    """A vector env, in any autoreset mode; each of its episodes is filmed in a video of its own."""

    supports_masked_reset = True

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], fps: float) -> None:
        super().__init__(envs)
        self._fps, self._paths = fps, list[list[Path]]()
        self._open: dict[int, VideoFile] = {}

    def begin(self, paths: list[Path]) -> None:
        """Film an episode per path from the next reset on; envs share them as in a collector."""
        self._paths = [paths[i :: self.num_envs] for i in range(self.num_envs)]

    def end(self, is_complete: bool) -> None:
        """Stop filming; open videos are kept only if they are complete."""
        videos, self._open, self._paths = list(self._open.values()), {}, []
        for video in videos:
            video.close() if is_complete else video.discard()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and film the first frames."""
        mask = (options or {}).get("reset_mask")  # gymnasium's sync and async envs take it out of the options
        result = super().reset(seed=seed, options=options)
        rows = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        self._close(rows)  # an episode may be truncated from outside
        self._film(rows)
        return result

    def step(self, actions: Any) -> Any:
        """Step, and film."""
        result = super().step(actions)
        self._film([i for i, paths in enumerate(self._paths) if paths or i in self._open])
        done = np.asarray(result[2]) | np.asarray(result[3])
        self._close([i for i in self._open if done[i]])
        return result

    def _close(self, rows: Any) -> None:
        for i in rows:
            if (video := self._open.pop(i, None)) is not None:
                video.close()

    def _film(self, rows: Any) -> None:
        # Film the rows that have an open video, or start one.
        for i in rows:
            if i not in self._open and i < len(self._paths) and self._paths[i]:
                self._open[i] = VideoFile(self._paths[i].pop(0), self._fps)
        singles = getattr(self.unwrapped, "envs", None)
        frames: Any = rendered(self.env.render) if singles is None and self._open else ()
        for i, video in self._open.items():
            if i in rows:
                video.add(rendered(singles[i].render) if singles is not None else frames[i])


class _Filmed:
    """A recorder of an env in one video."""

    _first: Any = None

    def __init__(self, env: Any, video: VideoFile) -> None:
        self._wrapped, self._video = env, video

    def reset(self, **options: Any) -> Any:
        """Reset, and keep the first frame until a step follows."""
        # A reset without a step follows the last episode of agents.
        result = self._wrapped.reset(**options)
        self._first = rendered(self._wrapped.render)
        return result

    def step(self, action: Any) -> Any:
        """Step, and film."""
        if self._first is not None:
            self._video.add(self._first)
            self._first = None
        result = self._wrapped.step(action)
        self._video.add(rendered(self._wrapped.render))
        return result


class FilmedEnv(_Filmed, gym.Wrapper[Any, Any, Any, Any]):
    """An env that is filmed in one video."""

    def __init__(self, env: gym.Env[Any, Any], video: VideoFile) -> None:
        gym.Wrapper.__init__(self, env)
        _Filmed.__init__(self, env, video)


class FilmedAgents(_Filmed):
    """A PettingZoo parallel env that is filmed in one video."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)
