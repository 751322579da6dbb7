"""Atari games as they are trained on: what is done to frames, rewards and lives, whoever steps the game."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

from rltrainer.errors import MissingExtraError, ParamsError, field_error_text, install_extra
from rltrainer.validation.field_rules import Flag, NonNegativeInt, PositiveInt, checked
from rltrainer.validation.suggestions import explains_arguments

RULES: dict[str, Any] = {
    "noop_max": NonNegativeInt, "frame_skip": PositiveInt, "screen_size": PositiveInt, "terminal_on_life_loss": Flag,
    "clip_reward": Flag, "fire_on_reset": Flag, "frame_stack": PositiveInt,
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "noop_max": 30, "frame_skip": 4, "screen_size": 84, "terminal_on_life_loss": True, "clip_reward": True,
    "fire_on_reset": True, "frame_stack": 4,
}  # fmt: skip


@explains_arguments
class AtariWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Observes the last frames of an Atari game in gray, uint8 [frame_stack, screen_size, screen_size].

        envs = rl.make_vec("ALE/Pong-v5", 8, wrappers=[rl.AtariWrapper])
        as_scored = functools.partial(rl.AtariWrapper, terminal_on_life_loss=False, clip_reward=False)
        test_envs = rl.make_vec("ALE/Pong-v5", 10, wrappers=[as_scored])

    `make_vec` has ALE's own vector env do all of it, in threads, unless an argument asks for single envs.
    Those are wrapped in gymnasium's `AtariPreprocessing` and `FrameStackObservation`, which need OpenCV; the same
    actions lead to the same frames in both. Defaults are those of Stable-Baselines3, and Machado et al. (2018) tell
    what speaks against some of them.

    Args:
        env: a game that skips no frames itself, such as `gym.make("ALE/Pong-v5", frameskip=1)`.
        noop_max: a game begins with a random number of frames without action, at most this many.
        frame_skip: frames of one env step; the brighter of the last two is observed at each pixel.
        screen_size: height and width of what is observed.
        terminal_on_life_loss: a lost life terminates the episode, and the next episode goes on with the game where it
            is; False: episodes are whole games.
        clip_reward: rewards are -1, 0 or 1, their signs; False: points of the game.
        fire_on_reset: games that have a FIRE begin with it, as some wait for it. Not lives.
        frame_stack: the number of frames; an episode begins with its first frame repeated.

    Raises:
        ParamsError: an argument breaks its rule, or the env is no game of ALE, or skips frames.
        MissingExtraError: OpenCV is not installed.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        noop_max: int = DEFAULTS["noop_max"],
        frame_skip: int = DEFAULTS["frame_skip"],
        screen_size: int = DEFAULTS["screen_size"],
        terminal_on_life_loss: bool = DEFAULTS["terminal_on_life_loss"],
        clip_reward: bool = DEFAULTS["clip_reward"],
        fire_on_reset: bool = DEFAULTS["fire_on_reset"],
        frame_stack: int = DEFAULTS["frame_stack"],
    ) -> None:
        options = atari_options(
            noop_max=noop_max, frame_skip=frame_skip, screen_size=screen_size, frame_stack=frame_stack,
            terminal_on_life_loss=terminal_on_life_loss, clip_reward=clip_reward, fire_on_reset=fire_on_reset,
        )  # fmt: skip
        if getattr(env.unwrapped, "_frameskip", None) != 1:
            rule, hint = "must be a game of ALE that skips no frames", "Make it with frameskip=1."
            raise ParamsError(field_error_text("AtariWrapper", "env", rule, env, hint))
        try:
            game = wrappers.AtariPreprocessing(env, options["noop_max"], options["frame_skip"], options["screen_size"])
        except gym.error.DependencyNotInstalled as error:
            text = f"AtariWrapper: single games need OpenCV. {install_extra('atari')}"
            raise MissingExtraError(text) from error
        played = _Game(game, options["terminal_on_life_loss"], options["clip_reward"], options["fire_on_reset"])
        super().__init__(wrappers.FrameStackObservation(played, options["frame_stack"]))


class _Game(gym.Wrapper[Any, Any, Any, Any]):
    """A game whose lost lives may end episodes, whose rewards may be clipped, and that may begin with FIRE."""

    def __init__(self, env: gym.Env[Any, Any], counts_lives: bool, clips: bool, fires: bool) -> None:
        super().__init__(env)
        game: Any = env.unwrapped
        self._counts_lives, self._clips = counts_lives, clips
        self._fire = game.get_action_meanings().index("FIRE") if fires and has_fire(game) else None
        self._goes_on = False  # after the loss of a life
        self._obs: Any = None
        self._info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game, or go on with the one in which a life was lost; a seed does not change that."""
        if self._goes_on:
            self._goes_on = False
            return self._obs, self._info
        self._obs, self._info = self.env.reset(seed=seed, options=options)
        if self._fire is not None:
            self._obs, _, terminated, truncated, self._info = self.env.step(self._fire)
            if terminated or truncated:
                self._obs, self._info = self.env.reset(options=options)
        self._lives = self._info["lives"]
        return self._obs, self._info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the game; the loss of a life that is not the last one terminates the episode, if it is to."""
        self._obs, reward, terminated, truncated, self._info = self.env.step(action)
        lives, self._lives = self._lives, self._info["lives"]
        self._goes_on = self._counts_lives and 0 < self._lives < lives and not (terminated or truncated)
        reward = float(np.sign(float(reward))) if self._clips else reward
        return self._obs, reward, terminated or self._goes_on, truncated, self._info


def has_fire(game: Any) -> bool:
    """Return whether a game has a FIRE action."""
    return "FIRE" in game.get_action_meanings()


def atari_options(**given: Any) -> dict[str, Any]:
    """Return all options of an `AtariWrapper`, checked."""
    return {name: checked("AtariWrapper", name, value, RULES[name]) for name, value in (DEFAULTS | given).items()}


def atari_options_of(wrapper: Any) -> dict[str, Any] | None:
    """Return the options that an `AtariWrapper`, or a `functools.partial` of it, wraps with; None for all others."""
    if wrapper is AtariWrapper:
        return dict(DEFAULTS)
    if isinstance(wrapper, partial) and wrapper.func is AtariWrapper and not wrapper.args:
        return atari_options(**wrapper.keywords) if wrapper.keywords.keys() <= DEFAULTS.keys() else None
    return None
