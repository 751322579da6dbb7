"""Between a vector env and everything else: the only place that knows autoreset modes, seeds of episodes, dtypes."""

import contextlib
import copy
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from rltrainer.envs.adapter.action_history import ActionHistory
from rltrainer.envs.adapter.actions import ActionConverter, lent
from rltrainer.envs.adapter.autoreset import Autoreset, find_autoreset, layers
from rltrainer.envs.adapter.env_state import NO_ROWS, AdapterState, EnvState
from rltrainer.envs.adapter.episode_clock import EpisodeClock, Mask, Rows
from rltrainer.envs.adapter.episodes import EpisodeRecorder
from rltrainer.envs.adapter.observations import EnvStep, ObsMemory
from rltrainer.envs.backends.masked_resets import NO_TRANSITION, MaskedVectorEnv
from rltrainer.envs.checks import StepCheck, check_obs
from rltrainer.envs.vector_env import close_envs, env_named
from rltrainer.errors import EnvError, ParamsError
from rltrainer.seeding import derive_seed
from rltrainer.spaces import leaf_spaces
from rltrainer.state.stateful import Stateful
from rltrainer.tree import Tree, leaves, to_array
from rltrainer.validation.field_rules import AnyPath, checked


class EnvAdapter(Stateful[AdapterState]):
    """Steps any vector env so that every autoreset mode looks the same.

    ```
    adapter.reset()
    while ...:
        env_action = adapter.to_env(policy.act(adapter.obs_tensor))
        step = adapter.step(env_action)        # adapter.obs is still what was acted on
        buffer.add(adapter.obs, env_action, step.reward, step.next_obs, ...)
        adapter.advance()                      # adapter.obs is what to act on next
    ```

    If single envs can be reset (our backends, gymnasium's sync and async, autoreset mode DISABLED), a finished
    env is reset at once, by `reset(seed=[...], options={"reset_mask": mask})`, with a seed derived from env and
    episode, and no step is lost. Other envs reset themselves and are seeded as a whole, and so do envs in a layer with
    a `reset` of its own, unless it has `supports_masked_reset = True`.

    gymnasium's vector envs in mode SAME_STEP lose the final observation of an env that writes all its observations into
    one array. With the sync one, that is an `EnvError`; the async one cannot tell it from an env that ends where it
    starts, so there it is a warning. Use another mode.

    `envs` take and return numpy arrays or torch tensors, `device` is the policy's, and `to_env` is the
    `ActionConverter` that returns the env's action for a policy's action [N, ...].

    Raises:
        ParamsError: `envs` is no vector env.
        SpaceError: a space is not supported.
        EnvError: the autoreset mode is not one of gymnasium's, or a layer keeps it from being used.
    """

    history_class: ClassVar[type[ActionHistory]] = ActionHistory
    state_class, state_name = AdapterState, "adapter"

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], device: torch.device | str = "cpu") -> None:
        if not isinstance(envs, gym.vector.VectorEnv):
            rule, hint = "must be a gymnasium.vector.VectorEnv", "rltrainer.make_vec makes one."
            raise ParamsError.about("EnvAdapter", "envs", rule, envs, hint)
        self.envs, self.num_envs = envs, envs.num_envs
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        # torch.device("cuda") and the device of a tensor on it are not equal; this one is the tensor's.
        self.device = torch.empty(0, device=device).device
        self._space = leaf_spaces(self.observation_space)
        self.to_env = ActionConverter(self.action_space, self.num_envs)
        self._env_device: torch.device | None = None
        self._autoreset = Autoreset(envs, *find_autoreset(envs), self._check_obs)
        self.can_reset_one = self._autoreset.is_masked  # single envs, while the others continue
        self._env_state = EnvState(envs, self._autoreset.can_repeat, self.history_class(self.num_envs))
        self._history = self._env_state.history
        self._loaded: AdapterState | None = None  # what `resume` restores
        seed, first_env = (
            next((found for each in layers(envs) if (found := getattr(each, name, None)) is not None), None)
            for name in ("base_seed", "first_env")
        )
        self._clock = EpisodeClock(self.num_envs, seed, first_env or 0)
        self._has_explicit_seed = self._clock.seed is not None
        self._now: ObsMemory | None = None  # what is acted on, and what `step` returned
        self._next: ObsMemory
        self._result: EnvStep | None = None
        self._check_step = StepCheck(self._space, self.num_envs)
        self._must_check = not isinstance(envs, MaskedVectorEnv)  # ours check what each env returns
        self._starting: Rows | None = None  # the envs that start an episode with `advance`
        self._recorder: EpisodeRecorder | None = None
        self._has_truncated, self._key = False, object()

    def __deepcopy__(self, memo: dict[int, Any]) -> "EnvAdapter":
        """Copy the envs and where they are; raise an `EnvError` if that cannot be done, as in other processes."""
        new = memo[id(self)] = object.__new__(type(self))
        try:
            vars(new).update(copy.deepcopy(self.__getstate__(), memo))
        except Exception as error:
            hint = "Make a collector with envs of its own."
            raise EnvError(f"{self.envs} cannot be copied ({type(error).__name__}: {error}). {hint}") from error
        return new

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the recorder, which is of these envs alone."""
        return {**vars(self), "_recorder": None}

    @property
    def obs(self) -> Tree:
        """The observation to act on: tree [N, ...] of the env's arrays or tensors, floats float32, choices int64."""
        return self._now.obs  # type: ignore[union-attr]  # there is none before `reset`

    @property
    def obs_tensor(self) -> Tree:
        """The same as tensors [N, ...] on `device`; on the CPU in the memory of `obs`."""
        return self._now.tensor  # type: ignore[union-attr]  # there is none before `reset`

    @property
    def is_uploaded(self) -> bool:
        """Whether `obs_tensor` is memory on a GPU that arrays are copied to: the same tensors at each step."""
        return self._now is not None and self._now.packed is not None

    @property
    def resetting(self) -> Rows | None:
        """The envs that will spend the next step on their reset, whatever is done [K]; None if none will."""
        return self._autoreset.resetting

    @property
    def is_away(self) -> bool:
        """True if a state was loaded and the envs are not restored yet; see `resume`."""
        return self._loaded is not None

    @property
    def is_fresh(self) -> bool:
        """True if no step was taken since the last reset of all envs."""
        return self._now is not None and self._clock.num_steps == 0

    @property
    def is_current(self) -> bool:
        """True if no other adapter has reset these envs since this one did: they are still where it left them."""
        return getattr(self.envs.unwrapped, "rltrainer_last_reset_by", None) is self._key

    @property
    def num_obs_changes(self) -> int:
        """The changes in place of `obs_tensor` so far by a policy, where they would be stored."""
        is_known = self._now is not None and self._env_device is None
        return self._now.num_changes + self._next.num_changes if is_known else 0  # type: ignore[union-attr]  # known

    def seed(self, seed: int) -> None:
        """Set the root of the seeds of the next reset and episodes, unless `make_vec(seed=...)` gave one."""
        if not self._has_explicit_seed:
            self._clock.seed = seed

    def branch_seed(self, *path: str | int) -> None:
        """Take the stream of this name from a seed that `make_vec(seed=...)` gave, so that several can share it."""
        if self._clock.seed is not None and self._has_explicit_seed:
            self._clock.seed = derive_seed(self._clock.seed, *path)

    def reset(self, first_episode: bool = False) -> None:
        """Reset all envs, each to its next episode in which no step was taken, or to its very first."""
        self._clock.restart(first_episode)
        self._restart()

    @contextlib.contextmanager
    def aside(self, seed: int) -> Iterator[None]:
        """Step envs inside this context in episodes of this seed, which are not counted; a reset has to follow."""
        # Another clock: neither the numbers of the episodes nor their seeds change for the steps after this.
        clock, self._clock = self._clock, EpisodeClock(self.num_envs, seed, self._clock.first_env)
        recorder, self._recorder = self._recorder, None
        try:
            yield
        finally:
            self._clock, self._recorder = clock, recorder

    def record_episodes(self, folder: str | Path, first_env: int = 0) -> EpisodeRecorder:
        """Record episodes that end from now on into files of a folder; see `EpisodeRecorder`.

        A `ParamsError` if the envs' episodes cannot be repeated from seeds and actions.
        """
        # Only if an episode follows from its seed and actions can it be repeated.
        folder = Path(checked("Collector.record_episodes", "folder", folder, AnyPath))
        if self._history is None:
            rule = "must be False for envs whose episodes do not follow from their seeds and actions alone"
            hint = 'Use rl.make_vec(..., backend="sync"), and no SaveableEnv.'
            raise ParamsError.about("CheckpointParams", "record_episodes", rule, True, hint)
        self._recorder = EpisodeRecorder(folder, self._history, self._clock.first_env + first_env)
        return self._recorder

    def step(self, env_action: Any, max_episode_steps: int | None = None) -> EnvStep:
        """Step all envs with actions from `to_env`; `obs` stays the observation that was acted on until `advance`.

        An episode that gets as long as `max_episode_steps` is truncated. Before a `reset` this is an `EnvError`.
        """
        if self._now is None:
            raise EnvError("EnvAdapter.step: reset must be called first")
        if self._history is not None:  # before the clock counts this step
            self._history.add(env_action, self._clock)
        obs, reward, terminated, truncated, info = self.envs.step(lent(env_action))
        if self._must_check or self._result is None:
            self._check_step(obs, reward, terminated, truncated, info)
        result = self._result = self._result or EnvStep.like(reward, terminated, truncated)
        memory, autoreset = self._next, self._autoreset
        memory.write(obs)  # with the next step, envs may overwrite everything that they returned
        result.next_obs, result.valid = memory.obs, None
        result.reward[...], result.terminated[...], result.truncated[...] = reward, terminated, truncated
        if autoreset.resetting is not None:  # the results of the step that these envs spent on their reset
            result.void(autoreset.resetting)
        if NO_TRANSITION in info:
            result.valid = ~info[NO_TRANSITION]
        done = to_array(result.terminated | result.truncated)
        self._clock.num_steps += 1
        finished = result.finished = np.flatnonzero(done) if np.count_nonzero(done) else None
        if finished is not None:
            autoreset.finish(finished, info, memory)
            self._count_end(finished, autoreset.delay)
        self._starting = autoreset.starting(finished)
        if max_episode_steps is not None:
            self._truncate(result, max_episode_steps)
        return result

    def advance(self, wanted: Mask | None = None) -> Rows | None:
        """Make the successors the current observations; where an episode ended, the first of the next one.

        `wanted` [N] bool are the envs that start another episode; None: all. Return the envs [K] that take the first
        step of an episode next; None if there are none. Before a `reset` this is an `EnvError`.
        """
        if self._now is None:
            raise EnvError("EnvAdapter.advance: reset must be called first")
        self._now, self._next = self._next, self._now
        starting, self._starting = self._starting, None
        if starting is not None:
            if wanted is not None:
                unwanted = starting[~wanted[starting]]
                self._clock.leave(unwanted)
                # Unwanted envs stay at their end until the next `reset`, if they are ours or no env is wanted; else
                # they take steps that are not counted, as a step moves all envs.
                if not wanted.any():
                    starting = NO_ROWS
                elif isinstance(self.envs.unwrapped, MaskedVectorEnv):
                    self.envs.unwrapped.park(unwanted)
                    starting = starting[wanted[starting]]
            if len(starting):
                self._autoreset.begin(starting, self._clock, self._now)
        if not self._now.shares:
            self._now.upload()
        return starting

    def moved(self, obs: Tree, num_rows: int, ended: tuple[Rows, Rows]) -> None:
        """Note rows that envs of tensors took by themselves, the observations after them, and where episodes ended.

        `ended` are rows [E] and envs [E] in the order of time.
        """
        rows, envs = ended
        self._clock.skip(num_rows, rows, envs)
        if self._now is not None:
            self._now.write_rows(..., obs)

    def get_state(self, continues: bool = True) -> AdapterState:
        """Return where each env is, what restores it, and the root of the seeds."""
        # If the run does not continue these episodes, only their numbers matter.
        if self._loaded is not None and continues:
            return self._loaded
        clock = self._clock.state()
        if self._autoreset.is_masked:
            # Only envs that are reset as a whole depend on these; without them, equal places have equal states.
            clock.num_steps, clock.num_resets = max(clock.episode_step), 0
        state = AdapterState(continues and self._now is not None, clock)
        if state.is_started and clock.num_steps:
            self._env_state.save(state, self.obs, self.resetting)
        return state

    def check_state(self, state: AdapterState) -> None:
        """Raise a `CheckpointError` if it is of other envs; warn of envs that will start a new episode."""
        state.check(self.num_envs, self._space, self.action_space)
        self._env_state.check(state, self._autoreset.is_masked)

    def set_state(self, state: AdapterState) -> None:
        """Take over seeds and episodes; `resume` then restores the envs."""
        self._clock.load(state.clock, np.array(state.resetting, np.int64))
        self._now, self._loaded = None, state if state.is_started else None
        lost = self._env_state.lost(state, self._autoreset.is_masked)
        if self._autoreset.is_masked:
            self._clock.finish(lost, delay=0)
        elif len(lost):
            self._clock.restart()

    @env_named(num_steps=None)
    def resume(self, returns: Any = None) -> Rows:
        """Restore the envs of a loaded state; return the envs [K] that start a new episode instead, with a warning.

        These come to another observation, or to other `returns` of the running episode [N] or [N, A].
        """
        if (state := self._loaded) is None:
            return NO_ROWS
        memory = self._restart()
        lost = self._env_state.lost(state, self._autoreset.is_masked)
        failed = self._env_state.restore(state, self._clock, memory, self._env_device, returns)
        if len(failed):
            self._clock.finish(failed, delay=0)
            self._autoreset.begin(failed, self._clock, memory)
        if state.resetting and not len(lost):
            self._autoreset.resetting = np.array(state.resetting, np.int64)
        memory.upload()
        return np.union1d(lost, failed)

    def close(self) -> None:
        """Close the envs; never raises."""
        close_envs(self.envs)

    def _restart(self) -> ObsMemory:
        """Reset all envs, with the seeds of the episodes where the clock is; return their memory."""
        obs = self._autoreset.reset(self._clock)
        inner: Any = self.envs.unwrapped
        inner.rltrainer_last_reset_by = self._key  # other adapters of these envs have to reset them again
        if (memory := self._now) is None:
            first = leaves(obs)[0]
            self._env_device = first.device if isinstance(first, torch.Tensor) else None
            self.to_env = ActionConverter(self.action_space, self.num_envs, self._env_device)
            layout = (self._space, self.num_envs, self.device, self._env_device)
            memory = ObsMemory.allocate(*layout)
            self._next = ObsMemory.allocate(*layout, memory)
        memory.write(obs)
        memory.upload()
        self._now, self._starting, self._loaded = memory, None, None
        return memory

    def _check_obs(self, obs: Tree) -> None:
        """Check the observations of all envs after a reset; later ones of our envs are checked by the envs."""
        if self._must_check or self._now is None:
            check_obs("vector env obs", self._space, obs, (self.num_envs,))

    def _count_end(self, rows: Rows, delay: int) -> None:
        """Count the episodes of these envs [K], and record them; the next ones start so many steps from now."""
        if self._recorder is not None and self._result is not None:
            self._recorder.record(rows, self._clock, self._result)
        self._clock.finish(rows, delay)

    def _truncate(self, result: EnvStep, max_steps: int) -> None:
        """Truncate episodes that reach `max_steps`, as a time limit in the env would."""
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
        if self._autoreset.is_masked:  # other envs take steps that are not counted
            self._starting = rows if self._starting is None else np.union1d(self._starting, rows)
