"""The parent of our vector envs of single envs: which envs are due for a reset, masked resets, seeds."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rltrainer.errors import EnvError, ParamsError, field_error_text
from rltrainer.field_rules import as_python, is_int
from rltrainer.seeding import derive_seed
from rltrainer.spaces import leaf_shape, leaf_spaces
from rltrainer.tree import Tree, map_tree

RESTARTED = "rltrainer_restarted"
"""The info that tells [N] bool which envs failed in a step and were made anew: their cells hold no transition."""


class MaskedVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector env in which a finished env waits for a reset with `options={"reset_mask": mask}`, or is parked.

    Args:
        num_envs: how many envs.
        seed: what the adapter derives the seeds of all episodes from (`base_seed`).
    """

    def __init__(self, num_envs: int, seed: int | None) -> None:
        self.num_envs = num_envs
        self.base_seed = seed
        self._num_steps = 0
        self._needs_reset = set(range(num_envs))
        self._parked: set[int] = set()
        self._is_first_reset = True

    @abstractmethod
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, or read its attribute."""

    def park(self, rows: Any) -> None:
        """Leave envs out of all steps until they are reset: each step returns their last observation, and reward 0.

        Args:
            rows: their indices.
        """
        self._parked.update(rows.tolist())
        self._needs_reset -= self._parked

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return each env's attribute of this name."""
        return self.call(name)

    def _declare(self, spaces: tuple[Any, Any], metadata: dict[str, Any], render_mode: str | None) -> None:
        """Say what the single envs are: their observation and action space, metadata and render mode."""
        self.single_observation_space, self.single_action_space = spaces
        self._spaces = leaf_spaces(self.single_observation_space)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = render_mode

    def _reset_is_due(self) -> EnvError:
        text = f"env {min(self._needs_reset)} must be reset before it is stepped"
        return EnvError(f'{text}; options={{"reset_mask": mask}} resets single envs')

    def _split_options(self, options: dict[str, Any] | None) -> tuple[list[int] | None, dict[str, Any] | None]:
        """Return the envs to be reset, None for all, and the options that are theirs."""
        mask = None if options is None else options.get("reset_mask")
        env_options = {key: value for key, value in (options or {}).items() if key != "reset_mask"} or None
        return None if mask is None else self._masked(mask), env_options

    def _masked(self, mask: Any) -> list[int]:
        is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)
        if not is_mask or not mask.any():
            rule = f"must be a bool array of shape ({self.num_envs},) with at least one True"
            raise ParamsError(field_error_text(f"{type(self).__name__}.reset", 'options["reset_mask"]', rule, mask))
        return np.flatnonzero(mask).tolist()

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            if self.base_seed is None or not self._is_first_reset:
                return [None] * self.num_envs
            return [derive_seed(self.base_seed, i, 0) for i in range(self.num_envs)]
        first = as_python(seed)
        if is_int(first):
            return [first + i for i in range(self.num_envs)]
        seeds = list(map(as_python, seed)) if isinstance(seed, Sequence | np.ndarray) else []
        if len(seeds) != self.num_envs:
            rule = f"must hold one seed per env ({self.num_envs})"
            raise ParamsError(field_error_text(f"{type(self).__name__}.reset", "seed", rule, seed))
        return seeds

    def _values_per_env(self, values: Any) -> Sequence[Any]:
        """Return one value per env: a list or tuple holds them, anything else is for all."""
        return values if isinstance(values, list | tuple) else [values] * self.num_envs

    def _empty_obs(self) -> Tree:
        return map_tree(lambda space: np.empty((self.num_envs, *leaf_shape(space)), space.dtype), self._spaces)
