"""Questions about any vector env: the frames of its steps, the env that failed, the envs that it shares, its end."""

import logging
import math
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym

from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.envs.checks import failure_text, is_of_signal
from rltrainer.errors import EnvError, ParamsError, RLTrainerError
from rltrainer.processes.program import Failure
from rltrainer.processes.worker import GRACE
from rltrainer.validation.field_rules import as_python, is_int

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]

_OF_SINGLE_ENVS = (MaskedVectorEnv, gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv)
_FRAME_SKIPS = ("frame_skip", "_skip", "_frameskip")
"""Attributes of gymnasium's `AtariPreprocessing` and MuJoCo's envs; of `MaxAndSkipObservation`; of ALE's envs."""


def frame_skip(envs: VectorEnv) -> int:
    """Return how many frames each step of an env takes: 4 of `ALE/Pong-v5`, 5 of `HalfCheetah-v5`; 1 if unknown.

    Training rows of a log hold `frames`, which is env steps times this, where it is not 1. It also turns a budget in
    frames into one in env steps: `epoch_num_steps=1_000_000 // rl.frame_skip(envs)`.

    An env states it in its attribute `frame_skip`, of the outermost wrapper that has one; ALE's envs and gymnasium's
    `MaxAndSkipObservation` in their own, which multiplies it. A vector env without single envs states it in its own
    attribute `frame_skip`, or in its spec. A number that is drawn at each step, as in `Pong-v4`, counts as unknown.
    A `ParamsError` if `envs` is no vector env.
    """
    if not isinstance(envs, gym.vector.VectorEnv):
        raise ParamsError.about("frame_skip", "envs", "must be a gymnasium VectorEnv", envs)
    inner: Any = envs.unwrapped
    if isinstance(inner, _OF_SINGLE_ENVS):
        names = [name for name in _FRAME_SKIPS if all(inner.call("has_wrapper_attr", name))]
        found = [inner.call(name) for name in names]
        stated = [values[0] if all(value == values[0] for value in values) else None for values in found]
    else:
        of_spec = {} if inner.spec is None else inner.spec.kwargs
        stated = [getattr(inner, "frame_skip", of_spec.get("frameskip", 1))]
    skips = [as_python(value) for value in stated]
    return math.prod(skips) if all(is_int(skip) and skip > 0 for skip in skips) else 1


_NUMBERS = {"SyncVectorEnv.step": "i", "SyncVectorEnv.reset": "i", "AsyncVectorEnv._raise_if_errors": "index",
            "VectorEnv._add_info": "env_num"}  # fmt: skip
"""The variable that holds an env's number in each method of gymnasium's that its envs' exceptions come through."""


def raise_named(error: BaseException, num_steps: int | None) -> None:
    """Raise an `EnvError` that names the env which raised an exception; do nothing where that is not known."""
    # `num_steps` are the steps that each env has started; None where envs are restored.
    if isinstance(error, RLTrainerError) or is_of_signal(error):
        return
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    frames = [f for f in frames if str(f.f_globals.get("__name__")).split(".")[:2] == ["gymnasium", "vector"]]
    # After the loop over its envs such a method calls other methods of gymnasium's: the last frame is one of them.
    name = _NUMBERS.get(frames[-1].f_code.co_qualname) if frames else None
    if name is not None and (number := frames[-1].f_locals.get(name)) is not None:
        is_reset = any(frame.f_code.co_name.startswith("reset") for frame in frames)
        when = f"reset after {num_steps} steps" if is_reset else f"step {num_steps}"
        when = "its return to a saved state" if num_steps is None else when
        raise EnvError(failure_text(number, when, Failure.of(error))) from error


@contextmanager
def env_named(num_steps: int | None) -> Iterator[None]:
    """Name the env if a vector env lets its exception through; see `raise_named`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise_named(error, num_steps)
        raise


def share_an_env(one: VectorEnv, other: VectorEnv) -> bool:
    """Return whether a step or reset of the one would move the other, however they are wrapped."""
    return not _all_envs(one).isdisjoint(_all_envs(other))


def _all_envs(envs: object) -> set[int]:
    """Return the ids of an env and of all envs that it holds: the env in a wrapper, the single envs of a vector."""
    found: set[int] = set()
    todo = [envs]
    while todo:
        value = todo.pop()
        if isinstance(value, gym.Env | gym.vector.VectorEnv) and id(value) not in found:
            found.add(id(value))
            todo += vars(value).values()
        elif isinstance(value, list | tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            todo += [item for item in items if isinstance(item, gym.Env | gym.vector.VectorEnv)]
    return found


def close_envs(envs: VectorEnv) -> None:
    """Close a vector env; never raises, and waits for gymnasium's worker processes five seconds at most."""
    inner = envs.unwrapped
    processes = inner.processes if isinstance(inner, gym.vector.AsyncVectorEnv) else []
    # gymnasium itself waits for its workers without an end, and leaves them where one of them is dead.
    timer = threading.Timer(GRACE, _kill, (processes,))
    if processes:
        timer.start()
    try:
        envs.close()
    except (Exception, SystemExit) as error:
        logging.getLogger("rltrainer").warning("the vector env failed during close: %r", error)
    finally:
        timer.cancel()
        _kill(processes)
        for process in processes:
            process.join(1.0)
        if processes:
            inner.closed = True  # where it failed half-way, it would try again when it is collected


def _kill(processes: list[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
