"""The state of envs within their episodes: how it is saved, and how envs are restored from it."""

import warnings
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.envs.adapter.action_history import MAX_STEPS, ActionHistory
from rltrainer.envs.adapter.actions import lent
from rltrainer.envs.adapter.autoreset import VectorEnv, layers
from rltrainer.envs.adapter.episode_clock import ClockState, EpisodeClock, Mask, Rows
from rltrainer.envs.adapter.observations import ObsMemory, take_rows
from rltrainer.envs.backends.masked_resets import MaskedVectorEnv, SaveableEnv
from rltrainer.envs.backends.native import NativeVectorEnv
from rltrainer.errors import CheckpointError
from rltrainer.spaces import Array, ValueRange, leaf_shape, numpy_dtype
from rltrainer.state.stateful import Stateful
from rltrainer.tree import Tree, leaves, rebuild, to_array
from rltrainer.validation.field_rules import NonNegativeInt

NO_ROWS: Rows = np.zeros(0, np.int64)


@dataclass
class AdapterState:
    """State of an `EnvAdapter`; the last four fields are empty where no env is in the middle of an episode."""

    is_started: bool
    clock: ClockState
    resetting: list[NonNegativeInt] = field(default_factory=list)  # the envs that spend the next step on their reset
    obs: list[Array] | None = None  # the leaves of the current observation [N, ...]
    actions: Array | None = None  # of the running episodes [sum of their steps, ...], one env after the other
    envs: dict[str, Any] | None = None  # the envs' own state, instead of actions

    @property
    def num_steps(self) -> Rows:
        """The steps of the running episodes [N]."""
        return np.array(self.clock.episode_step, np.int64)

    @property
    def num_kept(self) -> Rows:
        """The number of actions of each env [N]; the actions of too long episodes are not kept."""
        return np.where(self.num_steps <= MAX_STEPS, self.num_steps, 0)

    def check(self, num_envs: int, obs_space: Tree, action_space: gym.Space[Any]) -> None:
        """Raise a `CheckpointError` if it is of other envs, in number or in observations [N, ...]."""
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
                check_array(f"adapter.obs.{i}", leaf, (num_envs, *leaf_shape(space)), numpy_dtype(space))
        if self.actions is not None:
            shape = (int(self.num_kept.sum()), *leaf_shape(action_space))
            check_array("adapter.actions", self.actions, shape, action_space.dtype)
            if not ValueRange(action_space).holds(self.actions):
                raise CheckpointError(f"adapter.actions: expected actions in {action_space}, found others")


# Envs that save their own state load it. Other envs start the episodes of their seeds again, and are stepped with the
# actions that were kept; the observations at the end are compared with the saved ones, bit for bit.
class EnvState:
    """Saves where the envs of a vector env are, and restores them."""

    def __init__(self, envs: VectorEnv, can_repeat: bool, history: ActionHistory) -> None:
        self._envs, self._can_repeat = envs, can_repeat  # `can_repeat`: an episode follows from its seed and actions
        self._saver = find_saver(envs)
        # None where the envs save their own state, or cannot be restored.
        self.history = history if can_repeat and self._saver is None else None

    def save(self, state: AdapterState, obs: Tree, resetting: Rows | None) -> None:
        """Add to a state what restores the envs, at observations `obs` [N, ...]; the envs `resetting` [K] are reset."""
        if self._saver is not None:
            state.envs = self._saver.state_dict()
            state.resetting = [] if resetting is None else resetting.tolist()
        elif self.history is not None:
            counts = enumerate(state.num_kept.tolist())
            state.actions = np.concatenate([self.history.of(n, count) for n, count in counts])
        if state.envs is not None or state.actions is not None:
            state.obs = [to_array(leaf).copy() for leaf in leaves(obs)]

    def check(self, state: AdapterState, is_masked: bool) -> None:
        """Check the envs' own state, and warn of envs that cannot be restored; `is_masked`: each by itself."""
        if state.envs is not None and isinstance(self._saver, Stateful):
            self._saver.prepare_load(state.envs)
        elif len(lost := self.lost(state, is_masked)):
            why = "were in the middle of an episode, and what led there is not in the state"
            if state.actions is not None and self._can_repeat:
                why = f"were more than {MAX_STEPS} steps into their episode"
            why = why if is_masked else "cannot be reset one by one, and do not save where they are (SaveableEnv)"
            _warn_of_lost(lost, why)

    def lost(self, state: AdapterState, is_masked: bool) -> Rows:
        """Return the envs that cannot be restored from a state, and start a new episode [K]."""
        if not state.is_started or (state.envs is not None and self._saver is not None):
            return NO_ROWS
        inside = state.num_steps > 0 if is_masked else np.full(len(state.num_steps), state.clock.num_steps > 0)
        repeats = state.actions is not None and self._can_repeat
        return np.flatnonzero(inside & (state.num_kept == 0) if repeats else inside)

    def restore(
        self, state: AdapterState, clock: EpisodeClock, memory: ObsMemory, device: torch.device | None, returns: Any
    ) -> Rows:
        """Restore envs, which were just reset; return the failed ones [K]. A `CheckpointError` if a load fails."""
        # The restored observations go to `memory`. `device` is of envs that take tensors; `returns` are the running
        # episodes' [N] or [N, A], None is not compared.
        if state.envs is not None and self._saver is not None:
            try:
                self._saver.load_state_dict(state.envs)
            except Exception as error:
                if isinstance(self._saver, Stateful):  # its state was checked, and its envs are named
                    raise
                name = f"{type(self._saver).__name__}.load_state_dict"
                raise CheckpointError(f"adapter.envs: {name} raised {type(error).__name__}: {error}") from error
            memory.write(rebuild(memory.obs, state.obs or []))
            return NO_ROWS
        if state.actions is None or not self._can_repeat:
            return NO_ROWS
        num_steps = state.num_kept
        # A table [L, N, ...] in which all episodes end together; before them are another env's actions.
        each = np.split(state.actions, np.cumsum(num_steps)[:-1])
        table = np.repeat(each[int(num_steps.argmax())][:, None], len(each), 1)
        for env, actions in enumerate(each):
            table[len(table) - len(actions) :, env] = actions
        seeds = clock.episode_seeds(np.arange(len(num_steps)))
        has_failed, gained = repeat_episodes(self._envs, seeds, table, num_steps, memory, device)
        if self.history is not None:
            self.history.restore(table, num_steps)
        for there, here in zip(state.obs or [], leaves(memory.obs), strict=True):
            has_failed |= (_bits(there) != _bits(here)).any(1)
        # Equal observations are not enough: an env may differ in what it hides, and the returns show that.
        if returns is not None and gained is not None:
            is_same = gained == returns if gained.shape == returns.shape else np.zeros(len(has_failed))
            has_failed |= ~is_same.reshape(len(has_failed), -1).astype(np.bool_).all(1)
        failed = np.flatnonzero(has_failed & (num_steps > 0))
        if len(failed):
            why = "did not come back to where they were when the actions of their episode were repeated"
            _warn_of_lost(failed, why)
        return failed


CARTPOLE = "gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv"


def find_saver(envs: VectorEnv) -> SaveableEnv | None:
    """Return what saves all envs of a vector env, wrappers included; None if a part of them is not saved."""
    for layer in layers(envs):
        if isinstance(layer, SaveableEnv):
            return layer
        if isinstance(layer, MaskedVectorEnv):
            return _SingleEnvs(layer) if layer.are_saveable else None
        # The attributes of this native vector env alone are saved here, as they are in gymnasium 1.4.
        if f"{type(layer).__module__}.{type(layer).__qualname__}" == CARTPOLE:
            return _CartPole(layer)
        # An unknown wrapper may have a state of its own, which would be lost.
        if not (isinstance(layer, NativeVectorEnv) or getattr(layer, "is_stateless", False)):
            return None
    return None


@dataclass
class SingleStates:
    """The states of single envs [N]."""

    envs: list[dict[str, Any]]


class _SingleEnvs(Stateful[SingleStates]):
    """Single envs, each of which is a `SaveableEnv`."""

    state_class, state_name = SingleStates, "adapter.envs"

    def __init__(self, envs: MaskedVectorEnv) -> None:
        self._envs = envs

    def get_state(self) -> SingleStates:
        return SingleStates(list(self._envs.call("state_dict")))

    def check_state(self, state: SingleStates) -> None:
        if len(state.envs) != self._envs.num_envs:
            raise CheckpointError(f"adapter.envs.envs: expected a list of the states of {self._envs.num_envs} envs")

    def set_state(self, state: SingleStates) -> None:
        self._envs.load_states(state.envs)


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
        return {"bit_generator": "PCG64", "state": words, "has_uint32": self.has_uint32, "uinteger": self.uinteger}


@dataclass
class CartPoleState:
    """State of a `CartPoleVectorEnv`: arrays [4, N], [N] and [N]."""

    state: Array
    steps: Array
    prev_done: Array
    random: PCG64State


class _CartPole(Stateful[CartPoleState]):
    """The attributes of gymnasium's `CartPoleVectorEnv`."""

    state_class, state_name = CartPoleState, "adapter.envs"

    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def get_state(self) -> CartPoleState:
        random, envs = self._envs.np_random.bit_generator.state, self._envs
        words = str(random["state"]["state"]), str(random["state"]["inc"])
        generator = PCG64State(*words, random["has_uint32"], random["uinteger"])
        return CartPoleState(envs.state.copy(), envs.steps.copy(), envs.prev_done.copy(), generator)

    def check_state(self, state: CartPoleState) -> None:
        n = self._envs.num_envs
        check_array("adapter.envs.state", state.state, (4, n), np.float64)
        check_array("adapter.envs.steps", state.steps, (n,), np.int32)
        check_array("adapter.envs.prev_done", state.prev_done, (n,), np.bool_)

    def set_state(self, state: CartPoleState) -> None:
        envs = self._envs
        envs.state, envs.steps, envs.prev_done = state.state.copy(), state.steps.copy(), state.prev_done.copy()
        envs.np_random.bit_generator.state = state.random.words()


def repeat_episodes(
    envs: Any, seeds: list[int | None], table: Any, num_steps: Rows, memory: ObsMemory, device: torch.device | None
) -> tuple[Mask, Array | None]:
    """Step envs that were just reset with actions of a table [L, N, ...]; write the last observations to `memory`."""
    # Returned are the envs that ended their episode on the way [N] bool, and sums of rewards [N] or [N, A], or None.

    def begin(mask: Mask) -> Tree:
        due = [seed if mask[n] else None for n, seed in enumerate(seeds)]
        return envs.reset(seed=due, options={"reset_mask": mask})[0]

    # An env with a shorter episode than others starts it later, with a reset of its own. Before that, and when its
    # episode has ended too early, it is parked, or takes steps that do not count.
    begins, has_failed = len(table) - num_steps, np.zeros(envs.num_envs, np.bool_)
    can_park, returns = isinstance(envs.unwrapped, MaskedVectorEnv), None
    if can_park:
        envs.unwrapped.park(np.flatnonzero(begins > 0))
    for number, row in enumerate(table):
        if number and (begins == number).any():
            begin(begins == number)
        row = lent(row)  # the table is also the history of the running episodes
        obs, reward, terminated, truncated, _ = envs.step(row if device is None else torch.from_numpy(row).to(device))
        if number == len(table) - 1:
            memory.write(obs)
        counts = (begins <= number) & ~has_failed
        gained = to_array(reward).astype(np.float32)  # as the collector counted them
        returns = np.zeros(gained.shape) if returns is None else returns
        returns[counts] += gained[counts]
        done = to_array(terminated) | to_array(truncated)
        has_failed |= counts & done
        if can_park:
            envs.unwrapped.park(np.flatnonzero(done))
        elif done.any():
            begin(done)
    late = begins == len(table)
    if len(table) and late.any():
        memory.write_rows(np.flatnonzero(late), take_rows(begin(late), np.flatnonzero(late)))
    return has_failed, returns


def _bits(leaf: Any) -> Array:
    # Bytes, not numbers: -0.0 equals 0.0, and NaN does not equal itself.
    rows = to_array(leaf)
    return np.ascontiguousarray(rows).reshape(len(rows), -1).view(np.uint8)


def _warn_of_lost(rows: Rows, why: str) -> None:
    warnings.warn(f"envs {rows.tolist()} {why}: they start a new episode instead of continuing", stacklevel=5)


def check_array(name: str, found: Array, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise a `CheckpointError` unless an array [*shape] has this shape and dtype, and holds finite numbers."""
    if found.shape != shape or found.dtype != dtype:
        raise CheckpointError(f"{name}: expected {np.dtype(dtype)} {shape}, found {found.dtype} {found.shape}")
    if not np.isfinite(found).all():
        raise CheckpointError(f"{name}: holds NaN or infinity")
