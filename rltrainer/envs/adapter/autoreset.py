"""Autoreset modes: the way a vector env starts the next episode of an env whose episode ended."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeObservation

from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.errors import EnvError

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class Autoreset:
    """Traits of a vector env that the adapter has to know.

    Args:
        is_masked: single envs can be reset, each with its seed, by `options={"reset_mask": mask}`.
        spends_step: after its last step an env spends one step on its reset, which cannot be prevented.
        has_final_info: `step` returns the next episode's first observation, the final one is in its info.
    """

    is_masked: bool
    spends_step: bool
    has_final_info: bool

    @property
    def can_repeat(self) -> bool:
        """Tell whether an env's episode begins with its seed, when it is told to."""
        return self.is_masked and not self.spends_step


def find_autoreset(envs: VectorEnv) -> Autoreset:
    """Find out by class where gymnasium's or ours is at the bottom, else by the metadata, or raise an `EnvError`."""
    mode = envs.metadata.get("autoreset_mode")
    if mode is None:
        text = f"{envs} does not say how it resets (metadata['autoreset_mode']): taken for NEXT_STEP"
        warnings.warn(text, stacklevel=3)
        mode = AutoresetMode.NEXT_STEP
    try:
        mode = AutoresetMode(mode)
    except ValueError as error:
        text = f"{envs}: metadata['autoreset_mode'] must be a gymnasium.vector.AutoresetMode; got {mode!r}"
        raise EnvError(text) from error
    inner = envs.unwrapped
    is_known = isinstance(inner, MaskedVectorEnv | gym.vector.SyncVectorEnv | gym.vector.AsyncVectorEnv)
    # gymnasium's normaliser of observations raises at masked resets.
    is_prevented = any(isinstance(layer, NormalizeObservation) for layer in layers(envs))
    is_masked = (is_known and not is_prevented) or mode is AutoresetMode.DISABLED
    # Without shared memory, gymnasium's workers do not take back a pending autoreset when they are reset.
    is_stubborn = isinstance(inner, gym.vector.AsyncVectorEnv) and not inner.shared_memory
    return Autoreset(
        is_masked=is_masked,
        spends_step=mode is AutoresetMode.NEXT_STEP and (is_stubborn or not is_masked),
        has_final_info=mode is AutoresetMode.SAME_STEP,
    )


def layers(envs: VectorEnv) -> Iterator[VectorEnv]:
    """Yield a vector env and what it wraps, outermost first."""
    yield envs
    while isinstance(envs, gym.vector.VectorWrapper):
        envs = envs.env
        yield envs
