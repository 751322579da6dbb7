"""Recorded episodes: their seeds and actions in files of a folder, and one of them stepped through again."""

import copy
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np

from rltrainer.envs.adapter.action_history import MAX_STEPS, ActionHistory
from rltrainer.envs.adapter.episode_clock import EpisodeClock, Rows
from rltrainer.envs.adapter.observations import EnvStep
from rltrainer.errors import CheckpointError, EnvError, ParamsError, readable
from rltrainer.spaces import Array, ValueRange, leaf_shape, leaf_spaces, numpy_dtype
from rltrainer.state.codec import from_state, to_state
from rltrainer.state.state_file import read_state, write_state
from rltrainer.tree import Tree, leaves, map_tree, to_array
from rltrainer.validation.field_rules import AnyPath, NonNegativeInt, Rule, checked

Env = gym.Env[Any, Any]
MakeEnv = Annotated[Callable[[], Env], Rule("a factory of one env, as for make_vec", callable)]

KIND = FOLDER = "episodes"
MAX_PENDING_NBYTES = 2**22  # of actions that wait for the next checkpoint; more are written at once

_NAME = re.compile(r"(\d{6,})-(\d+)\.safetensors")
_INTEGERS, _FLAGS = ("env", "number", "seed", "length", "digest"), ("terminated", "truncated")


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that ended, in an env of this index."""

    env: int
    number: int  # episodes of the env before it
    seed: int
    length: int
    actions: Array  # that the env received [length, ...]; none if there were more than `MAX_STEPS`
    digest: int  # of the final observation; see `digest_of`
    terminated: bool
    truncated: bool  # by the env, or by the collector


@dataclass
class EpisodesState:
    """The episodes of a file: arrays [E], and their actions one after the other [sum of kept steps, ...]."""

    env: Array
    number: Array
    seed: Array
    length: Array
    digest: Array
    terminated: Array
    truncated: Array
    actions: Array

    @classmethod
    def of(cls, episodes: list[Episode]) -> "EpisodesState":
        """Return the columns of episodes."""
        dtypes = dict.fromkeys(_INTEGERS, np.int64) | dict.fromkeys(_FLAGS, np.bool_)
        columns = {name: np.array([getattr(e, name) for e in episodes], dtype) for name, dtype in dtypes.items()}
        return cls(**columns, actions=np.concatenate([each.actions for each in episodes]))

    def problem(self) -> str | None:
        """Return what is wrong with columns that were read from a file, or None."""
        for name in (*_INTEGERS, *_FLAGS):
            column, dtype = getattr(self, name), np.int64 if name in _INTEGERS else np.bool_
            if column.dtype != dtype or column.shape != self.env.shape or column.ndim != 1:
                return f"{name}: expected {np.dtype(dtype)} [{self.env.size}], found {column.dtype} {column.shape}"
        if (np.stack([self.env, self.number, self.seed, self.length]) < 0).any():
            return "env, number, seed and length must not be negative"
        if self.actions.ndim < 1 or int(self.kept.sum()) != len(self.actions):
            return f"actions: expected those of {int(self.kept.sum())} steps, found {self.actions.shape}"
        return None

    @property
    def kept(self) -> Array:
        """The number of actions of each episode [E]."""
        return np.where(self.length <= MAX_STEPS, self.length, 0)

    def episode(self, i: int) -> Episode:
        """Return one of the episodes."""
        first = int(self.kept[:i].sum())
        values = {name: getattr(self, name)[i].item() for name in (*_INTEGERS, *_FLAGS)}
        return Episode(**values, actions=self.actions[first : first + int(self.kept[i])].copy())


# Each file holds the episodes that ended since the one before, and never changes. A resumed run records the episodes
# since its checkpoint again: the newest record of an episode counts.
class EpisodeRecorder:
    """Writes the actions of episodes that have ended into files of a folder, which is made when it is needed."""

    def __init__(self, folder: Path, history: ActionHistory, first_env: int = 0) -> None:
        # Several recorders may share the folder: `first_env` is the index of the first env of this one.
        self._folder, self._history, self._first_env = folder, history, first_env
        self._index = max((index for index, _ in _files(folder)), default=-1) + 1
        self._pending: list[Episode] = []
        self._nbytes, self._is_open = 0, True

    def record(self, rows: Rows, clock: EpisodeClock, result: EnvStep) -> None:
        """Take in the episodes of envs [K] that end with a step, which the clock has counted."""
        if not self._is_open:
            return
        steps, seeds = clock.episode_steps, clock.episode_seeds(rows)
        for n in rows[clock.counts(rows)].tolist():
            # In the step in which an env broke down no transition took place.
            length = int(steps[n]) - int(result.valid is not None and not result.valid[n])
            actions = self._history.of(n, int(steps[n]) if length <= MAX_STEPS else 0)[:length]
            digest = digest_of(map_tree(lambda leaf, n=n: to_array(leaf[n]), result.next_obs))
            flags = bool(result.terminated[n]), bool(result.truncated[n])
            number, seed = int(clock.episode[n]), seeds[n] or 0
            self._pending.append(Episode(n + self._first_env, number, seed, length, actions.copy(), digest, *flags))
            self._nbytes += actions.nbytes + 64
        if self._nbytes > MAX_PENDING_NBYTES:
            self.flush()

    def flush(self) -> None:
        """Write a file of the episodes that wait; they keep waiting after a `CheckpointError`."""
        if not self._pending:
            return
        path = self._folder / f"{self._index:06d}-{self._first_env}.safetensors"
        try:
            write_state(path, KIND, to_state(EpisodesState.of(self._pending)))
        except OSError as error:
            raise CheckpointError(f"{path}: episodes could not be written ({error})") from error
        self._index += 1
        self._pending, self._nbytes = [], 0

    def close(self) -> None:
        """Write the episodes that wait, and record no more."""
        self._is_open = False
        self.flush()


def digest_of(obs: Tree) -> int:
    """Return 63 bits of a hash of an observation's leaves [...], as they are stored."""
    hasher = hashlib.blake2b(digest_size=8)
    for leaf in leaves(obs):
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    return int.from_bytes(hasher.digest(), "big") >> 1  # 63 bits: what an int64 holds


def find_episode(run: Path, env: int, number: int) -> Episode:
    """Return the newest record of an episode, or raise a `CheckpointError`."""
    folder = run / FOLDER if (run / FOLDER).is_dir() else run
    known: set[int] = set()
    last = -1
    # The newest first: after a resume an episode may have been recorded twice.
    for _, path in sorted(_files(folder), reverse=True):
        found = from_state(EpisodesState, read_state(path, KIND, CheckpointError), str(path))
        for i in np.flatnonzero((found.env == env) & (found.number == number))[::-1][:1]:
            return found.episode(int(i))
        known |= set(found.env.tolist())
        last = max(last, int(found.number[found.env == env].max(initial=-1)))
    if not known:
        raise CheckpointError(f"{run}: no episode of it was recorded")
    what = f"env {env} has episodes up to {last}" if env in known else f"there are the envs {sorted(known)}"
    raise CheckpointError(f"{run}: env {env}, episode {number} was not recorded: {what}")


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the number and path of each file of a folder."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            yield int(match[1]), path


class ReplayedStep(NamedTuple):
    """A step of an episode: an observation, the action as the env received it, and the result."""

    obs: Any
    action: Any
    reward: float
    next_obs: Any
    terminated: bool
    truncated: bool  # by the env, or by a limit of the collector
    frame: Any  # rendered after the step, if the render mode is `rgb_array`


def replay_episode(run: str | Path, env: int, episode: int, make_env: Callable[[], Env]) -> Iterator[ReplayedStep]:
    """Step through a training episode again, by the seed and the actions that were recorded.

    ```
    make_env = functools.partial(gym.make, "LunarLander-v3", render_mode="rgb_array")
    frames = [step.frame for step in rl.replay_episode("runs/lander", env=2, episode=117, make_env=make_env)]
    ```

    Args:
        run: the folder into which the run recorded its episodes.
        env: the index of the env.
        episode: how many episodes of this env were before it, from the start of the run.
        make_env: makes an env like the run's, wrappers included; it is closed at the end.

    Yields:
        the steps, one after the other.

    Raises:
        ParamsError: an argument breaks its rule.
        CheckpointError: there is no record of this episode, or it is damaged.
        EnvError: the env does not repeat the episode: another one was made, or it is not deterministic.
    """
    name = "replay_episode"
    run, env = Path(checked(name, "run", run, AnyPath)), checked(name, "env", env, NonNegativeInt)
    found = find_episode(run, env, checked(name, "episode", episode, NonNegativeInt))
    make_env = checked(name, "make_env", make_env, MakeEnv)
    if found.length > MAX_STEPS:
        rule = f"must be one of at most {MAX_STEPS} steps: actions of longer ones are not kept"
        raise ParamsError.about(name, "episode", rule, episode, f"It has {found.length} steps.")
    return _steps(found, make_env)


def _steps(episode: Episode, make_env: Callable[[], Env]) -> Iterator[ReplayedStep]:
    env = make_env()
    try:
        space = env.action_space
        if episode.actions.shape[1:] != leaf_shape(space) or not ValueRange(space).holds(episode.actions):
            raise _failure(episode, f"has actions outside {space}: {readable(episode.actions.tolist())},")
        obs = copy.deepcopy(env.reset(seed=episode.seed)[0])  # some envs write all observations into one array
        for number, action in enumerate(episode.actions, 1):
            next_obs, reward, terminated, truncated, _ = env.step(copy.copy(action))
            next_obs, is_last = copy.deepcopy(next_obs), number == episode.length
            if is_last:
                spaces = leaf_spaces(env.observation_space)
                stored = map_tree(lambda space, leaf: np.asarray(leaf, numpy_dtype(space)), spaces, next_obs)
                is_same = digest_of(stored) == episode.digest and terminated == episode.terminated
                if not is_same or truncated > episode.truncated:
                    raise _failure(episode, "did not end as it did")
            elif terminated or truncated:
                raise _failure(episode, f"ended after {number} steps instead of {episode.length}")
            frame = copy.copy(env.render()) if env.render_mode == "rgb_array" else None
            truncated = bool(truncated or (is_last and episode.truncated))
            yield ReplayedStep(obs, action, float(reward), next_obs, bool(terminated), truncated, frame)
            obs = next_obs
    finally:
        env.close()


def _failure(episode: Episode, what: str) -> EnvError:
    hint = "make_env must make the env of the run, with the same wrappers and arguments; and it must be deterministic"
    return EnvError(f"env {episode.env}, episode {episode.number} {what} when its actions were repeated: {hint}")
