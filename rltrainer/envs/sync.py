"""Our in-process vector env: steps its envs one after the other, and names the one that fails."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from rltrainer.envs.checks import check_flag, check_obs, check_reward, describe
from rltrainer.errors import EnvError, ParamsError, RLTrainerError, SpaceError, field_error_text
from rltrainer.seeding import derive_seed
from rltrainer.spaces import leaf_shape, leaf_spaces
from rltrainer.tree import Tree, map_tree

Env = gym.Env[Any, Any]


class SyncVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
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
        self.base_seed = seed
        self.num_envs = len(factories)
        self.envs: list[Env] = []
        try:
            for factory in factories:
                self.envs.append(self._make(factory))
            first = self.envs[0]
            self._spaces = leaf_spaces(first.observation_space)
        except BaseException:
            self.close_extras()
            raise
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = first.render_mode
        self._obs = self._empty_obs()
        self._reward_shape: tuple[int, ...] | None = None
        self._num_steps = 0
        self._needs_reset = set(range(self.num_envs))
        self._is_first_reset = True

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
        mask = None if options is None else options.get("reset_mask")
        env_options = {key: value for key, value in (options or {}).items() if key != "reset_mask"} or None
        seeds = self._seeds(seed)
        obs = self._empty_obs() if mask is None else map_tree(np.copy, self._obs)
        infos: dict[str, Any] = {}
        for i in range(self.num_envs) if mask is None else self._masked(mask):
            try:
                env_obs, info = self.envs[i].reset(seed=seeds[i], options=env_options)
            except Exception as error:
                raise self._failure(i, "reset", error) from error
            check_obs(f"env {i} obs", self._spaces, env_obs)
            _write_row(obs, i, env_obs)
            if info:
                infos = self._add_info(infos, info, i)
            self._needs_reset.discard(i)
        self._obs, self._is_first_reset = obs, False
        return obs, infos

    def step(self, actions: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """Step every env.

        Returns:
            observations, rewards, terminated, truncated, infos.

        Raises:
            EnvError: an env raises, or is at its end and was not reset.
            SpaceError: at the first step, an env returns something else than its spaces, a number and two bools.
        """
        if self._needs_reset:
            text = f"env {min(self._needs_reset)} must be reset before it is stepped"
            raise EnvError(f'{text}; options={{"reset_mask": mask}} resets single envs')
        self._num_steps += 1
        obs = self._empty_obs()
        rewards, all_terminated, all_truncated = [], [], []
        infos: dict[str, Any] = {}
        for i, (env, action) in enumerate(zip(self.envs, self._rows(actions), strict=True)):
            try:
                env_obs, reward, terminated, truncated, info = env.step(action)
                if self._num_steps == 1:
                    self._check_step(i, env_obs, reward, terminated, truncated)
                _write_row(obs, i, env_obs)
            except SpaceError:
                raise
            except Exception as error:
                raise self._failure(i, "step", error) from error
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
        values = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return each env's attribute of this name."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set each env's attribute: a list or tuple holds one value per env."""
        values = values if isinstance(values, list | tuple) else [values] * self.num_envs
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every env; one that fails is logged and does not keep the others open."""
        for i, env in enumerate(self.envs):
            try:
                env.close()
            except Exception as error:
                logging.getLogger("rltrainer").warning("env %d failed during close: %r", i, error)

    def _make(self, factory: Callable[[], Env]) -> Env:
        i = len(self.envs)
        try:
            env = factory()
        except RLTrainerError:
            raise
        except Exception as error:
            raise EnvError(f"env {i}: the factory raised {type(error).__name__}: {error}") from error
        if not isinstance(env, gym.Env):
            raise EnvError(f"env {i}: the factory must return a gymnasium.Env, got {describe(env)}")
        for j, other in enumerate(self.envs):
            if env is other:
                raise EnvError(f"env {i}: the factory returned the same object as for env {j}; it must make a new env")
        for name in ("observation_space", "action_space") if self.envs else ():
            expected, found = getattr(self.envs[0], name), getattr(env, name)
            if expected != found:
                self.envs.append(env)  # so that it is closed with the others
                raise SpaceError(f"env {i} {name}: expected {expected}, as env 0 has, got {found}")
        return env

    def _check_step(self, i: int, obs: Tree, reward: Any, terminated: Any, truncated: Any) -> None:
        check_obs(f"env {i} obs", self._spaces, obs)
        check_reward(f"env {i} reward", reward)
        check_flag(f"env {i} terminated", terminated)
        check_flag(f"env {i} truncated", truncated)
        if i == 0:
            self._reward_shape = np.shape(reward)
        elif np.shape(reward) != self._reward_shape:
            raise SpaceError(
                f"env {i} reward: expected shape {self._reward_shape}, as env 0 has, got {describe(reward)}"
            )

    def _failure(self, i: int, command: str, error: Exception) -> EnvError:
        when = f"step {self._num_steps}" if command == "step" else f"reset after {self._num_steps} steps"
        return EnvError(f"env {i} failed during {when}: {type(error).__name__}: {error}")

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            if self.base_seed is None or not self._is_first_reset:
                return [None] * self.num_envs
            return [derive_seed(self.base_seed, i, 0) for i in range(self.num_envs)]
        if isinstance(seed, int):
            return [seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            rule = f"must hold one seed per env ({self.num_envs})"
            raise ParamsError(field_error_text("SyncVectorEnv.reset", "seed", rule, seed))
        return seed

    def _masked(self, mask: Any) -> list[int]:
        is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)
        if not is_mask or not mask.any():
            rule = f"must be a bool array of shape ({self.num_envs},) with at least one True"
            raise ParamsError(field_error_text("SyncVectorEnv.reset", 'options["reset_mask"]', rule, mask))
        return np.flatnonzero(mask).tolist()

    def _rows(self, actions: Any) -> Iterable[Any]:
        """Split a batch of actions; the rows of an array need no help."""
        return iterate(self.action_space, actions) if isinstance(actions, dict | tuple) else actions

    def _empty_obs(self) -> Tree:
        return map_tree(lambda space: np.empty((self.num_envs, *leaf_shape(space)), space.dtype), self._spaces)


def _write_row(arrays: Tree, i: int, value: Tree) -> None:
    """Write one env's observation; called for each env at each step, hence no generic walk over the tree."""
    if isinstance(arrays, np.ndarray):
        arrays[i] = value
    elif isinstance(arrays, dict):
        for key, part in arrays.items():
            _write_row(part, i, value[key])
    else:
        for part, item in zip(arrays, value, strict=True):
            _write_row(part, i, item)
