"""Atari games as they are trained on, one by one (`AtariWrapper`) or in the threads of ALE's own vector env."""

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode

from rltrainer.errors import CheckpointError, EnvError, MissingExtraError, ParamsError, install_extra
from rltrainer.seeding import draw_seed
from rltrainer.spaces import Array
from rltrainer.state.stateful import Stateful
from rltrainer.validation.field_rules import Flag, NonNegativeInt, PositiveInt, Rule, as_python, checked, is_int

Seed = Annotated[int, Rule("an integer in [0, 2**31)", lambda v: is_int(v) and 0 <= v < 2**31)]

UNDERSTOOD = {"repeat_action_probability", "full_action_space", "max_num_frames_per_episode", "num_threads"}
"""Arguments of ALE's vector env: the arguments of a single game, and how many threads play."""

OPTIONS: dict[str, tuple[Any, Any]] = {
    "noop_max": (NonNegativeInt, 30), "frame_skip": (PositiveInt, 4), "screen_size": (PositiveInt, 84),
    "terminal_on_life_loss": (Flag, True), "clip_reward": (Flag, True), "fire_on_reset": (Flag, True),
    "frame_stack": (PositiveInt, 4),
}  # fmt: skip
"""Rule and default of each option of an `AtariWrapper`."""


class AtariWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Observes the last frames of an Atari game in gray, uint8 [frame_stack, screen_size, screen_size].

        envs = rl.make_vec("ALE/Pong-v5", 8, wrappers=[rl.AtariWrapper])
        as_scored = functools.partial(rl.AtariWrapper, terminal_on_life_loss=False, clip_reward=False)
        test_envs = rl.make_vec("ALE/Pong-v5", 10, wrappers=[as_scored])

    `make_vec` lets ALE's own vector env do all of it, in threads, unless an argument asks for single envs.
    Single envs are wrapped in gymnasium's `AtariPreprocessing` and `FrameStackObservation`, which need OpenCV; the same
    actions lead to the same frames in both. Defaults are as in Stable-Baselines3; Machado et al. (2018) argue
    against some of them.

    Args:
        env: a game that skips no frames itself, such as `gym.make("ALE/Pong-v5", frameskip=1)`.
        noop_max: a game starts with a random number of frames without action, at most this many.
        frame_skip: frames of one env step; the brighter of the last two is observed at each pixel.
        screen_size: height and width of the observed frames.
        terminal_on_life_loss: a lost life terminates the episode, and the next episode continues the game; False:
            episodes are whole games.
        clip_reward: rewards are -1, 0 or 1, their signs; False: points of the game.
        fire_on_reset: games that have a FIRE start with it, as some wait for it. Not lives.
        frame_stack: the number of frames; an episode starts with its first frame repeated.

    Raises:
        ParamsError: an argument breaks its rule, or the env is no game of ALE, or skips frames.
        MissingExtraError: OpenCV is not installed.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        noop_max: int = 30,
        frame_skip: int = 4,
        screen_size: int = 84,
        terminal_on_life_loss: bool = True,
        clip_reward: bool = True,
        fire_on_reset: bool = True,
        frame_stack: int = 4,
    ) -> None:
        options = atari_options(
            noop_max=noop_max, frame_skip=frame_skip, screen_size=screen_size, frame_stack=frame_stack,
            terminal_on_life_loss=terminal_on_life_loss, clip_reward=clip_reward, fire_on_reset=fire_on_reset,
        )  # fmt: skip
        if getattr(env.unwrapped, "_frameskip", None) != 1:
            rule, hint = "must be a game of ALE that skips no frames", "Make it with frameskip=1."
            raise ParamsError.about("AtariWrapper", "env", rule, env, hint)
        try:
            game = wrappers.AtariPreprocessing(env, options["noop_max"], options["frame_skip"], options["screen_size"])
        except gym.error.DependencyNotInstalled as error:
            raise MissingExtraError(f"AtariWrapper: single games need OpenCV. {install_extra('atari')}") from error
        played = _Game(game, options["terminal_on_life_loss"], options["clip_reward"], options["fire_on_reset"])
        super().__init__(wrappers.FrameStackObservation(played, options["frame_stack"]))


class _Game(gym.Wrapper[Any, Any, Any, Any]):
    """A game in which lost lives may end episodes; rewards may be clipped, and it may start with FIRE."""

    def __init__(self, env: gym.Env[Any, Any], counts_lives: bool, clips: bool, fires: bool) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        self._counts_lives, self._clips = counts_lives, clips
        meanings = game.get_action_meanings()
        self._fire = meanings.index("FIRE") if fires and "FIRE" in meanings else None
        self._lost_life = False
        self._obs: Any = None
        self._info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a game, or continue the one in which a life was lost; a seed does not change that."""
        # A lost life ends an episode, as for DQN (Mnih et al., 2015); the next episode continues the game.
        if self._lost_life:
            self._lost_life = False
            return self._obs, self._info
        self._obs, self._info = self.env.reset(seed=seed, options=options)
        if self._fire is not None:
            self._obs, _, terminated, truncated, self._info = self.env.step(self._fire)
            if terminated or truncated:
                self._obs, self._info = self.env.reset(options=options)
        self._lives = self._info["lives"]
        return self._obs, self._info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game; the loss of a life that is not the last one may terminate the episode."""
        self._obs, reward, terminated, truncated, self._info = self.env.step(action)
        lives, self._lives = self._lives, self._info["lives"]
        self._lost_life = self._counts_lives and 0 < self._lives < lives and not (terminated or truncated)
        reward = float(np.sign(float(reward))) if self._clips else reward
        return self._obs, reward, terminated or self._lost_life, truncated, self._info


def atari_options(**given: Any) -> dict[str, Any]:
    """Return all options of an `AtariWrapper`; a `ParamsError` if one breaks its rule."""
    each = OPTIONS.items()
    return {name: checked("AtariWrapper", name, given.get(name, default), rule) for name, (rule, default) in each}


def atari_options_of(wrapper: Any) -> dict[str, Any] | None:
    """Return the options of an `AtariWrapper`, or of a `functools.partial` of it; None for all other wrappers."""
    if wrapper is AtariWrapper:
        return atari_options()
    if isinstance(wrapper, partial) and wrapper.func is AtariWrapper and not wrapper.args:
        return atari_options(**wrapper.keywords) if wrapper.keywords.keys() <= OPTIONS.keys() else None
    return None


@dataclass
class GamesState:
    """State of an `AtariVectorEnv`: the actions of each running game [N], and where they lead."""

    seeds: list[Seed]
    actions: list[Array]  # uint8 [steps] each
    age: list[NonNegativeInt]  # steps of the running episodes, which are lives where lost ones end episodes
    goes_on: list[bool]  # a life was just lost
    checks: list[NonNegativeInt]  # CRC-32 of the observations


class AtariVectorEnv(gym.vector.VectorEnv[Any, Any, Any], Stateful[GamesState]):
    """Plays N games, and does to each what an `AtariWrapper` does.

    `game` holds arguments of ALE's vector env: `game`, and the `UNDERSTOOD`; `options` are an `AtariWrapper`'s.
    """

    # If a life was lost, a masked reset continues the game, whatever the seed. A state holds the actions since each
    # game began, as an episode may be one life of it.

    state_class, state_name = GamesState, "adapter.envs"

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
        for name in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            setattr(self, name, getattr(self._games, name))
        self._num_actions = gym.spaces.flatdim(self.single_action_space)
        self._stack_size, self._counts_lives = options["frame_stack"], options["terminal_on_life_loss"]
        self._seeds, self._actions = [0] * num_envs, [bytearray() for _ in range(num_envs)]
        self._obs: Array = np.zeros(self.observation_space.shape or (), np.uint8)
        self._lives, self._age = np.zeros(num_envs, np.int32), np.zeros(num_envs, np.int64)
        self._is_reset = False
        self._lost_life = np.zeros(num_envs, np.bool_)  # in the last step, and the game is not over

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start all games; or the games of `options["reset_mask"]` [N] in which no life was just lost.

        There is one seed per env; an integer `s` stands for `s, s + 1, ...`.
        """
        info: dict[str, Any] = {}
        every = np.ones(self.num_envs, np.bool_)
        mask = (options or {}).get("reset_mask", every)
        due = mask if mask is every else mask & ~self._lost_life
        first = as_python(seed)
        seeds: Any = [first + n for n in range(self.num_envs)] if is_int(first) else seed
        for n in np.flatnonzero(due).tolist():
            given = None if seeds is None else seeds[n]
            self._seeds[n], self._actions[n] = draw_seed() if given is None else int(given) % 2**31, bytearray()
        self._obs = self._obs.copy()  # the caller may keep the last one
        if due.any():
            self._obs, info = self._begin(due)
        self._age[mask], self._lost_life[mask] = 0, False
        self._restart_stacks()
        return self._obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every game by actions [N]; raise an `EnvError` before a reset, and a `ParamsError` for other actions."""
        if self._games is None or not self._is_reset:  # ALE would wait for ever
            raise EnvError("AtariVectorEnv.step: reset must be called first")
        actions = np.asarray(actions)
        if actions not in self.action_space:
            rule = f"must be {self.num_envs} integers in [0, {self._num_actions})"
            raise ParamsError.about("AtariVectorEnv.step", "actions", rule, actions)
        for played, action in zip(self._actions, actions.tolist(), strict=True):
            played.append(action)
        self._obs, reward, over, truncated, info = self._games.step(actions)
        lives, self._lives = self._lives, info["lives"]
        # Some games have no lives left for a while before they are over.
        is_lost = (self._lives < lives) & (self._lives > 0) & ~over & ~truncated
        self._lost_life = is_lost & self._counts_lives
        self._age += 1
        self._restart_stacks()
        return self._obs, reward.astype(np.float64), over | self._lost_life, truncated, info

    def get_state(self) -> GamesState:
        """Return the seeds and actions of the running games."""
        actions = [np.frombuffer(bytes(played), np.uint8).copy() for played in self._actions]
        return GamesState(list(self._seeds), actions, self._age.tolist(), self._lost_life.tolist(), self._checks())

    def check_state(self, state: GamesState) -> None:
        """Raise a `CheckpointError` if it is of other games."""
        if any(len(values) != self.num_envs for values in vars(state).values()):
            raise CheckpointError(f"adapter.envs: expected the state of {self.num_envs} games, found that of others")
        for n, played in enumerate(state.actions):
            if played.dtype != np.uint8 or played.ndim != 1 or (played >= self._num_actions).any():
                expected = f"uint8 actions below {self._num_actions}"
                raise CheckpointError(f"adapter.envs.actions.{n}: expected {expected}, found others")

    def set_state(self, state: GamesState) -> None:
        """Play the games up to the saved step; games that come to other frames are named in a warning."""
        self._seeds, self._actions = list(state.seeds), [bytearray(played.tobytes()) for played in state.actions]
        # All games arrive together; before its start a game plays anything.
        lengths = [len(played) for played in state.actions]
        begins = max(lengths) - np.array(lengths)
        table = np.zeros((max(lengths), self.num_envs), np.int64)
        for n, played in enumerate(state.actions):
            table[begins[n] :, n] = played
        self._obs, _ = self._begin(np.ones(self.num_envs, np.bool_))
        for number in range(len(table) + 1):
            if number and (begins == number).any():
                self._obs, _ = self._begin(begins == number)
            if number < len(table):
                self._obs, *_, info = self._games.step(table[number])
                self._lives = info["lives"]
        self._age, self._lost_life = np.array(state.age, np.int64), np.array(state.goes_on, np.bool_)
        self._restart_stacks()
        if differing := [n for n, check in enumerate(self._checks()) if check != state.checks[n]]:
            text = f"envs {differing} came to other frames than before: was it another version of ale-py?"
            warnings.warn(text, stacklevel=2)

    def close_extras(self, **kwargs: Any) -> None:
        """Let go of the games; their threads end with them."""
        self._games = None

    def _begin(self, due: Array) -> tuple[Array, dict[str, Any]]:
        """Start some games with their seeds; return the frames of all."""
        options = None if due.all() else {"reset_mask": due}
        self._is_reset = True
        obs, info = self._games.reset(seed=np.array(self._seeds)[due], options=options)
        self._lives = info["lives"]
        return obs, info

    def _restart_stacks(self) -> None:
        """Repeat the first frame of young episodes, as stacks of single envs and of buffers do, in place."""
        # ALE's stacks reach back into the life before.
        for n in np.flatnonzero(self._age < self._stack_size - 1).tolist():
            first = self._stack_size - 1 - self._age[n]
            self._obs[n, :first] = self._obs[n, first]

    def _checks(self) -> list[int]:
        return [zlib.crc32(frames.tobytes()) for frames in self._obs]
