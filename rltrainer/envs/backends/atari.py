"""Games of ALE's own vector env, which plays them in threads: each can be reset by itself, and no cell is lost."""

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rltrainer.errors import CheckpointError, EnvError, ParamsError, field_error_text
from rltrainer.seeding import draw_seed
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeInt, Rule, as_python, is_int

UNDERSTOOD = {"repeat_action_probability", "full_action_space", "max_num_frames_per_episode", "num_threads"}
"""Arguments that ALE's vector env has: those of a single game, and how many threads play."""

Array = np.ndarray[Any, Any]
Seed = Annotated[int, Rule("an integer in [0, 2**31)", lambda v: is_int(v) and 0 <= v < 2**31)]


@dataclass
class GamesState:
    """State of an `AtariVectorEnv`: what was played in each running game, and where that leads.

    Args:
        seeds: of the games [N].
        actions: since the games began, uint8 [steps] each.
        age: steps of the running episodes [N], which are lives where lost ones end episodes.
        goes_on: whether a life was just lost [N].
        checks: of the observations [N], CRC-32.
    """

    seeds: list[Seed]
    actions: list[Array]
    age: list[NonNegativeInt]
    goes_on: list[bool]
    checks: list[NonNegativeInt]


class AtariVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Plays N games, and does to each what an `AtariWrapper` does.

    Where a life was lost, a masked reset goes on with the game, whatever the seed.

    Args:
        num_envs: how many.
        game: of ALE's vector env: `game`, and what is `UNDERSTOOD`.
        options: of an `AtariWrapper`.

    Attributes:
        frame_skip: frames of one env step.
    """

    def __init__(self, num_envs: int, game: dict[str, Any], options: dict[str, Any]) -> None:
        from ale_py.vector_env import AtariVectorEnv as PlayedByALE

        size = options["screen_size"]
        self._games: Any = PlayedByALE(
            num_envs=num_envs, img_height=size, img_width=size, stack_num=options["frame_stack"],
            frameskip=options["frame_skip"], maxpool=options["frame_skip"] > 1, noop_max=options["noop_max"] + 1,
            reward_clipping=options["clip_reward"], use_fire_reset=options["fire_on_reset"], **game,
        )  # fmt: skip
        self.num_envs, self.frame_skip = num_envs, options["frame_skip"]
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.observation_space, self.action_space = self._games.observation_space, self._games.action_space
        self.single_observation_space = self._games.single_observation_space
        self.single_action_space = self._games.single_action_space
        self._num_actions = gym.spaces.flatdim(self.single_action_space)
        self._stack_size, self._counts_lives = options["frame_stack"], options["terminal_on_life_loss"]
        self._seeds, self._actions = [0] * num_envs, [bytearray() for _ in range(num_envs)]
        self._obs: Array = np.zeros(self.observation_space.shape or (), np.uint8)
        self._lives, self._age = np.zeros(num_envs, np.int32), np.zeros(num_envs, np.int64)
        self._is_reset = False
        self._goes_on = np.zeros(num_envs, np.bool_)  # a life was lost in the last step, and the game is not over

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games anew; or of `options["reset_mask"]` [N] those in which no life was just lost.

        Args:
            seed: one per env; an integer `s` stands for `s, s + 1, ...`.
            options: `reset_mask`.

        Returns:
            the current observations of all envs, and infos.
        """
        info: dict[str, Any] = {}
        everyone = np.ones(self.num_envs, np.bool_)
        mask = (options or {}).get("reset_mask", everyone)
        due = mask if mask is everyone else mask & ~self._goes_on
        first = as_python(seed)
        seeds: Any = [first + n for n in range(self.num_envs)] if is_int(first) else seed
        for n in np.flatnonzero(due).tolist():
            given = None if seeds is None else seeds[n]
            self._seeds[n], self._actions[n] = draw_seed() if given is None else int(given) % 2**31, bytearray()
        self._obs = self._obs.copy()  # the last one is whoever's it was returned to
        if due.any():
            self._obs, info = self._begin(due)
        self._age[mask], self._goes_on[mask] = 0, False
        self._restart_stacks()
        return self._obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every game.

        Raises:
            EnvError: `reset` was not called, or the games were closed.
            ParamsError: these are not as many actions of the game.
        """
        if self._games is None or not self._is_reset:  # ALE would wait for ever
            raise EnvError("AtariVectorEnv.step: reset must be called first")
        actions = np.asarray(actions)
        if actions not in self.action_space:
            rule = f"must be {self.num_envs} integers in [0, {self._num_actions})"
            raise ParamsError(field_error_text("AtariVectorEnv.step", "actions", rule, actions))
        for played, action in zip(self._actions, actions.tolist(), strict=True):
            played.append(action)
        self._obs, reward, over, truncated, info = self._games.step(actions)
        lives, self._lives = self._lives, info["lives"]
        # Some games have none left for a while before they are over.
        is_lost = (self._lives < lives) & (self._lives > 0) & ~over & ~truncated
        self._goes_on = is_lost & self._counts_lives
        self._age += 1
        self._restart_stacks()
        return self._obs, reward.astype(np.float64), over | self._goes_on, truncated, info

    def state_dict(self) -> State:
        """Return what was played."""
        actions = [np.frombuffer(bytes(played), np.uint8).copy() for played in self._actions]
        flags = self._age.tolist(), self._goes_on.tolist()
        return dict(to_state(GamesState(list(self._seeds), actions, *flags, self._checks())))

    def load_state_dict(self, state: State) -> None:
        """Do what `prepare_load` prepares."""
        self.prepare_load(state)()

    def prepare_load(self, state: State) -> Load:
        """Check a state, and return what plays it; games that come to other frames are named in a warning.

        Raises:
            CheckpointError: it is of other games, or none.
        """
        found = from_state(GamesState, state, "adapter.envs")
        if any(len(values) != self.num_envs for values in vars(found).values()):
            raise CheckpointError(f"adapter.envs: expected the state of {self.num_envs} games, found that of others")
        for n, played in enumerate(found.actions):
            if played.dtype != np.uint8 or played.ndim != 1 or (played >= self._num_actions).any():
                expected = f"uint8 actions below {self._num_actions}"
                raise CheckpointError(f"adapter.envs.actions.{n}: expected {expected}, found others")

        def load() -> None:
            self._seeds, self._actions = list(found.seeds), [bytearray(played.tobytes()) for played in found.actions]
            self._play(found.actions)
            self._age, self._goes_on = np.array(found.age, np.int64), np.array(found.goes_on, np.bool_)
            self._restart_stacks()
            if differing := [n for n, check in enumerate(self._checks()) if check != found.checks[n]]:
                text = f"envs {differing} came to other frames than before: was it another version of ale-py?"
                warnings.warn(text, stacklevel=2)

        return load

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the games; their threads end with them."""
        self._games = None

    def _begin(self, due: Array) -> tuple[Array, dict[str, Any]]:
        """Begin some games with their seeds; return the frames of all."""
        options = None if due.all() else {"reset_mask": due}
        self._is_reset = True
        obs, info = self._games.reset(seed=np.array(self._seeds)[due], options=options)
        self._lives = info["lives"]
        return obs, info

    def _play(self, actions: list[Array]) -> None:
        """Play games from their beginnings so that all arrive together; before its beginning one plays anything."""
        num_steps = max(map(len, actions))
        begins = np.array([num_steps - len(played) for played in actions])
        self._obs, _ = self._begin(np.ones(self.num_envs, np.bool_))
        for number in range(num_steps):
            if number and (begins == number).any():
                self._begin(begins == number)
            row = [
                played[number - begin] if number >= begin else 0 for played, begin in zip(actions, begins, strict=True)
            ]
            self._obs, *_, info = self._games.step(np.array(row, np.int64))
            self._lives = info["lives"]
        if num_steps and (begins == num_steps).any():
            self._obs, _ = self._begin(begins == num_steps)

    def _restart_stacks(self) -> None:
        """Repeat the first frame of young episodes, as stacks of single envs and of buffers do, in place."""
        for n in np.flatnonzero(self._age < self._stack_size - 1).tolist():
            first = self._stack_size - 1 - self._age[n]
            self._obs[n, :first] = self._obs[n, first]

    def _checks(self) -> list[int]:
        return [zlib.crc32(frames.tobytes()) for frames in self._obs]
