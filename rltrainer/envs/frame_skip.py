"""The frames that an env's engine makes in each env step."""

import math
from typing import Any

import gymnasium as gym

from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.validation.field_rules import as_python, is_int
from rltrainer.validation.suggestions import explains_arguments

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]

_OF_SINGLE_ENVS = (MaskedVectorEnv, gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv)
_NAMES = ("frame_skip", "_skip", "_frameskip")
"""Attributes of gymnasium's `AtariPreprocessing` and MuJoCo's envs; of `MaxAndSkipObservation`; of ALE's envs."""


@explains_arguments
def frame_skip(envs: VectorEnv) -> int:
    """Return how many frames each step of an env takes: 4 of `ALE/Pong-v5`, 5 of `HalfCheetah-v5`; 1 if it says none.

    Training rows of a log hold `frames`, which is env steps times this, where it is not 1. It also turns a budget in
    frames into one in env steps: `epoch_num_steps=1_000_000 // rl.frame_skip(envs)`.

    An env says so by its attribute `frame_skip`, the outermost wrapper's that has one; ALE's envs and gymnasium's
    `MaxAndSkipObservation` by theirs, times that. A vector env without single envs does by its own attribute
    `frame_skip`, or by its spec. A number that is drawn at each step, as those of `Pong-v4`, says nothing.

    Args:
        envs: any vector env; its single envs are asked, wherever they run.

    Raises:
        ParamsError: it is no vector env.
    """
    if not isinstance(envs, gym.vector.VectorEnv):
        raise ParamsError(field_error_text("frame_skip", "envs", "must be a gymnasium VectorEnv", envs))
    skips = [as_python(value) for value in _stated(envs.unwrapped)]
    return math.prod(skips) if all(is_int(skip) and skip > 0 for skip in skips) else 1


def _stated(envs: Any) -> list[Any]:
    """Return what the envs say, which should be integers."""
    if isinstance(envs, _OF_SINGLE_ENVS):
        names = [name for name in _NAMES if all(envs.call("has_wrapper_attr", name))]
        found = [envs.call(name) for name in names]
        return [values[0] if all(value == values[0] for value in values) else None for values in found]
    of_spec = {} if envs.spec is None else envs.spec.kwargs
    return [getattr(envs, "frame_skip", of_spec.get("frameskip", 1))]
