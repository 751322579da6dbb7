"""An episode of a run once more, in an env of one's own."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np

from rltrainer.envs.episodes.episode_files import Episode, find_episode
from rltrainer.envs.episodes.recorder import digest_of
from rltrainer.envs.resuming.action_trail import MAX_STEPS
from rltrainer.errors import EnvError, ParamsError, field_error_text
from rltrainer.spaces import leaf_spaces, numpy_dtype
from rltrainer.tree import map_tree
from rltrainer.validation.field_rules import AnyPath, NonNegativeInt, Rule, checked
from rltrainer.validation.suggestions import explains_arguments

Env = gym.Env[Any, Any]
MakeEnv = Annotated[Callable[[], Env], Rule("a factory of one env, as for make_vec", callable)]


class ReplayedStep(NamedTuple):
    """A step of an episode.

    Args:
        obs: what was acted on, as the env returned it.
        action: what the env received.
        reward, next_obs, terminated, truncated: what the step led to; a limit of the collector's truncates, too.
        frame: what the env renders after the step, if its render mode is `rgb_array`.
    """

    obs: Any
    action: Any
    reward: float
    next_obs: Any
    terminated: bool
    truncated: bool
    frame: Any


@explains_arguments
def replay_episode(run: str | Path, env: int, episode: int, make_env: Callable[[], Env]) -> Iterator[ReplayedStep]:
    """Step through a training episode again, by the seed and the actions that were recorded.

    ```
    make_env = functools.partial(gym.make, "LunarLander-v3", render_mode="rgb_array")
    frames = [step.frame for step in rl.replay_episode("runs/lander", env=2, episode=117, make_env=make_env)]
    ```

    Args:
        run: the folder into which the run recorded its episodes.
        env: the index of the env.
        episode: how many episodes of this env were before it, from the beginning of the run.
        make_env: makes an env like that of the run, wrappers included; it is closed at the end.

    Yields:
        the steps, one after the other.

    Raises:
        ParamsError: an argument breaks its rule.
        CheckpointError: there is no record of this episode, or it is damaged.
        EnvError: the env does not do again what it did: another one was made, or it is not deterministic.
    """
    name = "replay_episode"
    found = find_episode(
        Path(checked(name, "run", run, AnyPath)),
        checked(name, "env", env, NonNegativeInt),
        checked(name, "episode", episode, NonNegativeInt),
    )
    make_env = checked(name, "make_env", make_env, MakeEnv)
    if found.length > MAX_STEPS:
        rule = f"must be one of at most {MAX_STEPS} steps: actions of longer ones are not kept"
        raise ParamsError(field_error_text(name, "episode", rule, episode, f"It has {found.length} steps."))
    return _steps(found, make_env)


def _steps(episode: Episode, make_env: Callable[[], Env]) -> Iterator[ReplayedStep]:
    env = make_env()
    try:
        obs = copy.deepcopy(env.reset(seed=episode.seed)[0])  # some envs write all observations into one array
        for number, action in enumerate(episode.actions, 1):
            next_obs, reward, terminated, truncated, _ = env.step(copy.copy(action))
            next_obs = copy.deepcopy(next_obs)
            is_last = number == episode.length
            done = bool(terminated or truncated)
            if is_last:
                is_same = digest_of(_as_stored(env, next_obs)) == episode.digest and terminated == episode.terminated
                if not is_same or truncated > episode.truncated:
                    raise _failure(episode, "did not end as it did")
            elif done:
                raise _failure(episode, f"ended after {number} steps instead of {episode.length}")
            frame = copy.copy(env.render()) if env.render_mode == "rgb_array" else None
            truncated = bool(truncated or (is_last and episode.truncated))
            yield ReplayedStep(obs, action, float(reward), next_obs, bool(terminated), truncated, frame)
            obs = next_obs
    finally:
        env.close()


def _as_stored(env: Env, obs: Any) -> Any:
    """Return an observation as collectors store it."""
    return map_tree(lambda space, leaf: np.asarray(leaf, numpy_dtype(space)), leaf_spaces(env.observation_space), obs)


def _failure(episode: Episode, what: str) -> EnvError:
    hint = "make_env must make the env of the run, with the same wrappers and arguments; and it must be deterministic"
    return EnvError(f"env {episode.env}, episode {episode.number} {what} when its actions were repeated: {hint}")
