"""Our in-process vector env: steps its envs one after the other, and names the one that fails."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rltrainer.envs.backends.env_group import Env, EnvGroup, failure_text, split_actions, write_row
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.errors import EnvError, SpaceError
from rltrainer.tree import Tree, map_tree


class SyncVectorEnv(MaskedVectorEnv):
    """Steps N envs in this process; a finished env waits for a reset with `options={"reset_mask": mask}`.

    Every call returns new arrays, so nothing that was returned is ever overwritten. Observations have the dtype of
    their space, rewards are float64 [N] (or [N, A], if the envs reward A agents), flags bool [N].

    Args:
        factories: one per env; each returns a new env, all with equal spaces.
        seed: what the adapter derives the seeds of all episodes from (`base_seed`). Without an adapter, the first
            reset that is given no seed takes the seeds of the first episodes.

    Raises:
        EnvError: a factory raises, or returns something else than a new env.
        SpaceError: an env's spaces differ from the first one's, or are not supported.
    """

    def __init__(self, factories: Sequence[Callable[[], Env]], seed: int | None = None) -> None:
        super().__init__(len(factories), seed)
        self._group = EnvGroup(len(factories))
        self.envs = self._group.envs
        try:
            self._group.make(factories)
            self._declare(self._group.spaces, self.envs[0].metadata, self.envs[0].render_mode)
        except BaseException:
            self.close_extras()
            raise
        self._obs = self._empty_obs()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        """Reset all envs, or those of `options["reset_mask"]` ([N] bool).

        Args:
            seed: one per env; an integer `s` stands for `s, s + 1, ...`.
            options: further options go to the envs.

        Returns:
            the current observations of all envs, and the infos of those that were reset.
        """
        rows, env_options = self._split_options(options)
        seeds = self._seeds(seed)
        obs = self._empty_obs() if rows is None else map_tree(np.copy, self._obs)
        rows = list(range(self.num_envs)) if rows is None else rows
        try:
            infos = self._group.reset(obs, [(i, seeds[i]) for i in rows], env_options)
        except SpaceError:
            raise
        except Exception as error:
            raise self._failure(error, f"reset after {self._num_steps} steps") from error
        self._needs_reset.difference_update(rows)
        self._parked.difference_update(rows)
        self._obs, self._is_first_reset = obs, False
        return obs, self._group.gather(infos)

    def step(self, actions: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """Step every env that is not parked.

        Returns:
            observations, rewards, terminated, truncated, infos.

        Raises:
            EnvError: an env raises, or is at its end and was not reset.
            SpaceError: at the first step, an env returns something else than its spaces, a number and two bools.
        """
        if self._needs_reset:
            raise self._reset_is_due()
        self._num_steps += 1
        obs = map_tree(np.empty_like, self._obs)
        for i in self._parked:
            write_row(obs, i, map_tree(lambda leaf, i=i: leaf[i], self._obs))
        split = split_actions(self.action_space, actions)
        try:
            rewards, terminated, truncated, infos = self._group.step(obs, split, self._parked)
        except SpaceError:
            raise
        except Exception as error:
            raise self._failure(error, f"step {self._num_steps}") from error
        if any(terminated) or any(truncated):
            self._needs_reset.update(i for i in range(self.num_envs) if terminated[i] or truncated[i])
        self._obs = obs
        flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        return obs, np.array(rewards, np.float64), *flags, self._group.gather(infos) if any(infos) else {}

    def render(self) -> tuple[Any, ...]:
        """Return each env's frame."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, or read its attribute."""
        return tuple(self._group.call(name, args, kwargs))

    def set_attr(self, name: str, values: Any) -> None:
        """Set each env's attribute: a list or tuple holds one value per env."""
        self._group.set_attr(name, self._values_per_env(values))

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env; one that fails is logged and does not keep the others open."""
        self._group.close()

    def _failure(self, error: Exception, when: str) -> EnvError:
        return EnvError(failure_text(self._group.current[0], when, type(error).__name__, str(error)))
