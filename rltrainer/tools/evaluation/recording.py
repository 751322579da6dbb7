"""A film of what a policy does."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym

from rltrainer.algorithms.meant_policy import Player, policy_of
from rltrainer.collect import CollectStats
from rltrainer.envs.agents.parallel_env import ParallelEnv
from rltrainer.errors import EnvError, ParamsError, field_error_text
from rltrainer.tools.evaluation.filmed_envs import FilmedAgents, FilmedEnv
from rltrainer.tools.evaluation.frames import frames_per_second, require_frames, with_hint
from rltrainer.tools.evaluation.playing import Env, play, vector_of
from rltrainer.tools.evaluation.video_file import FORMATS, VideoFile, require_encoder
from rltrainer.validation.field_rules import AnyPath, PositiveFloat, checked


def record(
    policy: Player,
    env: Env | ParallelEnv | str | Callable[[], Env | ParallelEnv],
    path: str | os.PathLike[str],
    *,
    episodes: int = 1,
    max_episode_steps: int | None = None,
    seed: int | None = None,
    explore: bool = False,
    fps: float | None = None,
) -> CollectStats:
    """Film whole episodes of a policy, one after the other in one file: an MP4, or a GIF.

    No display is needed. Frames go to ffmpeg one by one as they are drawn: how long an episode is makes no difference
    to the memory that it takes.

    Args:
        policy: a policy, an algorithm, or the path of a file, of a checkpoint, or of a run's folder: its best.
        env: a gymnasium id; or a factory of an env, or an env, made with `render_mode="rgb_array"`. An env stays open.
            Of a PettingZoo parallel env the agents share the policy, as `AgentsAsEnvs` has it: what is returned are
            `episodes` of each agent.
        path: the file, whose name ends in `.mp4` or `.gif`; missing folders are made, an existing file is replaced.
        episodes: how many.
        max_episode_steps: cuts an episode that would be longer; None waits for its end.
        seed: of the episodes; with one, each call plays the same.
        explore: whether the policy explores.
        fps: frames a second; None takes the env's own, or 30. A GIF shows at most 50.

    Returns:
        what the episodes came to.

    Raises:
        ParamsError: an argument breaks its rule, or the env renders no frames.
        MissingExtraError: there is no ffmpeg; the extra `video` brings one.
        EnvError: the env failed, or could not be rendered. No file is left then.
    """
    owner = "record"
    file = Path(checked(owner, "path", path, AnyPath))
    if file.suffix.lower() not in FORMATS:
        raise ParamsError(field_error_text(owner, "path", f"must end in {' or '.join(FORMATS)}", str(file)))
    fps = checked(owner, "fps", fps, PositiveFloat | None)
    require_encoder(owner)
    player, videos = policy_of(owner, policy), list[VideoFile]()

    def filmed(made: Any) -> Any:
        require_frames("record.env", made)
        videos.append(VideoFile(file, fps or frames_per_second(made)))
        return FilmedEnv(made, videos[0]) if isinstance(made, gym.Env) else FilmedAgents(made, videos[0])

    try:
        with vector_of(owner, env, player, wrappers=[filmed], render_mode="rgb_array") as envs:
            stats = play(owner, player, envs, episodes, seed, explore, max_episode_steps, envs.num_envs)
        videos[0].close()
        return stats
    except BaseException as error:
        for video in videos:
            video.discard()
        if isinstance(error, EnvError) and (text := with_hint(str(error))) != str(error):
            raise EnvError(text) from error  # some libraries look for a display when the env is made
        raise
