"""A policy's episodes as a video, or in a window."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import EnvError, ParamsError
from tests.fakes import tiny_actor_critic
from tests.unit.tools.evaluation.test_evaluate_policy import policy
from tests.unit.tools.evaluation.test_video_recorder import FailingEnv, GrayEnv, filmed, frames, near, run_on
from tests.unit.tools.refusals import refuses

pytest.importorskip("imageio_ffmpeg")


def shown(path: Path) -> list[np.ndarray]:
    """Return the frames of a GIF."""
    from PIL import Image, ImageSequence

    with Image.open(path) as image:
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)]


class TinyEnv(GrayEnv):
    """Renders as MinAtar does: floats, and a few of them."""

    def render(self) -> Any:
        return np.full((10, 12, 3), 0.2 * self.step_count)


def test_episodes_follow_each_other_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "agent.mp4"
    stats = rl.record(policy(), lambda: GrayEnv(length=3), path, num_episodes=2, seed=2)
    levels, fps = frames(path)
    first, second = levels[0], levels[4]
    assert near(levels, [first, first + 10, first + 20, first + 30, second, second + 10, second + 20, second + 30])
    assert (fps, stats.lengths.tolist()) == (7, [3, 3])
    assert [each.name for each in path.parent.iterdir()] == ["agent.mp4"]


def test_a_seed_a_limit_and_frames_a_second(tmp_path: Path) -> None:
    for name in ("one.mp4", "other.mp4"):
        options: dict[str, Any] = {"seed": 5, "max_episode_steps": 4, "fps": 12.5}
        stats = rl.record(policy(), lambda: GrayEnv(length=10**9), tmp_path / name, **options)
        assert stats.lengths.tolist() == [4]
    one, other = frames(tmp_path / "one.mp4"), frames(tmp_path / "other.mp4")
    assert one == other
    assert (len(one[0]), one[1]) == (5, 12.5)


def test_a_gif(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rl.record(policy(), lambda: GrayEnv(length=4), tmp_path / "agent.GIF", seed=1)
    with image.open(tmp_path / "agent.GIF") as film:
        assert (film.size, film.info["loop"]) == ((65, 48), 0)  # for ever
    levels = [round(each.mean()) for each in shown(tmp_path / "agent.GIF")]
    assert near(levels, [levels[0] + 10 * i for i in range(5)])
    # Few pixels are enlarged, and floats are shares of 255.
    rl.record(policy(), TinyEnv(length=2), tmp_path / "tiny.gif", seed=1)
    assert [each.shape for each in shown(tmp_path / "tiny.gif")] == [(200, 240, 3)] * 3
    assert [np.unique(each).tolist() for each in shown(tmp_path / "tiny.gif")] == [[0], [51], [102]]


def test_an_id_and_an_env_that_stays_open(tmp_path: Path) -> None:
    actor = tiny_actor_critic(rl.make_vec("CartPole-v1", 1))
    actor.save(tmp_path / "policy.safetensors")
    stats = rl.record(tmp_path / "policy.safetensors", "CartPole-v1", tmp_path / "id.mp4", seed=1)
    with gym.make("CartPole-v1", render_mode="rgb_array") as env:
        again = rl.record(actor, env, tmp_path / "env.mp4", seed=1)
        env.reset()
        assert env.render() is not None
    assert stats.lengths.tolist() == again.lengths.tolist()
    assert (tmp_path / "id.mp4").read_bytes() == (tmp_path / "env.mp4").read_bytes()


def test_what_is_not_complete_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "agent.mp4").write_text("an older one")
    refuses(EnvError, "the motor is broken", rl.record, policy(), FailingEnv, tmp_path / "agent.mp4")
    assert [each.name for each in tmp_path.iterdir()] == ["agent.mp4"]
    assert (tmp_path / "agent.mp4").read_text() == "an older one"


class Blind(GrayEnv):
    """Cannot render, or not even be made."""

    error: Exception = RuntimeError("no EGL device")
    fails_early = False

    def __init__(self) -> None:
        super().__init__()
        if self.fails_early:
            raise self.error

    def render(self) -> Any:
        raise self.error


GL, SDL = r"Set MUJOCO_GL=egl .* or MUJOCO_GL=osmesa", r"Set SDL_VIDEODRIVER=dummy before Python"


@pytest.mark.parametrize("fails_early", [True, False])
@pytest.mark.parametrize(("error", "hint"), [
    (RuntimeError("an OpenGL platform library has not been loaded into this process"), GL),
    (AttributeError("'NoneType' object has no attribute 'glGetError'"), GL),
    (RuntimeError("No available video device"), SDL),
    (RuntimeError("the paint is dry"), None),
])  # fmt: skip
def test_what_helps_without_a_display(
    error: Exception, hint: str | None, fails_early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Blind, "error", error)
    monkeypatch.setattr(Blind, "fails_early", fails_early)
    said = refuses(EnvError, re.escape(str(error)), rl.record, policy(), Blind, tmp_path / "agent.mp4")
    found = re.findall("MUJOCO_GL=egl|SDL_VIDEODRIVER", said)
    assert len(found) == (hint is not None)
    assert hint is None or re.search(hint, said)
    if not fails_early:
        assert "the env could not be rendered" in said
        with pytest.raises(EnvError, match="the env could not be rendered.*" + (hint or "")):
            filmed(rl.VideoRecorder(tmp_path, env=Blind), run_on())
    assert list(tmp_path.iterdir()) == []


def printed(call: str, folder: Path, environ: dict[str, str]) -> tuple[list[str], str]:
    """Return the lines that a program prints which calls this, with a policy, and its stderr."""
    pytest.importorskip("pygame")
    code = f"import os, rltrainer as rl; policy = rl.ActorCritic.for_envs(rl.make_vec('CartPole-v1', 1)); {call}"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines(), run.stderr


def test_nothing_looks_for_a_display_where_there_is_none(tmp_path: Path) -> None:
    call = "print(rl.record(policy, 'CartPole-v1', 'a.gif', seed=1, max_episode_steps=3).lengths, dict(os.environ))"
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "XDG_RUNTIME_DIR")
    environ = {name: value for name, value in os.environ.items() if name not in displays}
    lines, errors = printed(call, tmp_path, environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert lines[-1].startswith("[3]")
    assert "SDL_VIDEODRIVER" not in lines[-1]
    assert "XDG_RUNTIME_DIR" not in errors  # SDL's word


class Window(GrayEnv):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012  # gymnasium's way
    render_mode = "human"


def test_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    text = r"watch: there is no display for a window .*rl.record\(policy, env, path\) writes a video without one"
    refuses(EnvError, text, rl.watch, policy(), Window)
    monkeypatch.setenv("DISPLAY", ":0")
    stats = rl.watch(policy(), lambda: Window(length=3), num_episodes=2, seed=1)
    assert stats.lengths.tolist() == [3, 3]
    text = "watch.env: must show a window; got render_mode='rgb_array'. Make it with"
    refuses(ParamsError, text, rl.watch, policy(), GrayEnv)


def test_a_window_of_an_env_by_its_id(tmp_path: Path) -> None:
    call = "print(rl.watch(policy, 'CartPole-v1', seed=1, max_episode_steps=5).lengths)"
    environ = os.environ | {"SDL_VIDEODRIVER": "dummy", "PYTHONPATH": os.pathsep.join(sys.path)}
    assert printed(call, tmp_path, environ)[0][-1] == "[5]"
