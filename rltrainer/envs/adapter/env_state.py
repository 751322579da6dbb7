"""The state of envs within their episodes: what is saved of it, and how envs are restored."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.envs.adapter.action_history import MAX_STEPS, ActionTrail, as_array
from rltrainer.envs.adapter.actions import lent
from rltrainer.envs.adapter.autoreset import layers
from rltrainer.envs.adapter.episode_clock import ClockState, EpisodeClock, Mask, Rows
from rltrainer.envs.adapter.episodes import EpisodeRecorder
from rltrainer.envs.adapter.observations import ObsMemory, take_rows
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv, SaveableEnv
from rltrainer.envs.backends.native import NativeVectorEnv
from rltrainer.errors import CheckpointError, ParamsError, field_error_text
from rltrainer.spaces import ValueRange, leaf_shape, stored_dtype
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.tree import Tree, leaves, rebuild
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import AnyPath, NonNegativeInt, checked

NO_ROWS: Rows = np.zeros(0, np.int64)


@dataclass
class AdapterState:
    """State of an `EnvAdapter`; without the last four where no env is in the middle of anything, and in old files.

    Args:
        is_started: whether the envs were reset.
        clock: where each env is in its sequence of episodes.
        resetting: the envs that will spend the next step on their reset.
        obs: the leaves of the current observation [N, ...].
        actions: of the running episodes [sum of their steps, ...], one env after the other; None if the envs' own state
            is there, or nothing helps.
        envs: the envs' own state.
    """

    is_started: bool
    clock: ClockState
    resetting: list[NonNegativeInt] = field(default_factory=list)
    obs: list[Any] | None = None
    actions: Any = None
    envs: dict[str, Any] | None = None

    @property
    def num_steps(self) -> Rows:
        """The steps of the running episodes [N]."""
        return np.array(self.clock.episode_step, np.int64)

    @property
    def num_kept(self) -> Rows:
        """The actions of each env [N]: those of too long episodes are not kept."""
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

    def lost(self, can_repeat: bool, can_load: bool, is_masked: bool) -> Rows:
        """Return the envs that cannot go on where they were, and warn of them.

        Args:
            can_repeat: whether episodes can be repeated by their seeds and actions.
            can_load: whether the envs can load their own state.
            is_masked: whether one env can be reset by itself.
        """
        inside = self.num_steps > 0 if is_masked else np.full(len(self.num_steps), self.clock.num_steps > 0)
        if not self.is_started or (self.envs is not None and can_load):
            return NO_ROWS
        repeats = self.actions is not None and can_repeat
        lost = np.flatnonzero(inside & (self.num_kept == 0) if repeats else inside)
        if len(lost):
            why = "were in the middle of an episode, and what led there is not in the state"
            why = f"were more than {MAX_STEPS} steps into their episode" if repeats else why
            why = why if is_masked else "cannot be reset one by one, and do not save where they are (SaveableEnv)"
            warn_of_lost(lost, why)
        return lost

    def table(self) -> Any:
        """Return the actions as an array [L, N, ...]: episodes end together, and before them are others' actions."""
        num_kept = self.num_kept
        each = np.split(self.actions.numpy(), np.cumsum(num_kept)[:-1])
        table = np.repeat(each[int(num_kept.argmax())][:, None], len(each), 1)
        for env, actions in enumerate(each):
            table[len(table) - len(actions) :, env] = actions
        return table


def warn_of_lost(rows: Rows, why: str) -> None:
    """Name envs that start a new episode."""
    text = f"envs {rows.tolist()} {why}: they start a new episode instead of going on"
    warnings.warn(text, stacklevel=5)


def _check_tensor(name: str, found: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(found, Tensor) or tuple(found.shape) != shape or found.dtype != dtype:
        what = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
        raise CheckpointError(f"{name}: expected {dtype} {shape}, found {what}")
    if dtype.is_floating_point and not found.isfinite().all():
        raise CheckpointError(f"{name}: holds NaN or infinity")


@dataclass(slots=True)
class Place:
    """A place of all envs that was loaded, while they are not there yet.

    Args:
        state: what was loaded.
        lost: the envs that cannot go there, and start a new episode.
        load: loads the envs' own state; None if they have none.
    """

    state: AdapterState
    lost: Rows
    load: Load | None


class EnvPlaces:
    """Knows how the envs of a vector env come to where they were.

    Args:
        envs: all of them.
        can_repeat: whether an env's episode comes from its seed and actions.
        trail: keeps the actions that can be repeated.

    Attributes:
        trail: None where the envs save their own state, or nothing helps.
    """

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], can_repeat: bool, trail: ActionTrail) -> None:
        self._envs, self._can_repeat = envs, can_repeat
        self._saveable = find_saveable(envs)
        self.trail = trail if can_repeat and self._saveable is None else None

    def record(self, folder: str | Path, first_env: int) -> EpisodeRecorder:
        """Return what records episodes that end.

        Args:
            folder: where their files are written.
            first_env: the index of the first env, where the envs of several adapters are recorded.

        Raises:
            ParamsError: no episode of these envs follows from its seed and actions alone, or `folder` is no path.
        """
        folder = Path(checked("Collector.record_episodes", "folder", folder, AnyPath))
        if self.trail is None:
            rule = "must be False for envs whose episodes do not follow from their seeds and actions alone"
            hint = 'Use rl.make_vec(..., backend="sync"), and no SaveableEnv.'
            raise ParamsError(field_error_text("CheckpointParams", "record_episodes", rule, True, hint))
        return EpisodeRecorder(folder, self.trail, first_env)

    def save(self, state: AdapterState, obs: Tree, resetting: Rows | None) -> None:
        """Add to a state what brings the envs to where they are."""
        if self._saveable is not None:
            state.envs = self._saveable.state_dict()
            state.resetting = [] if resetting is None else resetting.tolist()
        elif self.trail is not None:
            state.actions = np.concatenate([self.trail.of(n, count) for n, count in enumerate(state.num_kept.tolist())])
        if state.envs is not None or state.actions is not None:
            state.obs = [as_array(leaf).copy() for leaf in leaves(obs)]

    def check(self, state: AdapterState, is_masked: bool) -> Place:
        """Check what brings envs to their places, and warn of those that cannot go there; `is_masked`: one by one."""
        saveable = None if state.envs is None else self._saveable
        lost = state.lost(self._can_repeat, saveable is not None, is_masked)
        return Place(state, lost, None if saveable is None else load_of(saveable, state.envs or {}))

    def bring(
        self, place: Place, clock: EpisodeClock, memory: ObsMemory, env_device: torch.device | None, returns: Any
    ) -> Rows:
        """Bring envs, which were just reset, to a place; return those that did not come there [K].

        Args:
            place: what `check` returned.
            clock: where each env is.
            memory: for the observations of there.
            env_device: of envs that take tensors.
            returns: of the running episodes [N] or [N, A]; None is not compared.
        """
        state, trail = place.state, self.trail
        if place.load is not None:
            place.load()
            memory.write(rebuild(memory.obs, state.obs or []))
        if place.load is not None or state.actions is None or not self._can_repeat:
            return NO_ROWS
        table, num_steps = state.table(), state.num_kept
        seeds = clock.episode_seeds(np.arange(len(num_steps)))
        repeated = repeat_episodes(self._envs, seeds, table, num_steps, memory, env_device)
        if trail is not None:
            trail.restore(table, num_steps)
        failed = repeated.failed | differing(state.obs or [], memory.obs)
        if returns is not None and repeated.returns is not None:
            is_same = repeated.returns == returns if repeated.returns.shape == returns.shape else np.zeros(len(failed))
            failed |= ~is_same.reshape(len(failed), -1).astype(np.bool_).all(1)
        failed &= num_steps > 0
        if failed.any():
            why = "did not come back to where they were when the actions of their episode were repeated"
            warn_of_lost(np.flatnonzero(failed), why)
        return np.flatnonzero(failed)


class SingleStates:
    """The states of single envs that are saveable, together."""

    def __init__(self, envs: MaskedVectorEnv) -> None:
        self._envs = envs

    def state_dict(self) -> State:
        """Return the states of all envs."""
        return {"envs": list(self._envs.call("state_dict"))}

    def load_state_dict(self, state: State) -> None:
        """Put all envs where they were."""
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check that there is a state for each env, and return what loads them."""
        found, num_envs = state.get("envs"), self._envs.num_envs
        if not isinstance(found, list) or len(found) != num_envs or not all(isinstance(each, dict) for each in found):
            raise CheckpointError(f"adapter.envs.envs: expected a list of the states of {num_envs} envs")
        return lambda: self._envs.load_states(found)


def find_saveable(envs: gym.vector.VectorEnv[Any, Any, Any]) -> SaveableEnv | None:
    """Return what saves and loads all envs of a vector env, wrappers included; None if something in it is not saved."""
    for layer in layers(envs):
        if isinstance(layer, SaveableEnv):
            return layer
        if isinstance(layer, MaskedVectorEnv):
            return SingleStates(layer) if layer.are_saveable else None
        if (native := NATIVE_STATES.get(f"{type(layer).__module__}.{type(layer).__qualname__}")) is not None:
            found: SaveableEnv = native(layer)
            return found
        if not (isinstance(layer, NativeVectorEnv) or getattr(layer, "is_stateless", False)):
            return None  # nobody knows what a wrapper remembers
    return None


def load_of(saveable: SaveableEnv, state: State) -> Load:
    """Check the state of envs, as far as they let it be checked before they change, and return what loads it."""
    prepare = getattr(saveable, "prepare_load", None)
    if callable(prepare):
        load: Load = prepare(state)
        return load

    def load_unchecked() -> None:
        try:
            saveable.load_state_dict(state)
        except Exception as error:
            name = f"{type(saveable).__name__}.load_state_dict"
            raise CheckpointError(f"adapter.envs: {name} raised {type(error).__name__}: {error}") from error

    return load_unchecked


Array = np.ndarray[Any, Any]


@dataclass
class PCG64State:
    """State of NumPy's default generator; numbers of 128 bits are text."""

    state: str
    inc: str
    has_uint32: int
    uinteger: int

    @classmethod
    def of(cls, generator: np.random.Generator) -> "PCG64State":
        """Return a generator's state."""
        state: Any = generator.bit_generator.state
        words = state["state"]
        return cls(str(words["state"]), str(words["inc"]), state["has_uint32"], state["uinteger"])

    def problem(self) -> str | None:
        """Return what is wrong with a state that was read from a file, or None."""
        try:
            np.random.PCG64().state = self.words()
        except (ValueError, OverflowError, TypeError) as error:
            return f"not the state of a PCG64 generator ({error})"
        return None

    def words(self) -> Any:
        """Return what NumPy takes."""
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


class CartPoleStates:
    """Saves and loads gymnasium's vector env of CartPole, read in gymnasium 1.4."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def state_dict(self) -> State:
        """Return the state of all envs."""
        envs = self._envs
        arrays = envs.state.copy(), envs.steps.copy(), envs.prev_done.copy()
        return dict(to_state(CartPoleState(*arrays, PCG64State.of(envs.np_random))))

    def load_state_dict(self, state: State) -> None:
        """Put all envs where they were."""
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check a state, and return what loads it.

        Raises:
            CheckpointError: it is of other envs, or none.
        """
        envs, found = self._envs, from_state(CartPoleState, state, "adapter.envs")
        num_envs = envs.num_envs
        for name, shape, dtype in (
            ("state", (4, num_envs), np.float64), ("steps", (num_envs,), np.int32), ("prev_done", (num_envs,), np.bool_)
        ):  # fmt: skip
            array = getattr(found, name)
            if array.shape != shape or array.dtype != dtype or not np.isfinite(array).all():
                expected = f"finite {np.dtype(dtype)} {shape}"
                raise CheckpointError(f"adapter.envs.{name}: expected {expected}, found {array.dtype} {array.shape}")

        def load() -> None:
            envs.state, envs.steps, envs.prev_done = found.state.copy(), found.steps.copy(), found.prev_done.copy()
            envs.np_random.bit_generator.state = found.random.words()

        return load


NATIVE_STATES: dict[str, Callable[[Any], Any]] = {
    "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv": CartPoleStates
}
"""The savers and loaders of native vector envs, by the names of their classes."""


@dataclass(slots=True)
class Repeated:
    """Outcome of repeated episodes.

    Args:
        failed: [N] bool, the envs whose episode ended on the way.
        returns: [N] or [N, A], the sums of rewards; None if no step was taken.
    """

    failed: Mask
    returns: Array | None


def repeat_episodes(
    envs: gym.vector.VectorEnv[Any, Any, Any],
    seeds: list[int | None],
    table: Any,
    num_steps: Rows,
    memory: ObsMemory,
    env_device: torch.device | None,
) -> Repeated:
    """Bring envs that were just reset to where these actions lead.

    An env with a shorter episode than others begins it later, with a reset of its own. Before that, and when its
    episode has ended too early, it is left out of steps, or takes some that nobody looks at.

    Args:
        envs: their masked resets work.
        seeds: of the running episodes.
        table: array [L, N, ...] of actions, for the longest episode; others come at the end.
        num_steps: of the episodes [N].
        memory: for the last observations.
        env_device: of envs that take tensors.
    """
    begins, result = len(table) - num_steps, Repeated(np.zeros(envs.num_envs, np.bool_), None)
    _leave_out(envs, seeds, begins > 0, is_done=False)
    for number, row in enumerate(table):
        if number:
            _reset(envs, seeds, begins == number)
        row = lent(row)  # the table is also the record of the running episodes
        action = row if env_device is None else torch.from_numpy(row).to(env_device)
        obs, reward, terminated, truncated, _ = envs.step(action)
        if number == len(table) - 1:
            memory.write(obs)
        counts = (begins <= number) & ~result.failed
        gained = as_array(reward).astype(np.float32)  # as whoever counted them got them
        result.returns = np.zeros(gained.shape) if result.returns is None else result.returns
        result.returns[counts] += gained[counts]
        done = as_array(terminated) | as_array(truncated)
        result.failed |= counts & done
        _leave_out(envs, seeds, done, is_done=True)
    late = begins == len(table)
    if len(table) and late.any():
        memory.write_rows(np.flatnonzero(late), take_rows(_reset(envs, seeds, late), np.flatnonzero(late)))
    return result


def differing(saved: list[Any], obs: Any) -> Mask:
    """Return which envs observe something else [N], in any bit, than these leaves say."""
    differs: Any = False
    for there, here in zip(saved, leaves(obs), strict=True):
        differs = differs | (_bits(there) != _bits(here)).any(1)
    return np.asarray(differs)


def _bits(leaf: Any) -> Array:
    rows = as_array(leaf)
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)


def _leave_out(envs: Any, seeds: list[int | None], mask: Mask, is_done: bool) -> None:
    """Keep envs from being stepped; where that cannot be, see to it that they can be."""
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
