"""An env's own vector implementation, wrapped so that it carries the seed it was made with."""

from typing import Any

import gymnasium as gym

from rltrainer.seeding import derive_seed
from rltrainer.validation.field_rules import as_python


class NativeVectorEnv(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Changes nothing but the first reset, if that is given no seed; the adapter derives all from `base_seed`."""

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], seed: int | None = None) -> None:
        super().__init__(env)
        self.base_seed = seed
        self._is_first_reset = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs; without a seed, the first reset takes the first one derived from `base_seed`."""
        if seed is None and self.base_seed is not None and self._is_first_reset:
            seed = derive_seed(self.base_seed, "reset", 0)
        self._is_first_reset = False
        return super().reset(seed=as_python(seed), options=options)
