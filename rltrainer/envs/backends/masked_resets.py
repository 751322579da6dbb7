"""The parent of our vector envs of single envs: which envs are due for a reset, masked resets, seeds."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rltrainer.errors import EnvError, ParamsError
from rltrainer.seeding import derive_seed
from rltrainer.spaces import leaf_shape, leaf_spaces
from rltrainer.tree import Tree, map_tree
from rltrainer.types import State
from rltrainer.validation.field_rules import as_python, is_int

Env = gym.Env[Any, Any]
StepOutcome = tuple[Tree, Any, Any, Any, dict[str, Any]]

# Its envs failed and were restarted, or stand for an agent that is gone.
NO_TRANSITION = "rltrainer_no_transition"
"""The info [N] bool that marks envs in which a step was no transition."""


@runtime_checkable
class SaveableEnv(Protocol):
    """An env, or a vector env as a whole, with a state that can be saved and loaded.

    A resumed run loads this state instead of repeating the actions of the episode. A collector's vector env
    saves it; or else each single env of `make_vec`'s backends `sync` and `workers` does: its outermost wrapper, which
    answers for all that it wraps, time limits and frame stacks too.

    A state is data: tensors, numbers, strings, booleans and None, in dicts with string keys and in lists. It holds all
    that decides the next steps, the state of random generators too, but not the last observation.
    """

    def state_dict(self) -> State:
        """Return the state; later steps of the env must not change it."""

    def load_state_dict(self, state: State) -> None:
        """Restore a state; the env was reset before."""


class MaskedVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector env in which a finished env waits for a reset with `options={"reset_mask": mask}`, or is parked."""

    # Observations have the dtype of their space, rewards are float64 [N] (or [N, A], if the envs reward A agents),
    # flags bool [N].

    # Every call returns new arrays, so nothing that was returned is ever overwritten.

    supports_masked_reset = True
    are_saveable: bool  # whether each env is a `SaveableEnv`
    first_env = 0  # the global index of the first env, by which all are seeded
    recipe: Any = None  # the `DeferredEnvs` that made them

    def __init__(self, num_envs: int, seed: int | None) -> None:
        self.num_envs, self.base_seed = num_envs, seed
        self._num_steps = 0
        self._needs_reset = set(range(num_envs))
        self._parked: set[int] = set()
        self._is_first_reset = True
        self._when = "the making of the envs"  # for errors

    @abstractmethod
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call each env's method of this name, or read its attribute."""

    @abstractmethod
    def step(self, actions: Any) -> StepOutcome:
        """Step all envs but the parked ones by actions [N, ...]; an env at its end without a reset is an `EnvError`."""

    @abstractmethod
    def _reset(self, due: dict[int, int | None], options: dict[str, Any] | None) -> tuple[Tree, dict[str, Any]]:
        """Reset envs, given with their seeds; return the observations of all, and infos."""

    @abstractmethod
    def _set_each(self, name: str, values: Sequence[Any]) -> None:
        """Set each env's attribute to its value."""

    @abstractmethod
    def load_states(self, states: Sequence[State]) -> None:
        """Let each env, which was reset before, load its state."""

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tree, dict[str, Any]]:
        """Reset all envs, or the envs of `options["reset_mask"]` ([N] bool); further options go to the envs.

        There is one seed per env; an integer `s` stands for `s, s + 1, ...`. Returned are the current observations
        [N, ...], and the infos of the envs that were reset. Another mask or number of seeds is a `ParamsError`.
        """
        env_options = dict(options or {})
        mask = env_options.pop("reset_mask", None)
        if mask is None:
            rows = list(range(self.num_envs))
        else:
            is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)
            if not is_mask or not mask.any():
                rule = f"must be a bool array of shape ({self.num_envs},) with at least one True"
                self._raise_invalid("reset", 'options["reset_mask"]', rule, mask)
            rows = np.flatnonzero(mask).tolist()
        seeds = self._seeds(seed)
        self._when = f"reset after {self._num_steps} steps"
        self._is_first_reset = False
        return self.begin({i: seeds[i] for i in rows}, env_options or None)

    def begin(self, due: dict[int, int | None], options: dict[str, Any] | None) -> tuple[Tree, dict[str, Any]]:
        """Reset envs, given with their seeds, which may be stepped from now on; return what `reset` does [N, ...]."""
        self._obs, infos = self._reset(due, options)
        self._needs_reset.difference_update(due)
        self._parked.difference_update(due)
        return self._obs, infos

    def park(self, rows: Any) -> None:
        """Leave envs [K] out of all steps until they are reset: each step returns their last observation, reward 0."""
        # So envs that have had their quota of episodes cost nothing more, and need no reset.
        self._parked.update(rows.tolist())
        self._needs_reset -= self._parked

    def render(self) -> tuple[Any, ...]:
        """Return each env's frame."""
        return self.call("render")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return each env's attribute of this name."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set each env's attribute: a list or tuple holds one value per env, else it is a `ParamsError`."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            self._raise_invalid("set_attr", "values", f"must hold one value per env ({self.num_envs})", values)
        self._set_each(name, each)

    def _begin_step(self) -> None:
        if self._needs_reset:
            text = f"env {min(self._needs_reset)} must be reset before it is stepped"
            raise EnvError(f'{text}; options={{"reset_mask": mask}} resets single envs')
        self._num_steps += 1
        self._when = f"step {self._num_steps}"

    def _end_step(self, obs: Tree, reward: Any, terminated: Any, truncated: Any, infos: dict[str, Any]) -> StepOutcome:
        self._obs, done = obs, terminated | truncated
        if np.count_nonzero(done):
            self._needs_reset.update(np.flatnonzero(done).tolist())
        return obs, reward, terminated, truncated, infos

    def _declare(self, spaces: tuple[Any, Any], metadata: dict[str, Any], render_mode: str | None) -> None:
        """Take over the observation and action space, metadata and render mode of the single envs."""
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space, self.action_space = (batch_space(space, self.num_envs) for space in spaces)
        self.metadata = {**metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode = render_mode
        self._spaces = leaf_spaces(self.single_observation_space)
        self._obs = map_tree(lambda leaf: np.empty((self.num_envs, *leaf_shape(leaf)), leaf.dtype), self._spaces)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        # The adapter derives the seeds of all episodes from `base_seed`. Without an adapter, the first reset without a
        # seed takes the seeds of the first episodes.
        if seed is None:
            if self.base_seed is None or not self._is_first_reset:
                return [None] * self.num_envs
            return [derive_seed(self.base_seed, self.first_env + i, 0) for i in range(self.num_envs)]
        first = as_python(seed)
        if is_int(first):
            return [first + i for i in range(self.num_envs)]
        seeds = list(map(as_python, seed)) if isinstance(seed, Sequence | np.ndarray) else []
        if len(seeds) != self.num_envs:
            self._raise_invalid("reset", "seed", f"must hold one seed per env ({self.num_envs})", seed)
        return seeds

    def _raise_invalid(self, method: str, field: str, rule: str, value: object) -> NoReturn:
        raise ParamsError.about(f"{type(self).__name__}.{method}", field, rule, value)


def write_row(arrays: Tree, i: int, value: Tree) -> None:
    """Write one env's observation [...] into arrays [N, ...]; not by a generic walk, as it is called at each step."""
    if isinstance(arrays, np.ndarray):
        arrays[i] = value
    elif isinstance(arrays, dict):
        for key, part in arrays.items():
            write_row(part, i, value[key])
    else:
        for part, item in zip(arrays, value, strict=True):
            write_row(part, i, item)


def copy_rows(target: Tree, source: Tree, rows: Iterable[int]) -> None:
    """Copy some envs' observations from arrays [N, ...] into others."""
    for i in rows:
        write_row(target, i, map_tree(lambda leaf, i=i: leaf[i], source))
