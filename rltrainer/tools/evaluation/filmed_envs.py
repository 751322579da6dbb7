"""Envs that are filmed: episodes of a vector env, each a video of its own; or all of one env in one video."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rltrainer.tools.evaluation.frames import rendered
from rltrainer.tools.evaluation.video_file import VideoFile


class FilmedEnvs(gym.vector.VectorWrapper[Any, Any, Any, Any]):
    """Passes everything through, and streams what the envs render.

    Args:
        envs: a vector env whose envs render frames, in any autoreset mode.
        fps: frames a second of the videos.
    """

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], fps: float) -> None:
        super().__init__(envs)
        self._fps, self._paths = fps, list[list[Path]]()
        self._open: dict[int, VideoFile] = {}

    def begin(self, paths: list[Path]) -> None:
        """Film as many episodes from the next reset on, shared among the envs as a collector shares them."""
        self._paths = [paths[i :: self.num_envs] for i in range(self.num_envs)]

    def end(self, is_complete: bool) -> None:
        """Film no more; videos that are open are kept only if they are complete."""
        videos, self._open, self._paths = list(self._open.values()), {}, []
        for video in videos:
            video.close() if is_complete else video.discard()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and film the first frames."""
        result = super().reset(seed=seed, options=options)
        mask = (options or {}).get("reset_mask")
        rows = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        self._close(rows)  # of an episode that was truncated from outside
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
            if i in self._open:
                self._open.pop(i).close()

    def _film(self, rows: Any) -> None:
        """Write the frames of envs whose episode is filmed, or begins to be."""
        for i in rows:
            if i not in self._open and i < len(self._paths) and self._paths[i]:
                self._open[i] = VideoFile(self._paths[i].pop(0), self._fps)
        singles = getattr(self.unwrapped, "envs", None)
        frames: Any = rendered(self.env.render) if singles is None and self._open else ()
        for i, video in self._open.items():
            if i in rows:
                video.add(rendered(singles[i].render) if singles is not None else frames[i])


class FilmedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Passes everything through, and writes all that one env renders to a video.

    Args:
        env: renders frames.
        video: takes them.
    """

    def __init__(self, env: gym.Env[Any, Any], video: VideoFile) -> None:
        super().__init__(env)
        self._video = video

    def reset(self, **options: Any) -> Any:
        """Reset, and film the first frame."""
        result = super().reset(**options)
        self._video.add(rendered(self.env.render))
        return result

    def step(self, action: Any) -> Any:
        """Step, and film."""
        result = super().step(action)
        self._video.add(rendered(self.env.render))
        return result


class FilmedAgents:
    """A parallel env that passes everything through, and writes all that it renders to a video.

    Args:
        env: renders frames.
        video: takes them.
    """

    def __init__(self, env: Any, video: VideoFile) -> None:
        self._env, self._video = env, video
        self._first: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **options: Any) -> Any:
        """Reset, and keep the first frame until a step follows: after the last episode none does."""
        result = self._env.reset(**options)
        self._first = rendered(self._env.render)
        return result

    def step(self, actions: Any) -> Any:
        """Step, and film."""
        if self._first is not None:
            self._video.add(self._first)
            self._first = None
        result = self._env.step(actions)
        self._video.add(rendered(self._env.render))
        return result
