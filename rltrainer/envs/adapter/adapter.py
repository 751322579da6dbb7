"""Between a vector env and everything else: the only place that knows autoreset modes, seeds of episodes, dtypes."""

import contextlib
import copy
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import gymnasium as gym
import numpy as np
import torch

from rltrainer.envs.adapter.action_history import ActionTrail, as_array
from rltrainer.envs.adapter.actions import ActionConverter, lent
from rltrainer.envs.adapter.autoreset import find_autoreset, layers
from rltrainer.envs.adapter.env_state import NO_ROWS, AdapterState, EnvPlaces, Place
from rltrainer.envs.adapter.episode_clock import EpisodeClock, Mask, Rows
from rltrainer.envs.adapter.episodes import EpisodeRecorder
from rltrainer.envs.adapter.observations import EnvStep, ObsMemory, take_rows
from rltrainer.envs.backends.masked_resets import NO_TRANSITION, MaskedVectorEnv
from rltrainer.envs.checks import StepCheck, check_obs
from rltrainer.envs.vector_env import env_named
from rltrainer.envs.workers.child import GRACE
from rltrainer.errors import EnvError, ParamsError, field_error_text
from rltrainer.seeding import derive_seed
from rltrainer.spaces import leaf_spaces
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.tree import Tree, leaves, map_tree
from rltrainer.types import Load, State

_LAST_RESET_BY: WeakKeyDictionary[Any, list[object]] = WeakKeyDictionary()
"""The adapter that was the last to reset each vector env: a list of its key, which all adapters of the env share."""


class EnvAdapter:
    """Steps any vector env so that every autoreset mode looks the same.

    ```
    adapter.reset()
    while ...:
        env_action = adapter.to_env(policy.act(adapter.obs_tensor))
        step = adapter.step(env_action)        # adapter.obs is still what was acted on
        buffer.add(adapter.obs, env_action, step.reward, step.next_obs, ...)
        adapter.advance()                      # adapter.obs is what to act on next
    ```

    Where single envs can be reset (our backends, gymnasium's sync and async, autoreset mode DISABLED), a finished
    env is reset at once, by `reset(seed=[...], options={"reset_mask": mask})`, with a seed derived from env and
    episode, and no cell is lost. Other envs reset themselves and are seeded as a whole.

    gymnasium's sync env in mode SAME_STEP hands out a reference to the final observation and then resets the env: an
    env that writes all its observations into one array destroys it. Use another mode for such an env.

    Args:
        envs: the vector env; numpy arrays or torch tensors.
        device: where the policy is.

    Attributes:
        obs: tree [N, ...], the observation to act on: the env's arrays or tensors, floats as float32, choices as
            int64, in memory of the adapter's own.
        obs_tensor: the same as tensors on `device`; on the CPU in the same memory.
        to_env: returns what the env receives for a policy's action [N, ...]: an `ActionConverter`.
        resetting: the envs that will spend the next step on their reset, whatever is done [K]; None if none will.

    Raises:
        ParamsError: `envs` is no vector env.
        SpaceError: a space is not supported.
        EnvError: the autoreset mode is not one of gymnasium's.
    """

    trail_class: ClassVar[type[ActionTrail]] = ActionTrail
    obs: Tree
    obs_tensor: Tree

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], device: torch.device | str = "cpu") -> None:
        if not isinstance(envs, gym.vector.VectorEnv):
            rule, hint = "must be a gymnasium.vector.VectorEnv", "rltrainer.make_vec makes one."
            raise ParamsError(field_error_text("EnvAdapter", "envs", rule, envs, hint))
        self.envs, self.num_envs = envs, envs.num_envs
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        # torch.device("cuda") and the device of a tensor on it are not equal; this one is the tensor's.
        self.device = torch.empty(0, device=device).device
        self._space = leaf_spaces(self.observation_space)
        self.to_env = ActionConverter(self.action_space, self.num_envs)
        self._autoreset = find_autoreset(envs)
        self._places = EnvPlaces(envs, self._autoreset.can_repeat, self.trail_class(self.num_envs))
        self._trail = self._places.trail
        seeds = (getattr(layer, "base_seed", None) for layer in layers(envs))
        explicit_seed = next((seed for seed in seeds if seed is not None), None)
        self._has_explicit_seed = explicit_seed is not None
        self._clock = EpisodeClock(self.num_envs, explicit_seed)
        self._env_device: torch.device | None = None
        self._now: ObsMemory | None = None
        self._next: ObsMemory
        self._result: EnvStep | None = None
        self._check_step = StepCheck(self._space, self.num_envs)
        self._must_look = not isinstance(envs, MaskedVectorEnv)  # ours look at what each env returns
        self.resetting: Rows | None = None
        self._starting: Rows | None = None  # the envs whose next episode begins with `advance`
        self._first_obs: Tree = None
        self._loaded: Place | None = None  # where `resume` will bring the envs
        self._recorder: EpisodeRecorder | None = None
        self._has_truncated, self._key = False, object()
        self._last_reset_by = _LAST_RESET_BY.setdefault(envs.unwrapped, [None])

    def __deepcopy__(self, memo: dict[int, Any]) -> "EnvAdapter":
        """Copy the envs and where they are; raise an `EnvError` for envs like those that live in other processes."""
        new = memo[id(self)] = object.__new__(type(self))
        try:
            new.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        except Exception as error:
            hint = "Make a collector with envs of its own."
            raise EnvError(f"{self.envs} cannot be copied ({type(error).__name__}: {error}). {hint}") from error
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Leave out `obs` and `obs_tensor`, which are the memory's, and the record, which is of these envs alone."""
        state = {name: value for name, value in vars(self).items() if name not in ("obs", "obs_tensor")}
        return state | {"_recorder": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Share the memory and take the views anew; other adapters of a copied env ask for the list of the copy."""
        vars(self).update(state)
        self._last_reset_by = _LAST_RESET_BY.setdefault(self.envs.unwrapped, self._last_reset_by)
        if self._now is not None:
            for memory in (self._now, self._next):
                memory.tensor = map_tree(torch.as_tensor, memory.obs) if memory.shares else memory.tensor
            self.obs, self.obs_tensor = self._now.obs, self._now.tensor

    def seed(self, seed: int) -> None:
        """Set what the seeds of the next reset and episodes derive from, unless `make_vec(seed=...)` said it."""
        if not self._has_explicit_seed:
            self._clock.seed = seed

    def branch_seed(self, *path: str | int) -> None:
        """Let a seed that `make_vec(seed=...)` said be the root of several streams, and take this one."""
        if self._clock.seed is not None and self._has_explicit_seed:
            self._clock.seed = derive_seed(self._clock.seed, *path)

    def reset(self, first_episode: bool = False) -> None:
        """Start all envs anew, each with its next episode that nobody stepped in, or with its very first."""
        self._clock.restart(first_episode)
        self._restart()

    @contextlib.contextmanager
    def aside(self, seed: int) -> Iterator[None]:
        """Let envs be stepped inside in episodes seeded by `seed`, which nobody counts; a reset has to follow."""
        clock, self._clock = self._clock, EpisodeClock(self.num_envs, seed)
        recorder, self._recorder = self._recorder, None
        try:
            yield
        finally:
            self._clock, self._recorder = clock, recorder

    def record_episodes(self, folder: str | Path, first_env: int = 0) -> EpisodeRecorder:
        """Record all episodes that end from now on; see `EnvPlaces.record`."""
        self._recorder = self._places.record(folder, first_env)
        return self._recorder

    @property
    def is_away(self) -> bool:
        """Tell whether a state was loaded, and the envs are not there yet: `resume` brings them."""
        return self._loaded is not None

    @property
    def is_fresh(self) -> bool:
        """Tell whether all envs are where the last reset put them."""
        return self._now is not None and self._clock.num_steps == 0

    @property
    def can_reset_one(self) -> bool:
        """Tell whether single envs can be reset while the others go on."""
        return self._autoreset.is_masked

    @property
    def is_current(self) -> bool:
        """Tell whether no other adapter has reset these envs since this one did: they are still where it left them."""
        return self._last_reset_by[0] is self._key

    @property
    def num_obs_changes(self) -> int:
        """The changes in place of `obs_tensor` so far by whoever was given it, where they would be stored."""
        is_known = self._now is not None and self._env_device is None
        return self._now.num_changes + self._next.num_changes if is_known else 0  # type: ignore[union-attr]  # known

    def step(self, env_action: Any, max_episode_steps: int | None = None) -> EnvStep:
        """Step all envs with what `to_env` returned; `obs` keeps what was acted on until `advance`.

        An episode that gets as long as `max_episode_steps` is truncated.

        Raises:
            SpaceError: what the vector env returns does not fit its spaces.
            EnvError: `reset` was not called, or the final observation of an episode is missing.
        """
        if self._now is None:
            raise EnvError("EnvAdapter.step: reset must be called first")
        if self._trail is not None:
            self._trail.add(env_action, self._clock)
        obs, reward, terminated, truncated, info = self.envs.step(lent(env_action))
        if self._must_look or self._result is None:
            self._check_step(obs, reward, terminated, truncated)
        result = self._result = self._result or EnvStep.like(reward, terminated, truncated)
        memory = self._next
        memory.write(obs)
        result.next_obs = memory.obs
        result.reward[...], result.terminated[...], result.truncated[...] = reward, terminated, truncated
        reset_rows, result.valid = self.resetting, None
        if reset_rows is not None:
            result.void(reset_rows)
        if NO_TRANSITION in info:
            result.valid = ~info[NO_TRANSITION]
        done = as_array(result.terminated | result.truncated)
        self._clock.num_steps += 1
        finished = result.finished = np.flatnonzero(done) if np.count_nonzero(done) else None
        if finished is not None:
            self._finish(finished, info)
        if self._autoreset.spends_step:
            self._starting, self.resetting = reset_rows, finished
        else:
            self._starting = finished
        if max_episode_steps is not None:
            self._truncate(result, max_episode_steps)
        return result

    def advance(self, wanted: Mask | None = None) -> Rows | None:
        """Make the successors the current observations; where an episode ended, the first of the next one.

        Args:
            wanted: [N] bool, which envs shall begin another episode; None: all. The others stay at their end until the
                next `reset`, if they are ours or there is nothing more to step for; else they go on uncounted.

        Returns:
            the envs whose next step is the first of an episode [K]; None if it is no one's.
        """
        if self._now is None:
            raise EnvError("EnvAdapter.advance: reset must be called first")
        self._now, self._next = self._next, self._now
        self.obs, self.obs_tensor = self._now.obs, self._now.tensor
        starting, self._starting = self._starting, None
        if starting is not None:
            starting = starting if wanted is None else self._leave_unwanted(starting, wanted)
            if len(starting):
                self._begin(self._now, starting)
        if not self._now.shares:
            self._now.upload()
        return starting

    def state_dict(self, goes_on: bool = True) -> State:
        """Return where each env is, what brings it there, and what the seeds derive from.

        Args:
            goes_on: False if all envs will start anew: then only the numbers of their episodes matter.
        """
        if self._loaded is not None and goes_on:
            return dict(to_state(self._loaded.state))
        clock = self._clock.state()
        if self._autoreset.is_masked:
            # Only envs that are reset as a whole depend on these; without them, equal places have equal states.
            clock.num_steps, clock.num_resets = max(clock.episode_step), 0
        state = AdapterState(goes_on and self._now is not None, clock)
        if state.is_started and clock.num_steps:
            self._places.save(state, self.obs, self.resetting)
        return dict(to_state(state))

    def load_state_dict(self, state: State) -> None:
        """Do what `prepare_load` prepares."""
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check a whole state, and return what goes to where each env was; `resume` then brings the envs there.

        An env that cannot be brought there starts a new episode, with a warning.

        Raises:
            CheckpointError: the state is of other envs, or none.
        """
        found, is_masked = from_state(AdapterState, state, "adapter"), self._autoreset.is_masked
        found.check(self.num_envs, self._space, self.action_space)
        place = self._places.check(found, is_masked)

        def load() -> None:
            self._clock.load(found.clock, np.array(found.resetting, np.int64))
            self._now, self._loaded = None, place if found.is_started else None
            if is_masked:
                self._clock.finish(place.lost, delay=0)
            elif len(place.lost):
                self._clock.restart()

        return load

    @env_named(num_steps=None)
    def resume(self, returns: Any = None) -> Rows:
        """Bring the envs to where a loaded state has put them; return those that start a new episode instead [K].

        Args:
            returns: what the running episodes have brought so far [N] or [N, A]; an env that does not come to them, or
                to the observation of then, starts a new episode, with a warning. None is not compared.
        """
        if (place := self._loaded) is None:
            return NO_ROWS
        memory = self._restart()
        failed = self._places.bring(place, self._clock, memory, self._env_device, returns)
        if len(failed):
            self._clock.finish(failed, delay=0)
            self._begin(memory, failed)
        if place.load is not None and place.state.resetting:
            self.resetting = np.array(place.state.resetting, np.int64)
        memory.upload()
        return np.union1d(place.lost, failed)

    def close(self) -> None:
        """Close the envs; never raises."""
        close_envs(self.envs)

    def _restart(self) -> ObsMemory:
        """Reset all envs, with the seeds of the episodes where the clock is; return the memory of where they are."""
        is_masked = self._autoreset.is_masked
        seeds: Any = self._clock.episode_seeds(np.arange(self.num_envs)) if is_masked else self._clock.reset_seed()
        obs, _ = self.envs.reset(seed=seeds)
        self._last_reset_by[0] = self._key
        check_obs("vector env obs", self._space, obs, (self.num_envs,))
        memory = self._now or self._allocate(obs)
        memory.write(obs)
        memory.upload()
        self._now, self.obs, self.obs_tensor = memory, memory.obs, memory.tensor
        self._starting, self._loaded = None, None
        if not is_masked:
            self.resetting = None
        elif self.resetting is not None:
            # These will spend the next step on the reset that was due, and begin this episode once more after it.
            self._clock.postpone(self.resetting)
        return memory

    def _allocate(self, obs: Tree) -> ObsMemory:
        first = leaves(obs)[0]
        self._env_device = first.device if isinstance(first, torch.Tensor) else None
        self.to_env = ActionConverter(self.action_space, self.num_envs, self._env_device)
        layout = (self._space, self.num_envs, self.device, self._env_device)
        self._next = ObsMemory.allocate(*layout)
        return ObsMemory.allocate(*layout)

    def _finish(self, rows: Rows, info: dict[str, Any]) -> None:
        """Count the episodes that ended; put their final observations where the next episodes' first ones came."""
        if self._autoreset.has_final_info and not self._autoreset.is_masked:
            self._first_obs = take_rows(self._next.obs, rows)
        for n in rows.tolist() if self._autoreset.has_final_info else ():
            row = map_tree(lambda leaf, n=n: leaf[n], info["final_obs"]) if "final_obs" in info else None
            if row is None:
                raise EnvError(f'env {n} ended its episode, but info["final_obs"] holds no final observation of it')
            self._next.write_row(n, row)
        self._count_end(rows, delay=int(self._autoreset.spends_step))

    def _count_end(self, rows: Rows, delay: int) -> None:
        """Count the episodes of these envs [K], and record them; the next ones begin so many steps from now."""
        if self._recorder is not None and self._result is not None:
            self._recorder.record(rows, self._clock, self._result)
        self._clock.finish(rows, delay)

    def _truncate(self, result: EnvStep, max_steps: int) -> None:
        """End the episodes that are as long as they may be, as a time limit in the env would."""
        rows = np.flatnonzero(self._clock.episode_steps >= max_steps)
        if not len(rows):
            return
        if not self._has_truncated:
            self._has_truncated = True
            text = "env %d: its episode was truncated after %d steps (max_episode_steps); later ones are not named"
            logging.getLogger("rltrainer").warning(text, rows[0], max_steps)
        result.truncated[rows.tolist()] = True
        result.finished = rows if result.finished is None else np.union1d(result.finished, rows)
        self._count_end(rows, delay=0)
        if self._autoreset.is_masked:  # else the envs go on; nobody counts them
            self._starting = rows if self._starting is None else np.union1d(self._starting, rows)

    def _leave_unwanted(self, rows: Rows, wanted: Mask) -> Rows:
        """Leave the envs whose episode ended and that shall begin no other; return those that must begin the next."""
        unwanted = rows[~wanted[rows]]
        self._clock.leave(unwanted)
        if not wanted.any():
            return rows[:0]
        if not isinstance(self.envs.unwrapped, MaskedVectorEnv):
            return rows  # a step steps all of them
        self.envs.unwrapped.park(unwanted)
        return rows[wanted[rows]]

    def _begin(self, memory: ObsMemory, rows: Rows) -> None:
        """Write the first observations of the episodes that begin now."""
        if self._autoreset.is_masked:
            mask = np.zeros(self.num_envs, np.bool_)
            mask[rows] = True
            seeds: Any = self._clock.episode_seeds(rows)
            obs, _ = self.envs.reset(seed=seeds, options={"reset_mask": mask})
            if self._must_look:
                check_obs("vector env obs", self._space, obs, (self.num_envs,))
            memory.write_rows(rows, take_rows(obs, rows))
        elif self._autoreset.has_final_info:
            memory.write_rows(rows, self._first_obs)


def close_envs(envs: gym.vector.VectorEnv[Any, Any, Any]) -> None:
    """Close a vector env; never raises, and waits for gymnasium's worker processes five seconds at most.

    gymnasium itself waits for them without an end, and leaves them where one of them is dead.
    """
    inner = envs.unwrapped
    processes = inner.processes if isinstance(inner, gym.vector.AsyncVectorEnv) else []
    timer = threading.Timer(GRACE, _kill, (processes,))
    if processes:
        timer.start()
    try:
        envs.close()
    except (Exception, SystemExit) as error:
        logging.getLogger("rltrainer").warning("the vector env failed during close: %r", error)
    finally:
        timer.cancel()
        _kill(processes)
        for process in processes:
            process.join(1.0)
        if processes:
            inner.closed = True  # where it failed half-way, it would try again when it is collected


def _kill(processes: list[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
