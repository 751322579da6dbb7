"""A vector env that makes no env before it is needed, and then all of them or a part."""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import gymnasium as gym
from gymnasium.vector.utils import batch_space

from rltrainer.envs.vector_env import VectorEnv, close_envs

MakePart = Callable[[int, int, int], VectorEnv]
"""Makes some envs, given how many, the global index of the first, and the number of parts."""


def _of_part(name: str) -> Any:
    return property(lambda self: getattr(self._look(), name))


def _of_all(name: str) -> Any:
    return property(lambda self: batch_space(getattr(self, f"single_{name}"), self.num_envs))


class DeferredEnvs(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Stands for the envs of a call of `make_vec`, and makes them, all or a part; under torchrun `make_vec` returns it.

    Its spaces and its number are of all envs. A step or reset by hand makes them all.

    Args:
        make: makes a part.
        num_envs: of all parts together.
        seed: the root of the seeds of all episodes, or None.
        place: index and count of the part that is made when spaces are asked for.
    """

    is_stateless = True
    single_observation_space, single_action_space = map(_of_part, ("single_observation_space", "single_action_space"))
    observation_space, action_space = _of_all("observation_space"), _of_all("action_space")
    metadata, spec, render_mode, unwrapped = map(_of_part, ("metadata", "spec", "render_mode", "unwrapped"))
    num_envs: Any = None  # gymnasium's is a property
    closed: Any = property(lambda self: self._all is None and not self._waiting)

    def __init__(self, make: MakePart, num_envs: int, seed: int | None, place: tuple[int, int]) -> None:
        self._make, self.num_envs, self.base_seed = make, num_envs, seed
        self._place = (0, num_envs) if num_envs % place[1] else place
        self._waiting: dict[tuple[int, int], VectorEnv] = {}  # the part that was made for its spaces
        self._all: VectorEnv | None = None
        self._parts = WeakSet[VectorEnv]()

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeferredEnvs":
        """Copy it without envs that were made."""
        return DeferredEnvs(self._make, self.num_envs, self.base_seed, self._place)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as None: a user's factories may be no data."""
        return type(None), ()

    @property
    def env(self) -> VectorEnv:  # type: ignore[override]  # gymnasium's is an attribute
        """All envs, which are made now if they are not open."""
        if self._all is None or self._all.closed:
            self._all = self.part(0, 1)
        return self._all

    def part(self, index: int, count: int) -> VectorEnv:
        """Return a new vector env of one of `count` equal parts; the global index of its first env is `first_env`."""
        made: Any = self._waiting.pop((index, count), None)
        while self._waiting:
            close_envs(self._waiting.popitem()[1])
        if made is None:
            num_envs = self.num_envs // count
            made = self._make(num_envs, index * num_envs, count)
            made.first_env, made.recipe = index * num_envs, self
            self._parts.add(made)
        return made  # type: ignore[no-any-return]  # a vector env

    def close(self, **kwargs: Any) -> None:
        """Close all parts; they can be made again."""
        for made in list(self._parts):
            close_envs(made)
        self._all, self._waiting = None, {}

    def __repr__(self) -> str:
        """Return a text without making an env."""
        return f"DeferredEnvs(num_envs={self.num_envs})"

    def _look(self) -> VectorEnv:
        """Return a part that is open."""
        for made in (self._all, *self._parts):
            if made is not None and not made.closed:
                return made
        made = self._waiting[self._place] = self.part(*self._place)
        return made


def opened(envs: VectorEnv) -> VectorEnv:
    """Return a vector env with all its envs made, in this process."""
    return envs.env if isinstance(envs, DeferredEnvs) else envs
