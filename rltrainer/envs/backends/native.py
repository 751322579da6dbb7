"""Vector envs of other libraries under the interface of gymnasium: an own implementation of an env, and EnvPool."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rltrainer.errors import EnvError, MissingExtraError, ParamsError, install_extra
from rltrainer.seeding import derive_seed
from rltrainer.tree import map_tree
from rltrainer.validation.field_rules import as_python, is_int


class NativeVectorEnv(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Changes nothing but the first reset, if that is given no seed; the adapter derives all from `base_seed`."""

    supports_masked_reset = True
    first_env: int = 0  # the global index of the first env
    recipe: Any = None  # the `DeferredEnvs` that made them

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


class EnvPoolVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Steps N envs of EnvPool in its threads; an env spends one step on its reset (autoreset mode NEXT_STEP).

    `options` are EnvPool's own, such as `num_threads`; a wrong one or an unknown id is an `EnvError`.
    """

    # It was run with EnvPool 1.2.5, NumPy 2 and gymnasium 1.4.

    def __init__(self, task_id: str, num_envs: int, options: dict[str, Any]) -> None:
        self.num_envs, self._task_id, self._options = num_envs, task_id, options
        self._pool = self._make(derive_seed(0, "reset", 0))
        self.single_observation_space, self.single_action_space = self._pool.observation_space, self._pool.action_space
        with _quiet_casts():
            self.observation_space = batch_space(self.single_observation_space, num_envs)
            self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    @property
    def frame_skip(self) -> int:
        """The frames of one env step; 1 where EnvPool's env has no such option."""
        return getattr(self._pool.spec.config, "frame_skip", 1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all envs; `options` and a list of seeds are a `ParamsError`."""
        if options:
            raise ParamsError.about("EnvPoolVectorEnv.reset", "options", "EnvPool takes none", options)
        if seed is not None:
            if not is_int(seed):
                rule = "must be one integer for all envs, or None"
                raise ParamsError.about("EnvPoolVectorEnv.reset", "seed", rule, seed)
            self.close_extras()
            self._pool = self._make(seed)  # EnvPool fixes its seed when a pool is made
        obs, info = self._pool.reset()
        return map_tree(np.array, obs), info  # a copy: the memory is EnvPool's

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every env by actions [N, ...]."""
        obs, reward, terminated, truncated, info = self._pool.step(actions)
        return map_tree(np.array, obs), reward.astype(np.float64), terminated, truncated, info

    def close_extras(self, **kwargs: Any) -> None:
        """End EnvPool's threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _make(self, seed: int) -> Any:
        try:
            import envpool
        except ImportError as error:
            text = f'make_vec.backend: "envpool" needs EnvPool: {error}. {install_extra("envpool")}'
            raise MissingExtraError(text) from error
        try:
            with _quiet_casts():
                options = {"num_envs": self.num_envs, "seed": seed % 2**31, **self._options}
                pool = envpool.make_gymnasium(self._task_id, **options)
                _ = pool.observation_space, pool.action_space  # EnvPool makes them when they are first looked at
                return pool
        except Exception as error:
            text = f"make_vec.env: EnvPool cannot make {self._task_id}: {type(error).__name__}: {error}"
            raise EnvError(text) from error


@contextmanager
def _quiet_casts() -> Iterator[None]:
    """Ignore gymnasium's warnings of the bounds of EnvPool's spaces, which have another dtype than the spaces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*precision lowered by casting.*", UserWarning)
        yield
