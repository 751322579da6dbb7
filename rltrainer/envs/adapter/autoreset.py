"""Autoreset modes: the ways in which a vector env starts the next episode of an env."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from torch import Tensor

from rltrainer.envs.adapter.episode_clock import EpisodeClock, Rows
from rltrainer.envs.adapter.observations import ObsMemory, take_rows
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.errors import EnvError
from rltrainer.tree import Tree, leaves, map_tree

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
NUM_COMPARED = 10
"""Number of an async env's first episode ends at which observations are compared."""


class Autoreset:
    """Starts the next episodes of finished envs, as their mode says, by masked resets where these are safe.

    A masked reset starts a finished env at once, by `options={"reset_mask": mask}`, with its episode's seed; no step is
    lost. Without them, in gymnasium's mode NEXT_STEP the step after an episode's last one ignores its action and
    returns the first observation of the next episode. In SAME_STEP the last step itself returns it, and its info the
    final observation. In either mode a masked reset replaces the episode that an env has started by itself.

    An adapter asks at four points: `reset` of all envs, `finish` and `starting` after a step in which episodes ended,
    and `begin` where the next ones start.

    Attributes:
        is_masked: whether single envs can be reset, each with its seed.
        can_repeat: whether an env starts the episode of its seed as soon as it is reset.
        delay: steps from the end of an episode to the start of the next.
        resetting: the envs that spend the next step on their reset [K], or None.
    """

    def __init__(self, envs: VectorEnv, mode: AutoresetMode, is_masked: bool, check: Callable[[Tree], None]) -> None:
        self._envs, self._check = envs, check  # `check` raises if the observations of all envs do not fit their space
        self._is_same_step, inner = mode is AutoresetMode.SAME_STEP, envs.unwrapped
        # A reset does not take back a pending one in gymnasium's workers without shared memory.
        self._is_stubborn = isinstance(inner, gym.vector.AsyncVectorEnv) and not inner.shared_memory
        self.is_masked = is_masked
        self.delay = int(mode is AutoresetMode.NEXT_STEP and (self._is_stubborn or not is_masked))
        self.can_repeat = is_masked and not self.delay
        self.resetting: Rows | None = None
        self._first_obs: Tree = None
        self._num_to_compare = NUM_COMPARED if isinstance(inner, gym.vector.AsyncVectorEnv) else 0

    def reset(self, clock: EpisodeClock) -> Tree:
        """Reset all envs; return their observations [N, ...]. An env that keeps its pending reset starts after it."""
        seeds: Any = clock.episode_seeds(np.arange(clock.num_envs)) if self.is_masked else clock.reset_seed()
        obs = self._envs.reset(seed=seeds)[0]
        self._check(obs)
        if self.resetting is not None and self._is_stubborn:
            clock.postpone(self.resetting)
        else:
            self.resetting = None
        return obs

    def finish(self, rows: Rows, info: dict[str, Any], memory: ObsMemory) -> None:
        """Make sure that `memory` has the final observations of these envs [K]; it holds what `step` returned."""
        if self._is_same_step:
            # `memory` becomes what is acted on next with `advance`; until then it has to hold the true successors.
            self._first_obs = take_rows(memory.obs, rows)
            write_final_obs(self._envs, rows, info, memory)
            if self._num_to_compare > 0:
                self._compare(take_rows(memory.obs, rows))

    def _compare(self, final_obs: Tree) -> None:
        """Warn if the final observations of an async env's first episodes are the first ones of the next episodes."""
        self._num_to_compare -= len(leaves(final_obs)[0])
        if not all(map(np.array_equal, leaves(final_obs), leaves(self._first_obs))):
            self._num_to_compare = 0
        elif self._num_to_compare <= 0:
            text = f"the final observations of {NUM_COMPARED} episodes equal the first ones of the next episodes"
            hint = "If the env writes all into one array, return obs.copy(), or use another mode than SAME_STEP."
            warnings.warn(f"{text}. {hint}", stacklevel=2)

    def starting(self, finished: Rows | None) -> Rows | None:
        """Return the envs [K] that start their next episode now, after a step in which these [K] have finished."""
        if not self.delay:
            return finished
        starting, self.resetting = self.resetting, finished  # these have spent this step on their reset
        return starting

    def begin(self, rows: Rows, clock: EpisodeClock, memory: ObsMemory) -> None:
        """Write the first observations of these envs' [K] next episodes."""
        if self.is_masked:
            mask = np.zeros(clock.num_envs, np.bool_)
            mask[rows] = True
            seeds: Any = clock.episode_seeds(rows)
            obs = self._envs.reset(seed=seeds, options={"reset_mask": mask})[0]
            self._check(obs)
            memory.write_rows(rows, take_rows(obs, rows))
        elif self._is_same_step:
            memory.write_rows(rows, self._first_obs)


def write_final_obs(envs: VectorEnv, rows: Rows, info: dict[str, Any], memory: ObsMemory) -> None:
    """Write the final observations of envs [K] from the info of their step; an `EnvError` if one is lost."""
    found = leaves(info.get("final_obs"))
    is_of_all = all(isinstance(leaf, Tensor) for leaf in found)
    if is_of_all and [leaf.shape for leaf in found] == [leaf.shape for leaf in leaves(memory.obs)]:
        memory.write_rows(rows, take_rows(info["final_obs"], rows))  # once, and not env by env
        return
    for n in rows.tolist():
        row = map_tree(lambda leaf, n=n: leaf[n], info["final_obs"]) if "final_obs" in info else None
        if row is None:
            raise EnvError(f'env {n} ended its episode, but info["final_obs"] holds no final observation of it')
        # gymnasium's sync env keeps what its envs returned last: the first observation of the next episode.
        kept = getattr(envs.unwrapped, "_env_obs", None)
        if kept is not None and any(map(np.shares_memory, leaves(row), leaves(kept[n]))):
            text = f"env {n} wrote the first observation of its next episode into the array of its final one"
            raise EnvError(f"{text}. Return obs.copy(), or use another autoreset mode than SAME_STEP.")
        memory.write_row(n, row)


def find_autoreset(envs: VectorEnv) -> tuple[AutoresetMode, bool]:
    """Return the mode in the metadata, and whether masked resets are safe; raise an `EnvError` if nothing resets."""
    mode = envs.metadata.get("autoreset_mode")
    if mode is None:
        mode = AutoresetMode.NEXT_STEP
        text = f"{envs} does not say how it resets (metadata['autoreset_mode']): taken for NEXT_STEP"
        warnings.warn(text, stacklevel=3)
    try:
        mode = AutoresetMode(mode)
    except ValueError as error:
        text = f"{envs}: metadata['autoreset_mode'] must be a gymnasium.vector.AutoresetMode; got {mode!r}"
        raise EnvError(text) from error
    layer = _unsafe_layer(envs, mode is AutoresetMode.DISABLED)
    if layer is not None and mode is AutoresetMode.DISABLED:
        name, hint = type(layer).__name__, "Wrap the single envs, make_vec(..., wrappers=[...]), or use mode NEXT_STEP."
        if not type(layer).__module__.startswith("gymnasium."):
            hint = f"If it does, write supports_masked_reset = True in the class {name}. {hint}"
        rule = 'in autoreset mode DISABLED it must start the envs of options["reset_mask"] alone, and is not known to'
        raise EnvError(f"{name}.reset: {rule}. {hint}")
    return mode, layer is None


_SAFE = {
    "SyncVectorEnv", "AsyncVectorEnv", "VectorWrapper", "VectorObservationWrapper", "TransformObservation",
    "VectorizeTransformObservation", "ArrayConversion", "DictInfoToList", "HumanRendering", "RecordVideo",
}  # fmt: skip
"""Classes of gymnasium that pass on a mask of envs to reset, and forget nothing about the other envs."""


def _unsafe_layer(envs: VectorEnv, is_disabled: bool) -> VectorEnv | None:
    """Return the first layer that may reset envs outside a `reset_mask`, or None."""
    inner = envs.unwrapped
    # gymnasium's sync and async envs take the mask out of the options before its statistics look for it.
    safe = _SAFE | {"RecordEpisodeStatistics"} if isinstance(inner, MaskedVectorEnv) else _SAFE
    is_known = isinstance(inner, gym.vector.SyncVectorEnv | gym.vector.AsyncVectorEnv)
    for layer in layers(envs):
        is_safe = inspect.getattr_static(layer, "supports_masked_reset", None)
        if is_safe is None and layer is inner and (not is_known or getattr(inner, "worker", None) is not None):
            is_safe = is_disabled  # who writes envs for this mode lets a mask reset them
        if is_safe is None:
            names = ["reset", "reset_async", "observations"]
            names += ["step", "step_async"] if layer is inner and not is_disabled else []  # they reset envs, too
            is_safe = all(
                method.__module__.startswith("gymnasium.") and method.__qualname__.partition(".")[0] in safe
                for method in filter(callable, (getattr(layer, name, None) for name in names))
            )
        if not is_safe:
            return layer
    return None


def layers(envs: VectorEnv) -> Iterator[VectorEnv]:
    """Yield a vector env and what it wraps, outermost first."""
    yield envs
    while isinstance(envs, gym.vector.VectorWrapper):
        envs = envs.env
        yield envs
