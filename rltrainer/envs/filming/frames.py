"""What an env renders, and what helps where it cannot."""

import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rltrainer.errors import EnvError, ParamsError

DEFAULT_FPS = 30.0
_HEADLESS = {
    "mujoco": "Set MUJOCO_GL=egl (a GPU's driver) or MUJOCO_GL=osmesa (a CPU, with libosmesa6) before Python starts",
    "pygame": "Set SDL_VIDEODRIVER=dummy before Python starts",
}
"""What makes a library draw where there is no display."""


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
        return render()
    except Exception as error:
        hints = [hint for module, hint in _HEADLESS.items() if module in sys.modules]
        text = f"the env could not be rendered ({type(error).__name__}: {error})"
        raise EnvError(". ".join([text, *hints])) from error
