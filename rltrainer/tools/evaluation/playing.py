"""Trained policies at work in envs of the user's: evaluated, recorded, or watched in a window."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from rltrainer.algorithms.load_file import Player, policy_of
from rltrainer.collect import Collector, CollectStats
from rltrainer.collect.episode_infos import checked_keys, with_success
from rltrainer.envs import AgentsAsEnvs, TensorEnv, make_vec
from rltrainer.envs.agents.agents_as_envs import AGENT
from rltrainer.envs.agents.parallel_env import ParallelEnv, is_parallel
from rltrainer.envs.deferred_envs import opened
from rltrainer.errors import EnvError, ParamsError
from rltrainer.nets import Policy
from rltrainer.tools.evaluation import filming
from rltrainer.validation.field_rules import AnyPath, Flag, NonNegativeInt, PositiveFloat, PositiveInt, checked
from rltrainer.validation.suggestions import explains_arguments

Env = gym.Env[Any, Any]
VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
MOST_ENVS = 10


@explains_arguments
def evaluate_policy(
    policy: Player,
    envs: VectorEnv | Env | ParallelEnv | str | Callable[[], VectorEnv | Env | ParallelEnv],
    num_episodes: int = 10,
    *,
    seed: int | None = None,
    info_keys: Sequence[str] = (),
    explore: bool = False,
    max_episode_steps: int | None = None,
) -> CollectStats:
    """Play whole episodes and return their statistics: `returns`, `lengths`, summaries of both, `success_rate`.

    Each env plays its share of the episodes, so that short episodes are not favoured. Policy and normalisers do not
    change.

    Args:
        policy: a policy, an algorithm, or the path of a file, of a checkpoint, or of a run's folder: its best.
        envs: a vector env in any autoreset mode, or a factory of one; or a gymnasium id or a factory, which makes one
            env per episode, ten at most; or an env. The agents of a PettingZoo parallel env share the policy, and
            each plays `num_episodes`; an `AgentsAsEnvs` counts the episodes of single agents.
        seed: of the episodes, if the envs have no seed of their own (`make_vec(seed=)`). With either, each call plays
            the same episodes.
        info_keys: further numbers in the infos at the ends of episodes, for `infos` and `info_means`. `success_rate`
            always reads `is_success`, or else `success`.
        max_episode_steps: truncates an episode of this length; None waits for its end.

    Raises:
        ParamsError: an argument breaks its rule.
        SpaceError: the policy was made for other spaces.
        EnvError, NonFiniteError: an env failed.
        CheckpointError: see `rl.load_policy`.
    """
    owner = "evaluate_policy"
    player, keys = policy_of(owner, policy), checked_keys(owner, info_keys)

    def played(vector: VectorEnv, per_env: int = 1) -> CollectStats:
        return play(owner, player, with_success(vector, keys), num_episodes, seed, explore, max_episode_steps, per_env)

    if isinstance(envs, gym.vector.VectorEnv):
        return played(envs)
    num_envs = min(num_episodes, MOST_ENVS) if isinstance(num_episodes, int) and num_episodes > 0 else 1
    with vector_of(owner, envs, player, num_envs) as vector:
        return played(vector, vector.num_agents if isinstance(vector, AgentsAsEnvs) else 1)


@explains_arguments
def record(
    policy: Player,
    env: Env | ParallelEnv | str | Callable[[], Env | ParallelEnv],
    path: str | os.PathLike[str],
    *,
    num_episodes: int = 1,
    max_episode_steps: int | None = None,
    seed: int | None = None,
    explore: bool = False,
    fps: float | None = None,
) -> CollectStats:
    """Record whole episodes of a policy, one after the other in one file: an MP4, or a GIF.

    No display is needed. Frames go to ffmpeg one by one, so long episodes take no more memory.

    Args:
        policy: as of `evaluate_policy`.
        env: a gymnasium id; or a factory of an env, or an env, made with `render_mode="rgb_array"`. An env stays open.
            The agents of a PettingZoo parallel env share the policy, as in `AgentsAsEnvs`; the statistics have each
            agent's `episodes`.
        path: the file, `*.mp4` or `*.gif`; missing folders are made, an existing file is replaced.
        max_episode_steps: cuts an episode that would be longer; None waits for its end.
        seed: of the episodes; with one, each call plays the same.
        fps: frames a second; None takes the env's own, or 30. A GIF shows at most 50.

    Raises:
        ParamsError: an argument breaks its rule, or the env renders no frames.
        MissingExtraError: there is no ffmpeg; the extra `video` brings one.
        EnvError: the env failed, or could not be rendered. No file is left then.
    """
    owner = "record"
    file = Path(checked(owner, "path", path, AnyPath))
    if file.suffix.lower() not in filming.FORMATS:
        raise ParamsError.about(owner, "path", f"must end in {' or '.join(filming.FORMATS)}", str(file))
    fps = checked(owner, "fps", fps, PositiveFloat | None)
    filming.require_encoder(owner)
    player, videos = policy_of(owner, policy), list[filming.VideoFile]()

    def filmed(made: Any) -> Any:
        filming.require_frames("record.env", made)
        videos.append(filming.VideoFile(file, fps or filming.frames_per_second(made)))
        cls = filming.FilmedEnv if isinstance(made, gym.Env) else filming.FilmedAgents
        return cls(made, videos[0])

    try:
        with vector_of(owner, env, player, wrap=filmed, render_mode="rgb_array") as envs:
            stats = play(owner, player, envs, num_episodes, seed, explore, max_episode_steps, envs.num_envs)
        videos[0].close()
        return stats
    except BaseException as error:
        for video in videos:
            video.discard()
        if isinstance(error, EnvError) and (text := filming.with_hint(str(error))) != str(error):
            raise EnvError(text) from error  # some libraries look for a display when the env is made
        raise


def watch(
    policy: Player,
    env: Env | ParallelEnv | str | Callable[[], Env | ParallelEnv],
    *,
    num_episodes: int = 1,
    max_episode_steps: int | None = None,
    seed: int | None = None,
    explore: bool = False,
) -> CollectStats:
    """Show whole episodes of a policy in a window, as fast as the env's own `"human"` rendering does.

    Args:
        policy: as of `evaluate_policy`.
        env: a gymnasium id; or a factory of an env, or an env, made with `render_mode="human"`. An env stays open.
            The agents of a PettingZoo parallel env share the policy, as in `rl.record`.
        max_episode_steps: cuts an episode that would be longer; None waits for its end.
        seed: of the episodes; with one, each call plays the same.

    Raises:
        ParamsError: an argument breaks its rule, or the env has no window.
        EnvError: there is no display, or the env failed.
    """
    owner = "watch"
    player = policy_of(owner, policy)
    if not filming.has_display():
        text = "watch: there is no display for a window (neither DISPLAY nor WAYLAND_DISPLAY is set)"
        raise EnvError(f"{text}. rl.record(policy, env, path) writes a video without one.")

    def shown(made: Any) -> Any:
        if made.render_mode != "human":
            hint = 'Make it with render_mode="human", or pass the id: it is made so.'
            raise ParamsError(f"watch.env: must show a window; got render_mode={made.render_mode!r}. {hint}")
        return made

    with vector_of(owner, env, player, wrap=shown, render_mode="human") as envs:
        return play(owner, player, envs, num_episodes, seed, explore, max_episode_steps, envs.num_envs)


@contextmanager
def vector_of(
    owner: str,
    env: Env | ParallelEnv | str | Callable[[], VectorEnv | Env | ParallelEnv],
    player: Policy,
    num_envs: int = 1,
    wrap: Callable[[Any], Any] = lambda made: made,
    **env_kwargs: Any,
) -> Iterator[VectorEnv]:
    """Make `num_envs` envs of an id or factory in this process, and close them at the end; a given env stays open.

    An env of another kind raises a `ParamsError`.
    """
    is_made = isinstance(env, gym.Env) or is_parallel(env)
    if not is_made and not (isinstance(env, str) and env) and not callable(env):
        rule = "must be a gymnasium id, a factory of envs, or an env"
        hint = "Pass what makes one copy: lambda: parallel_env()." if isinstance(env, AgentsAsEnvs) else ""
        raise ParamsError.about(owner, "env", rule, env, hint)
    factory: Any = (lambda: env) if is_made else env
    num_envs = 1 if is_made else num_envs
    first: Any = None
    make = factory
    if not isinstance(env, str):
        # The first env shows the kind of all; a factory that fails is reported when the envs are made.
        with suppress(Exception):
            first = factory()
        if is_parallel(first) or isinstance(first, gym.Env):
            waiting = [first]
            make = lambda: waiting.pop() if waiting else factory()  # noqa: E731
    if is_parallel(first):
        spaces = player.observation_space, first.observation_space(first.possible_agents[0])
        has_agent = [AGENT in getattr(space, "spaces", ()) for space in spaces]
        envs: VectorEnv = AgentsAsEnvs(lambda: wrap(make()), num_envs, agent_id=has_agent == [True, False])
    elif isinstance(first, gym.vector.VectorEnv) and not env_kwargs:
        envs = first
    elif isinstance(first, TensorEnv) and not env_kwargs:  # it cannot be rendered
        with torch.random.fork_rng(devices=[]):  # the envs draw a seed until they have one
            envs = opened(make_vec(factory, num_envs, backend="tensor", device=player.device))
    else:
        options = env_kwargs if isinstance(env, str) else {}
        envs = opened(make_vec(make, num_envs, backend="sync", wrappers=[wrap], **options))
    try:
        yield envs
    finally:
        if is_made:
            envs.closed = True  # else gymnasium would close the user's env with this one
        else:
            envs.close()


def play(
    owner: str,
    policy: Policy,
    envs: VectorEnv,
    num_episodes: int,
    seed: int | None = None,
    explore: bool = False,
    max_episode_steps: int | None = None,
    per_env: int = 1,
) -> CollectStats:
    """Play `num_episodes` in each of `per_env` rows; a seed repeats them, and leaves torch's generator alone.

    An argument that breaks its rule raises a `ParamsError`.
    """
    num_episodes = checked(owner, "num_episodes", num_episodes, PositiveInt)
    seed = checked(owner, "seed", seed, NonNegativeInt | None)
    explore = checked(owner, "explore", explore, Flag)
    limit = checked(owner, "max_episode_steps", max_episode_steps, PositiveInt | None)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):  # a collector draws a seed until it has one
        collector = Collector(policy, envs, max_episode_steps=limit)
    if seed is not None:
        collector.seed(seed)
    return collector.collect(num_episodes=num_episodes * per_env, explore=explore)
