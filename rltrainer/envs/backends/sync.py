"""Our in-process vector env: steps its envs one after the other, and names the one that fails."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from rltrainer.envs.backends.env_group import Env, EnvGroup, copy_rows, failure_text
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.errors import EnvError, SpaceError
from rltrainer.tree import Tree, map_tree
from rltrainer.types import State


class SyncVectorEnv(MaskedVectorEnv):
    """Steps N envs in this process.

    Args:
        factories: one per env; each returns a new env, all with equal spaces.
        seed: see `MaskedVectorEnv`.

    Raises:
        EnvError: a factory raises, or returns something else than a new env.
        SpaceError: an env's spaces differ from the first one's, or are not supported.
    """

    def __init__(self, factories: Sequence[Callable[[], Env]], seed: int | None = None) -> None:
        super().__init__(len(factories), seed)
        self._group = EnvGroup(len(factories), self._fail)
        self.envs = self._group.envs
        try:
            self._group.make(factories)
            self._declare(self._group.spaces, self.envs[0].metadata, self.envs[0].render_mode)
            self.are_saveable = self._group.are_saveable
        except BaseException:
            self.close_extras()
            raise

    def _reset(self, due: dict[int, int | None], options: dict[str, Any] | None) -> tuple[Tree, dict[str, Any]]:
        obs = map_tree(np.copy, self._obs)
        infos = self._group.reset(obs, due.items(), options)
        return obs, self._group.gather(infos)

    def _step(self, actions: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        obs = map_tree(np.empty_like, self._obs)
        if self._parked:
            copy_rows(obs, self._obs, self._parked)
        rewards, terminated, truncated, infos = self._group.step(obs, actions, self._parked)
        flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return obs, np.array(rewards, np.float64), *flags, self._group.gather(infos) if any(infos) else {}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, or read its attribute."""
        return tuple(self._group.call(name, args, kwargs))

    def _set_each(self, name: str, values: Sequence[Any]) -> None:
        self._group.set_attr(name, values)

    def _load_each(self, states: Sequence[State]) -> None:
        self._group.load_states(states)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env; one that fails is logged and does not keep the others open."""
        self._group.close()

    def _fail(self, i: int, error: BaseException) -> NoReturn:
        if isinstance(error, SpaceError) or not isinstance(error, Exception):
            raise error
        raise EnvError(failure_text(i, self._when, type(error).__name__, str(error))) from error
