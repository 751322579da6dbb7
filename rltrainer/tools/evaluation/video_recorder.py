"""Videos of what the policy does."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import torch

from rltrainer.collect import Collector
from rltrainer.envs import AgentsAsEnvs, make_vec
from rltrainer.envs.deferred_envs import opened
from rltrainer.errors import ParamsError
from rltrainer.hooks.hook import TrainerContext, TrainerHook
from rltrainer.interval import Every, as_every
from rltrainer.seeding import derive_seed
from rltrainer.tools.evaluation.filming import FilmedEnvs, frames_per_second, require_encoder, require_frames
from rltrainer.validation.field_rules import AnyPath, NonNegativeInt, PositiveFloat, PositiveInt, Rule, checked

EnvOrFactory = Annotated[
    Any, Rule("a gymnasium id or a factory of envs", lambda v: (isinstance(v, str) and bool(v)) or callable(v))
]


class VideoRecorder(TrainerHook):
    """Records whole episodes of the policy, without exploration, at the end of a training step, each as an MP4 file.

    The file `step_000020480_episode_1.mp4` is from env step 20480; offline, the number counts gradient steps. Episodes
    are neither trained on nor counted, and change no random number of the run. With a seed of envs or run, they are the
    first episodes of a test step; an env of its own plays the same episodes at each interval. Frames go to ffmpeg one
    by one as they are drawn: a long episode takes no more memory. An `AgentsAsEnvs` has episodes of teams.

    Args:
        folder: for the files; a missing one is made.
        every: the interval; an int counts training steps.
        env: a gymnasium id, or a factory of an env that renders with `"rgb_array"`; None records the test envs, which
            must be made with `render_mode="rgb_array"`.
        num_episodes: how many, each time.
        fps: frames a second; None takes the env's own, or 30.
        max_episode_steps: cuts an episode that would be longer; None waits for its end.
        seed: of the env of its own; None takes the trainer's.

    Raises:
        ParamsError: an argument breaks its rule; or, when the run starts, there is nothing to record.
        MissingExtraError: there is no ffmpeg; the extra `video` brings one.
    """

    def __init__(
        self,
        folder: str | Path,
        every: int | Every = Every(1, "epoch"),
        env: str | Callable[[], gym.Env[Any, Any]] | None = None,
        *,
        num_episodes: int = 1,
        fps: float | None = None,
        max_episode_steps: int | None = None,
        seed: int | None = None,
    ) -> None:
        owner = "VideoRecorder"
        self.folder = Path(checked(owner, "folder", folder, AnyPath))
        self.every: Every = as_every(owner, every)
        self.env = checked(owner, "env", env, EnvOrFactory | None)
        self.num_episodes = checked(owner, "num_episodes", num_episodes, PositiveInt)
        self.fps = checked(owner, "fps", fps, PositiveFloat | None)
        self.max_episode_steps = checked(owner, "max_episode_steps", max_episode_steps, PositiveInt | None)
        self._own_seed = checked(owner, "seed", seed, NonNegativeInt | None)
        self._seed = self._own_seed or 0
        require_encoder(owner)
        self._envs: FilmedEnvs | None = None
        self._num_agents = 1
        self._collector: Collector | None = None

    def seed(self, seed: int) -> None:
        """Seed the env of its own, unless it has a seed."""
        self._seed = seed if self._own_seed is None else self._own_seed

    def setup(self, ctx: TrainerContext) -> None:
        """Make the env, or find the test envs; a `ParamsError` if they do not render."""
        envs, seed = self._make_envs(ctx)
        require_frames("VideoRecorder.env", envs)
        agents = envs.unwrapped if isinstance(envs.unwrapped, AgentsAsEnvs) else None
        self._envs = FilmedEnvs(envs if agents is None else agents.teams, self.fps or frames_per_second(envs))
        if agents is not None:
            agents.teams, self._num_agents = self._envs, agents.num_agents
        played = self._envs if agents is None else envs
        with torch.random.fork_rng(devices=[]):  # a collector draws a seed where it was given none
            self._collector = Collector(ctx.algorithm.policy, played, max_episode_steps=self.max_episode_steps)
        self._collector.seed(seed)

    def post_steps(self, ctx: TrainerContext) -> None:
        """Record, if that is due."""
        if self._envs is not None and self._collector is not None and ctx.crossed(self.every):
            ctx.once(self._record, ctx, self._envs, self._collector)

    def _record(self, ctx: TrainerContext, envs: FilmedEnvs, collector: Collector) -> None:
        step, is_complete = ctx.env_step or ctx.gradient_step, False
        names = [f"step_{step:09d}_episode_{i + 1}.mp4" for i in range(self.num_episodes)]
        envs.begin([self.folder / name for name in names])
        try:
            collector.reset(first_episode=True)
            collector.collect(num_episodes=self.num_episodes * self._num_agents, explore=False)
            is_complete = True
        finally:
            envs.end(is_complete)

    def shutdown(self, ctx: TrainerContext) -> None:
        """Close the env of its own."""
        if self._collector is not None:
            if self.env is not None:
                self._collector.close()
            elif isinstance(agents := self._collector.envs.unwrapped, AgentsAsEnvs) and self._envs is not None:
                agents.teams = self._envs.env
        self._envs = self._collector = None

    def _make_envs(self, ctx: TrainerContext) -> tuple[gym.vector.VectorEnv[Any, Any, Any], int]:
        # The second value is the seed that the episodes' seeds derive from.
        if self.env is not None:
            options: Any = {"render_mode": "rgb_array"} if isinstance(self.env, str) else {}
            return opened(make_vec(self.env, 1, backend="sync", **options)), self._seed
        tests, seed = ctx.params.test_collector, ctx.params.seed
        if not isinstance(tests, Collector):
            rule, hint = "must be given where no Collector has test envs", "Pass a gymnasium id or a factory."
            raise ParamsError.about("VideoRecorder", "env", rule, None, hint)
        return tests.envs, self._seed if seed is None else derive_seed(seed, "test_collector")
