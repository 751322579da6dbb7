"""Our in-process vector env: steps its envs one after the other, and names the one that fails."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rltrainer.envs.adapter.checks import check_obs
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv
from rltrainer.envs.backends.single_env import (
    Env,
    call_env,
    check_is_new,
    check_reward_shape,
    check_same_spaces,
    check_step,
    close_env,
    failure_text,
    make_env,
    split_actions,
    write_row,
)
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
        self.envs: list[Env] = []
        try:
            for factory in factories:
                self._make(factory)
            first = self.envs[0]
            self._declare((first.observation_space, first.action_space), first.metadata, first.render_mode)
        except BaseException:
            self.close_extras()
            raise
        self._obs = self._empty_obs()
        self._reward_shape: tuple[int, ...] | None = None

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
        infos: dict[str, Any] = {}
        for i in range(self.num_envs) if rows is None else rows:
            try:
                env_obs, info = self.envs[i].reset(seed=seeds[i], options=env_options)
            except Exception as error:
                raise self._failure(i, f"reset after {self._num_steps} steps", error) from error
            check_obs(f"env {i} obs", self._spaces, env_obs)
            write_row(obs, i, env_obs)
            if info:
                infos = self._add_info(infos, info, i)
            self._needs_reset.discard(i)
            self._parked.discard(i)
        self._obs, self._is_first_reset = obs, False
        return obs, infos

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
        obs = self._empty_obs()
        rewards: list[Any] = []
        all_terminated, all_truncated = [], []
        infos: dict[str, Any] = {}
        parked = self._parked
        for i, (env, action) in enumerate(zip(self.envs, split_actions(self.action_space, actions), strict=True)):
            if i in parked:
                write_row(obs, i, map_tree(lambda leaf, i=i: leaf[i], self._obs))
                rewards.append(np.zeros(self._reward_shape or ()))
                all_terminated.append(False)
                all_truncated.append(False)
                continue
            try:
                env_obs, reward, terminated, truncated, info = env.step(action)
                if self._num_steps == 1:
                    self._check_step(i, env_obs, reward, terminated, truncated)
                write_row(obs, i, env_obs)
            except SpaceError:
                raise
            except Exception as error:
                raise self._failure(i, f"step {self._num_steps}", error) from error
            rewards.append(reward)
            all_terminated.append(terminated)
            all_truncated.append(truncated)
            if terminated or truncated:
                self._needs_reset.add(i)
            if info:
                infos = self._add_info(infos, info, i)
        self._obs = obs
        flags = np.array(all_terminated, np.bool_), np.array(all_truncated, np.bool_)
        return obs, np.array(rewards, np.float64), *flags, infos

    def render(self) -> tuple[Any, ...]:
        """Return each env's frame."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, or read its attribute."""
        return tuple(call_env(env, name, args, kwargs) for env in self.envs)

    def set_attr(self, name: str, values: Any) -> None:
        """Set each env's attribute: a list or tuple holds one value per env."""
        for env, value in zip(self.envs, self._values_per_env(values), strict=True):
            env.set_wrapper_attr(name, value)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env; one that fails is logged and does not keep the others open."""
        for i, env in enumerate(self.envs):
            close_env(i, env)

    def _make(self, factory: Callable[[], Env]) -> None:
        i = len(self.envs)
        env = make_env(i, factory)
        check_is_new(i, env, self.envs)
        self.envs.append(env)  # before the next check, so that it is closed with the others
        first = self.envs[0]
        spaces = (env.observation_space, env.action_space)
        check_same_spaces(i, spaces, 0, (first.observation_space, first.action_space))

    def _check_step(self, i: int, obs: Tree, reward: Any, terminated: Any, truncated: Any) -> None:
        check_step(i, self._spaces, obs, reward, terminated, truncated)
        if i == 0:
            self._reward_shape = np.shape(reward)
        check_reward_shape(i, reward, 0, self._reward_shape)

    def _failure(self, i: int, when: str, error: Exception) -> EnvError:
        return EnvError(failure_text(i, when, type(error).__name__, str(error)))
