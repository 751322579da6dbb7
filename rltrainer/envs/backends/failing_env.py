"""The single env whose exception a vector env of gymnasium's lets through without its number."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import gymnasium as gym

from rltrainer.envs.backends.env_group import failure_text
from rltrainer.errors import EnvError, RLTrainerError

_NUMBERS = {
    gym.vector.SyncVectorEnv.step.__code__: "i",
    gym.vector.SyncVectorEnv.reset.__code__: "i",
    gym.vector.AsyncVectorEnv._raise_if_errors.__code__: "index",
}
"""The variable that holds an env's number in each method of gymnasium's that its envs' exceptions come through."""


def raise_named(error: Exception, num_steps: int | None) -> None:
    """Raise an `EnvError` that names the env which raised an exception; do nothing where that is not known.

    Args:
        error: what a vector env let through, with its traceback.
        num_steps: the steps that each env has begun; None where envs are brought back to where they were saved.
    """
    if isinstance(error, RLTrainerError):
        return
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if _is_gymnasiums(frame)]
    # What such a method does after its envs, as the stacking of observations, is of all of them: it calls more there.
    name = _NUMBERS.get(frames[-1].f_code) if frames else None
    if name is not None and (number := frames[-1].f_locals.get(name)) is not None:
        is_reset = any(frame.f_code.co_name.startswith("reset") for frame in frames)
        when = f"reset after {num_steps} steps" if is_reset else f"step {num_steps}"
        when = "its return to a saved state" if num_steps is None else when
        raise EnvError(failure_text(number, when, type(error).__name__, str(error))) from error


def _is_gymnasiums(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).split(".")[:2] == ["gymnasium", "vector"]


@contextmanager
def env_named(num_steps: int | None) -> Iterator[None]:
    """Name the env whose exception a vector env lets through; see `raise_named`."""
    try:
        yield
    except Exception as error:
        raise_named(error, num_steps)
        raise
