"""The state of envs within their episodes: how it is saved, and how envs are restored from it.

Envs that save their own state load it. Other envs begin the episodes of their seeds again, and are stepped with the
actions that were kept; where they arrive is compared with where they were, bit for bit.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.envs.adapter.action_history import MAX_STEPS, ActionHistory, as_array
from rltrainer.envs.adapter.actions import lent
from rltrainer.envs.adapter.autoreset import layers
from rltrainer.envs.adapter.episode_clock import ClockState, EpisodeClock, Mask, Rows
from rltrainer.envs.adapter.observations import ObsMemory, take_rows
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv, SaveableEnv
from rltrainer.envs.backends.native import NativeVectorEnv
from rltrainer.errors import CheckpointError
from rltrainer.spaces import ValueRange, leaf_shape, stored_dtype
from rltrainer.state.codec import from_state, to_state
from rltrainer.tree import Tree, leaves, rebuild
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeInt

Array = np.ndarray[Any, Any]
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]

NO_ROWS: Rows = np.zeros(0, np.int64)


@dataclass
class AdapterState:
    """State of an `EnvAdapter`; the last four fields are empty where no env is in the middle of an episode."""

    is_started: bool
    clock: ClockState
    resetting: list[NonNegativeInt] = field(default_factory=list)  # the envs that spend the next step on their reset
    obs: list[Any] | None = None  # the leaves of the current observation [N, ...]
    actions: Any = None  # of the running episodes [sum of their steps, ...], one env after the other
    envs: dict[str, Any] | None = None  # the envs' own state, instead of actions

    @property
    def num_steps(self) -> Rows:
        """The steps of the running episodes [N]."""
        return np.array(self.clock.episode_step, np.int64)

    @property
    def num_kept(self) -> Rows:
        """The number of actions of each env [N]; those of too long episodes are not kept."""
        return np.where(self.num_steps <= MAX_STEPS, self.num_steps, 0)

    def check(self, num_envs: int, obs_space: Tree, action_space: gym.Space[Any]) -> None:
        """Raise a `CheckpointError` if it is of other envs."""
        for found in (len(self.clock.episode), len(self.clock.episode_step)):
            if found != num_envs:
                raise CheckpointError(f"the state is of {found} envs, but there are {num_envs}")
        if any(n >= num_envs for n in self.resetting):
            raise CheckpointError(f"adapter.resetting: expected some of {num_envs} envs, found {self.resetting}")
        if (self.envs is not None or self.actions is not None) and self.obs is None:
            raise CheckpointError("adapter.obs: missing in the saved state")
        if self.obs is not None:
            spaces = leaves(obs_space)
            if len(self.obs) != len(spaces):
                raise CheckpointError(f"adapter.obs: expected {len(spaces)} tensors, found {len(self.obs)}")
            for i, (leaf, space) in enumerate(zip(self.obs, spaces, strict=True)):
                _check_tensor(f"adapter.obs.{i}", leaf, (num_envs, *leaf_shape(space)), stored_dtype(space))
        if self.actions is not None:
            shape = (int(self.num_kept.sum()), *leaf_shape(action_space))
            dtype = torch.from_numpy(np.empty(0, action_space.dtype)).dtype
            _check_tensor("adapter.actions", self.actions, shape, dtype)
            if not ValueRange(action_space).holds(self.actions.numpy()):
                raise CheckpointError(f"adapter.actions: expected actions in {action_space}, found others")

    def table(self) -> Any:
        """Return the actions as an array [L, N, ...]: episodes end together, and before them are others' actions."""
        num_kept = self.num_kept
        each = np.split(self.actions.numpy(), np.cumsum(num_kept)[:-1])
        table = np.repeat(each[int(num_kept.argmax())][:, None], len(each), 1)
        for env, actions in enumerate(each):
            table[len(table) - len(actions) :, env] = actions
        return table


@dataclass(slots=True)
class LoadedState:
    """A checked state that the envs are not in yet."""

    state: AdapterState
    lost: Rows  # the envs that cannot be restored, and start a new episode
    load: Load | None  # of the envs' own state


class EnvState:
    """Saves where the envs of a vector env are, and restores them.

    `can_repeat` says whether an env's episode follows from its seed and actions. The attribute `history` is None where
    the envs save their own state, or cannot be restored.
    """

    def __init__(self, envs: VectorEnv, can_repeat: bool, history: ActionHistory) -> None:
        self._envs, self._can_repeat = envs, can_repeat
        self._saver = find_saver(envs)
        self.history = history if can_repeat and self._saver is None else None

    def save(self, state: AdapterState, obs: Tree, resetting: Rows | None) -> None:
        """Add to a state what restores the envs."""
        if self._saver is not None:
            state.envs = self._saver.save()
            state.resetting = [] if resetting is None else resetting.tolist()
        elif self.history is not None:
            counts = enumerate(state.num_kept.tolist())
            state.actions = np.concatenate([self.history.of(n, count) for n, count in counts])
        if state.envs is not None or state.actions is not None:
            state.obs = [as_array(leaf).copy() for leaf in leaves(obs)]

    def prepare(self, state: AdapterState, is_masked: bool) -> LoadedState:
        """Check the envs' own state, and warn of envs that cannot be restored; `is_masked`: each by itself."""
        if state.envs is not None and self._saver is not None:
            return LoadedState(state, NO_ROWS, self._saver.prepare(state.envs))
        inside = state.num_steps > 0 if is_masked else np.full(len(state.num_steps), state.clock.num_steps > 0)
        repeats = state.actions is not None and self._can_repeat
        lost = np.flatnonzero(inside & (state.num_kept == 0) if repeats else inside) if state.is_started else NO_ROWS
        if len(lost):
            why = "were in the middle of an episode, and what led there is not in the state"
            why = f"were more than {MAX_STEPS} steps into their episode" if repeats else why
            why = why if is_masked else "cannot be reset one by one, and do not save where they are (SaveableEnv)"
            _warn_of_lost(lost, why)
        return LoadedState(state, lost, None)

    def restore(
        self, loaded: LoadedState, clock: EpisodeClock, memory: ObsMemory, env_device: torch.device | None, returns: Any
    ) -> Rows:
        """Restore envs, which were just reset; return those in which that failed [K].

        The restored observations go to `memory`. `env_device` is of envs that take tensors; `returns` are those of
        the running episodes [N] or [N, A], None is not compared.
        """
        state = loaded.state
        if loaded.load is not None:
            loaded.load()
            memory.write(rebuild(memory.obs, state.obs or []))
        if loaded.load is not None or state.actions is None or not self._can_repeat:
            return NO_ROWS
        table, num_steps = state.table(), state.num_kept
        seeds = clock.episode_seeds(np.arange(len(num_steps)))
        has_failed, gained = repeat_episodes(self._envs, seeds, table, num_steps, memory, env_device)
        if self.history is not None:
            self.history.restore(table, num_steps)
        has_failed |= differing(state.obs or [], memory.obs)
        # Equal observations are not enough: an env may differ in what it hides, and the returns show that.
        if returns is not None and gained is not None:
            is_same = gained == returns if gained.shape == returns.shape else np.zeros(len(has_failed))
            has_failed |= ~is_same.reshape(len(has_failed), -1).astype(np.bool_).all(1)
        failed = np.flatnonzero(has_failed & (num_steps > 0))
        if len(failed):
            _warn_of_lost(
                failed, "did not come back to where they were when the actions of their episode were repeated"
            )
        return failed


@dataclass(frozen=True, slots=True)
class Saver:
    """The functions that save a vector env's own state, and that check a state and return what loads it."""

    save: Callable[[], State]
    prepare: Callable[[State], Load]


def find_saver(envs: VectorEnv) -> Saver | None:
    """Return what saves all envs of a vector env, wrappers included; None if a part of them is not saved."""
    for layer in layers(envs):
        if isinstance(layer, SaveableEnv):
            return Saver(layer.state_dict, getattr(layer, "prepare_load", partial(_prepare_unchecked, layer)))
        if isinstance(layer, MaskedVectorEnv):
            single = Saver(partial(_single_states, layer), partial(_prepare_single_states, layer))
            return single if layer.are_saveable else None
        if f"{type(layer).__module__}.{type(layer).__qualname__}" == CARTPOLE:
            return Saver(partial(_cartpole_state, layer), partial(_prepare_cartpole, layer))
        # An unknown wrapper may have a state of its own, which would be lost.
        if not (isinstance(layer, NativeVectorEnv) or getattr(layer, "is_stateless", False)):
            return None
    return None


def _prepare_unchecked(envs: SaveableEnv, state: State) -> Load:
    def load() -> None:
        try:
            envs.load_state_dict(state)
        except Exception as error:
            name = f"{type(envs).__name__}.load_state_dict"
            raise CheckpointError(f"adapter.envs: {name} raised {type(error).__name__}: {error}") from error

    return load


def _single_states(envs: MaskedVectorEnv) -> State:
    return {"envs": list(envs.call("state_dict"))}


def _prepare_single_states(envs: MaskedVectorEnv, state: State) -> Load:
    found, num_envs = state.get("envs"), envs.num_envs
    if not isinstance(found, list) or len(found) != num_envs or not all(isinstance(each, dict) for each in found):
        raise CheckpointError(f"adapter.envs.envs: expected a list of the states of {num_envs} envs")
    return partial(envs.load_states, found)


CARTPOLE = "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv"
"""The one native vector env whose attributes are saved here, as they are in gymnasium 1.4."""


@dataclass
class PCG64State:
    """State of NumPy's default generator; numbers of 128 bits are text."""

    state: str
    inc: str
    has_uint32: int
    uinteger: int

    def problem(self) -> str | None:
        """Return what is wrong with a state that was read from a file, or None."""
        try:
            np.random.PCG64().state = self.words()
        except (ValueError, OverflowError, TypeError) as error:
            return f"not the state of a PCG64 generator ({error})"
        return None

    def words(self) -> Any:
        """Return the state as NumPy takes it."""
        words = {"state": int(self.state), "inc": int(self.inc)}
        rest = {"has_uint32": self.has_uint32, "uinteger": self.uinteger}
        return {"bit_generator": "PCG64", "state": words, **rest}


@dataclass
class CartPoleState:
    """State of a `CartPoleVectorEnv`: arrays [4, N], [N] and [N]."""

    state: Array
    steps: Array
    prev_done: Array
    random: PCG64State


def _cartpole_state(envs: Any) -> State:
    random: Any = envs.np_random.bit_generator.state
    words = str(random["state"]["state"]), str(random["state"]["inc"])
    arrays = envs.state.copy(), envs.steps.copy(), envs.prev_done.copy()
    return dict(to_state(CartPoleState(*arrays, PCG64State(*words, random["has_uint32"], random["uinteger"]))))


def _prepare_cartpole(envs: Any, state: State) -> Load:
    found, num_envs = from_state(CartPoleState, state, "adapter.envs"), envs.num_envs
    for name, array, shape, dtype in (
        ("state", found.state, (4, num_envs), np.float64),
        ("steps", found.steps, (num_envs,), np.int32),
        ("prev_done", found.prev_done, (num_envs,), np.bool_),
    ):
        if array.shape != shape or array.dtype != dtype or not np.isfinite(array).all():
            expected = f"finite {np.dtype(dtype)} {shape}"
            raise CheckpointError(f"adapter.envs.{name}: expected {expected}, found {array.dtype} {array.shape}")

    def load() -> None:
        envs.state, envs.steps, envs.prev_done = found.state.copy(), found.steps.copy(), found.prev_done.copy()
        envs.np_random.bit_generator.state = found.random.words()

    return load


def repeat_episodes(
    envs: VectorEnv, seeds: list[int | None], table: Any, num_steps: Rows, memory: ObsMemory, env_device: Any
) -> tuple[Mask, Array | None]:
    """Step envs that were just reset with the actions of a table [L, N, ...]; write the last observations to `memory`.

    Returns:
        the envs whose episode ended on the way [N] bool, and the sums of rewards [N] or [N, A]; None without steps.
    """
    # An env with a shorter episode than others begins it later, with a reset of its own. Before that, and when its
    # episode has ended too early, it is parked, or takes steps that do not count.
    begins, has_failed = len(table) - num_steps, np.zeros(envs.num_envs, np.bool_)
    returns: Array | None = None
    _leave_out(envs, seeds, begins > 0, is_done=False)
    for number, row in enumerate(table):
        if number:
            _reset(envs, seeds, begins == number)
        row = lent(row)  # the table is also the history of the running episodes
        action = row if env_device is None else torch.from_numpy(row).to(env_device)
        obs, reward, terminated, truncated, _ = envs.step(action)
        if number == len(table) - 1:
            memory.write(obs)
        counts = (begins <= number) & ~has_failed
        gained = as_array(reward).astype(np.float32)  # as the collector counted them
        returns = np.zeros(gained.shape) if returns is None else returns
        returns[counts] += gained[counts]
        done = as_array(terminated) | as_array(truncated)
        has_failed |= counts & done
        _leave_out(envs, seeds, done, is_done=True)
    late = begins == len(table)
    if len(table) and late.any():
        memory.write_rows(np.flatnonzero(late), take_rows(_reset(envs, seeds, late), np.flatnonzero(late)))
    return has_failed, returns


def differing(saved: list[Any], obs: Any) -> Mask:
    """Return which envs observe something else [N], in any bit, than these leaves."""
    differs: Any = False
    for there, here in zip(saved, leaves(obs), strict=True):
        differs = differs | (_bits(there) != _bits(here)).any(1)
    return np.asarray(differs)


def _bits(leaf: Any) -> Array:
    # Bytes, not numbers: -0.0 equals 0.0, and NaN does not equal itself.
    rows = as_array(leaf)
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)


def _leave_out(envs: Any, seeds: list[int | None], mask: Mask, is_done: bool) -> None:
    """Park envs; where that is impossible, reset those that are done, so that all can be stepped."""
    if not mask.any():
        return
    if isinstance(envs.unwrapped, MaskedVectorEnv):
        envs.unwrapped.park(np.flatnonzero(mask))
    elif is_done:
        _reset(envs, seeds, mask)


def _reset(envs: Any, seeds: list[int | None], mask: Mask) -> Any:
    """Begin the episodes of some envs; return the observations of all."""
    if not mask.any():
        return None
    due = [seed if mask[n] else None for n, seed in enumerate(seeds)]
    return envs.reset(seed=due, options={"reset_mask": mask})[0]


def _warn_of_lost(rows: Rows, why: str) -> None:
    text = f"envs {rows.tolist()} {why}: they start a new episode instead of continuing"
    warnings.warn(text, stacklevel=5)


def _check_tensor(name: str, found: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(found, Tensor) or tuple(found.shape) != shape or found.dtype != dtype:
        what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise CheckpointError(f"{name}: expected {dtype} {shape}, found {what}")
    if dtype.is_floating_point and not found.isfinite().all():
        raise CheckpointError(f"{name}: holds NaN or infinity")
