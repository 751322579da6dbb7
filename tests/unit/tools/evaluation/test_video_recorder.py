"""Videos of a policy: which episodes, which frames, which files."""

import re
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import EnvError, MissingExtraError, ParamsError, RLTrainerError
from rltrainer.tools.evaluation import VideoRecorder
from rltrainer.tools.evaluation.filming import VideoFile
from tests.fakes import CountingEnv, ScriptedOnPolicy, counting_envs, tiny_actor_critic
from tests.unit.envs.agents.teams import Visitors
from tests.unit.hooks.fake_run import FakeRun
from tests.unit.tools.refusals import refuses

pytest.importorskip("imageio_ffmpeg")


class GrayEnv(CountingEnv):
    """Renders gray: 10 for each step since the reset, brighter by 100 with an odd seed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012  # gymnasium's way
    render_mode = "rgb_array"

    def render(self) -> Any:
        return np.full((48, 65, 3), 10 * self.step_count + 100 * (self.number % 2), np.uint8)


class SilentEnv(CountingEnv):
    render_mode = None


def gray_envs(num_envs: int, backend: Any = "sync", **options: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
    return rl.make_vec(lambda: GrayEnv(**options), num_envs, backend=backend, seed=1)


def frames(path: Path) -> tuple[list[int], float]:
    """Return the mean gray of each frame of a video, and its frames a second."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    run = subprocess.run(command, capture_output=True, check=True)
    about = run.stderr.decode()
    assert ", 66x48" in about  # even
    shown = np.frombuffer(run.stdout, np.uint8).reshape(-1, 48, 66, 3)[:, :, :65]
    return [round(frame.mean()) for frame in shown], float(re.findall(r"([\d.]+) fps", about)[0])


def filmed(hook: VideoRecorder, run: FakeRun) -> None:
    hook.setup(run)
    run.advance(epoch=1, env_step=20)
    hook.post_steps(run)
    hook.shutdown(run)


def run_on(test_envs: Any = None, **params: Any) -> FakeRun:
    algorithm = ScriptedOnPolicy(tiny_actor_critic(counting_envs()))
    tests = None if test_envs is None else rl.Collector(algorithm.policy, test_envs)
    return FakeRun(algorithm, **({"test_collector": tests} | params))


def near(found: list[int], expected: list[int]) -> bool:
    return len(found) == len(expected) and all(abs(a - b) <= 3 for a, b in zip(found, expected, strict=True))


def test_an_episode_of_an_env_of_its_own(tmp_path: Path) -> None:
    filmed(VideoRecorder(tmp_path / "videos", env=lambda: GrayEnv(length=4), seed=1), run_on())
    levels, fps = frames(tmp_path / "videos" / "step_000000020_episode_1.mp4")
    first = levels[0]
    assert near(levels, [first + 10 * i for i in range(5)])  # the reset's frame, and one of each step
    assert fps == 7


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_episodes_of_the_test_envs(num_envs: int, tmp_path: Path) -> None:
    run = run_on(gray_envs(num_envs))
    filmed(VideoRecorder(tmp_path, num_episodes=3, fps=30), run)
    found = [frames(tmp_path / f"step_000000020_episode_{i}.mp4") for i in (1, 2, 3)]
    assert len(list(tmp_path.iterdir())) == 3
    for levels, fps in found:
        assert near(levels, [levels[0] + 10 * i for i in range(6)])
        assert fps == 30
    # The test step that follows begins at the same episodes, which nobody has moved.
    tests = run.params.test_collector
    tests.reset(first_episode=True)
    seeds = [round(100 * (obs[0] % 2)) for obs in tests.adapter.obs.tolist()]
    shown = [round(levels[0], -2) for levels, _ in found]
    assert all(abs(a - b) < 10 for a, b in zip(seeds, shown, strict=False))


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
def test_every_autoreset_mode(mode: Any, tmp_path: Path) -> None:
    envs = gym.vector.SyncVectorEnv([lambda: GrayEnv(length=3), lambda: GrayEnv(length=5)], autoreset_mode=mode)
    filmed(VideoRecorder(tmp_path, num_episodes=3), run_on(envs))
    for number, length in enumerate((3, 5, 3), 1):
        levels, _ = frames(tmp_path / f"step_000000020_episode_{number}.mp4")
        assert near(levels[:3], [levels[0] + 10 * i for i in range(3)])
        assert len(levels) == length + 1


def test_envs_that_step_and_reset_themselves(tmp_path: Path) -> None:
    envs = rl.make_vec("CartPole-v1", 3, backend="native", render_mode="rgb_array", seed=1)
    run = FakeRun(ScriptedOnPolicy(tiny_actor_critic(envs)))
    run.params.test_collector = rl.Collector(run.algorithm.policy, envs)
    filmed(VideoRecorder(tmp_path, num_episodes=4), run)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_000000020_episode_{i}.mp4" for i in (1, 2, 3, 4)]


def test_an_interval_and_a_limit(tmp_path: Path) -> None:
    hook = VideoRecorder(tmp_path, rl.Every(50, "env_step"), lambda: GrayEnv(length=10**9), max_episode_steps=3)
    run = run_on()
    hook.setup(run)
    for _ in range(6):
        run.advance(env_step=20)
        hook.post_steps(run)
    hook.shutdown(run)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_000000{i}_episode_1.mp4" for i in ("060", "100")]
    levels, _ = frames(tmp_path / "step_000000060_episode_1.mp4")
    assert near(levels, [levels[0] + 10 * i for i in range(4)])


class GrayTeam(Visitors):
    """Renders gray: 10 for each step since the reset. Agent a leaves after 3 steps, agent b after 5."""

    def render(self) -> Any:
        return np.full((48, 65, 3), 10 + 10 * self.num_steps, np.uint8)


@pytest.mark.parametrize(("num_copies", "last", "options", "num_frames"), [
    (1, 5, {}, 6), (2, 5, {}, 6),  # to the end of the last agent's
    (1, 1000, {"max_episode_steps": 4}, 5),
])  # fmt: skip
def test_episodes_of_agents_are_their_teams(
    num_copies: int, last: int, options: dict[str, Any], num_frames: int, tmp_path: Path
) -> None:
    envs = rl.AgentsAsEnvs(partial(GrayTeam, {"a": (0, 3), "b": (0, last)}), num_copies, seed=1)
    policy = rl.ActorCritic.for_envs(envs, hidden_sizes=(4,))
    run, teams = FakeRun(SimpleNamespace(policy=policy), test_collector=rl.Collector(policy, envs)), envs.teams
    filmed(VideoRecorder(tmp_path, num_episodes=3, **options), run)
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == [f"step_000000020_episode_{i}.mp4" for i in (1, 2, 3)]
    for name in names:
        assert near(frames(tmp_path / name)[0], [10 * (i + 1) for i in range(num_frames)])
    assert envs.teams is teams


def test_nothing_of_the_run_changes(tmp_path: Path) -> None:
    run = run_on(gray_envs(2))
    tests, before = run.params.test_collector, torch.get_rng_state()
    first = tests.collect(num_episodes=2, explore=False)
    filmed(VideoRecorder(tmp_path), run)
    assert torch.equal(torch.get_rng_state(), before)
    tests.reset(first_episode=True)
    again = tests.collect(num_episodes=2, explore=False)
    assert first.returns.tolist() == again.returns.tolist()


def test_memory_does_not_grow_with_the_episode(tmp_path: Path) -> None:
    video = VideoFile(tmp_path / "long.mp4", 30)
    frame = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    video.add(frame)
    tracemalloc.start()
    for _ in range(300):
        video.add(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    video.close()
    assert peak < 20 * frame.nbytes < 300 * frame.nbytes


class FailingEnv(GrayEnv):
    def step(self, action: Any) -> Any:
        if self.step_count == 2:
            raise RuntimeError("the motor is broken")
        return super().step(action)


def test_what_is_not_complete_is_discarded(tmp_path: Path) -> None:
    hook, run = VideoRecorder(tmp_path, env=FailingEnv), run_on()
    hook.setup(run)
    run.advance(epoch=1)
    refuses(EnvError, "the motor is broken", hook.post_steps, run)
    hook.shutdown(run)
    assert list(tmp_path.iterdir()) == []


WRITTEN = np.zeros((48, 64, 3), np.uint8)


@pytest.mark.parametrize(("first", "frame", "found"), [
    (None, None, "NoneType"), (None, np.zeros((4, 4, 4), np.uint8), r"uint8 \[4, 4, 4\]"),
    (None, np.full((4, 4, 3), 1.5), r"float64 \[4, 4, 3\]"), (None, np.full((4, 4, 3), np.nan), r"float64 \[4, 4, 3\]"),
    (WRITTEN, np.zeros((48, 65, 3), np.uint8), r"uint8 \[48, 65, 3\]"),
])  # fmt: skip
def test_what_is_no_frame_or_of_another_size_is_named(first: Any, frame: Any, found: str, tmp_path: Path) -> None:
    video, size = VideoFile(tmp_path / "a.mp4", 30), "H, W, 3" if first is None else "48, 64, 3"
    if first is not None:
        video.add(first)
    text = rf"a.mp4: expected a frame uint8 \[{size}\] from render\(\), found {found}"
    refuses(EnvError, text, video.add, frame)
    video.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_video_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RLTrainerError, match=r"file/a.mp4: the video could not be written"):
        VideoFile(tmp_path / "file" / "a.mp4", 30).add(WRITTEN)


def test_there_must_be_something_to_film(tmp_path: Path) -> None:
    text = "VideoRecorder.env: must be given where no Collector has test envs; got None.*Pass a gymnasium id or a fac"
    refuses(ParamsError, text, VideoRecorder(tmp_path).setup, run_on())
    text = r'VideoRecorder.env: must render frames; got render_mode=None. Make it with .*render_mode="rgb_array"'
    for run, env in [(run_on(counting_envs()), None), (run_on(), SilentEnv)]:
        refuses(ParamsError, text, VideoRecorder(tmp_path, env=env).setup, run)


def test_no_ffmpeg_is_an_error_that_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    text = r'needs ffmpeg to write videos: .*\. Run: pip install "rltrainer\[video\]"'
    refuses(MissingExtraError, f"VideoRecorder: {text}", VideoRecorder, tmp_path)
    actor = tiny_actor_critic(counting_envs())
    refuses(MissingExtraError, f"record: {text}", rl.record, actor, GrayEnv, tmp_path / "a.mp4")
