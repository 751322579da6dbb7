"""Frames that an env renders, and hints where it cannot."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym

from rltrainer.errors import EnvError, ParamsError

DEFAULT_FPS = 30.0
_HEADLESS = {
    r"GL|gl[A-Z]|OSMesa": "Set MUJOCO_GL=egl (a GPU) or MUJOCO_GL=osmesa (none; libosmesa6) before Python starts.",
    "video|pygame": "Set SDL_VIDEODRIVER=dummy before Python starts.",
}
"""Hints that make libraries draw where there is no display, by words of their errors."""
_SDL = "SDL_VIDEODRIVER"
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", _SDL)


def has_display() -> bool:
    """Return whether a window may open: on Linux, where the environment names a display or a driver of SDL."""
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
    """Return how many frames a second an env says it is shown with; 30 where it says nothing."""
    return float(env.metadata.get("render_fps") or DEFAULT_FPS)


def rendered(render: Callable[[], Any]) -> Any:
    """Return what an env renders.

    Raises:
        EnvError: it cannot; the text says what helps where there is no display.
    """
    try:
        with _without_looking_for_a_display():
            return render()
    except Exception as error:
        text = f"the env could not be rendered ({type(error).__name__}: {error})"
        raise EnvError(with_hint(text, type(error).__module__)) from error


@contextmanager
def _without_looking_for_a_display() -> Iterator[None]:
    """Let SDL, which pygame draws with, not look for a display where there is none: it would complain of it."""
    if has_display():
        yield
        return
    os.environ[_SDL] = "dummy"
    try:
        yield
    finally:
        del os.environ[_SDL]


def with_hint(text: str, module: str = "") -> str:
    """Return the text of an error, of a class of this module, with what helps, if it speaks of a missing display."""
    hint = next((hint for words, hint in _HEADLESS.items() if re.search(words, f"{module} {text}")), "")
    return text if hint in text else f"{text}. {hint}"
