"""Atari games through `AtariWrapper`: ALE's vector env and single envs play the same; lives, stacks, faults."""

import sys
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.envs import EnvAdapter
from rltrainer.errors import CheckpointError, EnvError, MissingExtraError, ParamsError, RLTrainerError

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

CERTAIN: dict[str, Any] = {"noop_max": 0, "fire_on_reset": False}
"""Options of games that begin alike, whatever their seeds."""


def make(num_envs: int = 2, backend: str = "native", game: str = "Breakout", **options: Any) -> Any:
    threads = {"num_threads": 1} if backend == "native" else {}
    wrapper, make_vec = partial(rl.AtariWrapper, **options), rl.make_vec
    kwargs: dict[str, Any] = {"repeat_action_probability": 0.0, **threads}
    return make_vec(f"ALE/{game}-v5", num_envs, backend=backend, wrappers=[wrapper], seed=1, **kwargs)  # type: ignore[arg-type]  # a backend


def played(adapter: EnvAdapter, num_steps: int) -> list[Any]:
    """Play random actions; return all that came of each step: final observations, and those of what began."""
    random, found = np.random.default_rng(3), []
    adapter.reset()
    for _ in range(num_steps):
        actions = random.integers(adapter.action_space.n, size=adapter.num_envs)  # type: ignore[attr-defined]
        step = adapter.step(actions)
        assert step.valid is None  # no cell is lost
        found += [step.next_obs.copy(), step.reward.copy(), step.terminated.copy(), step.truncated.copy()]
        adapter.advance()
        found.append(adapter.obs.copy())
    adapter.close()
    return found


@pytest.mark.parametrize(("game", "options"), [
    ("Breakout", {}),
    ("Breakout", {"terminal_on_life_loss": False, "clip_reward": False, "frame_stack": 2}),
    ("MsPacman", {"clip_reward": False, "frame_skip": 3, "screen_size": 42}),
])  # fmt: skip
def test_both_ways_to_play_are_the_same(game: str, options: dict[str, Any]) -> None:
    both = [played(EnvAdapter(make(2, backend, game, **CERTAIN, **options)), 400) for backend in ("native", "sync")]
    for native, single in zip(*both, strict=True):
        np.testing.assert_array_equal(native, single)
    assert sum(terminated.any() for terminated in both[0][2::5]) >= 2
    assert max(reward.max() for reward in both[0][1::5]) == (10.0 if game == "MsPacman" else 1.0)


@pytest.mark.parametrize("backend", ["native", "sync"])
def test_a_lost_life_is_terminal_and_the_game_goes_on(backend: str) -> None:
    adapter, lives = EnvAdapter(make(1, backend)), []
    adapter.reset()
    while len(lives) < 5:
        step = adapter.step(np.array([1]))
        final = step.next_obs.copy()
        adapter.advance()
        if step.terminated[0]:
            game = adapter.envs.unwrapped
            lives.append(int(game._lives[0]) if backend == "native" else game.call("ale")[0].lives())
            assert not step.truncated[0]
            begins = adapter.obs[0]
            assert (begins == begins[-1]).all()  # a new stack
            assert (begins[-1] == final[0, -1]).all() == (len(lives) < 5)  # of the frame where the life was lost
    assert lives == [4, 3, 2, 1, 5]
    adapter.close()


@pytest.mark.parametrize("backend", ["native", "sync"])
def test_a_time_limit_is_no_termination(backend: str) -> None:
    envs = rl.make_vec(
        "ALE/Pong-v5", 1, backend=backend, wrappers=[rl.AtariWrapper], max_num_frames_per_episode=400  # type: ignore[arg-type]
    )  # fmt: skip
    adapter = EnvAdapter(envs)
    adapter.reset()
    flags = []
    while not flags or not flags[-1][1]:
        step = adapter.step(np.array([0]))
        flags.append((bool(step.terminated[0]), bool(step.truncated[0])))
        adapter.advance()
    assert 90 < len(flags) <= 101
    assert not any(terminated for terminated, _ in flags)
    adapter.close()


def test_a_buffer_stores_frames_once_and_returns_what_was_acted_on() -> None:
    found = []
    for options in ({"frame_stack": 4}, {}):
        envs, policy = make(2), None
        rl.seed(2)
        policy = rl.QNetwork.for_envs(envs, hidden_sizes=())
        spaces = envs.single_observation_space, envs.single_action_space
        buffer = rl.ReplayBuffer(800, *spaces, num_envs=2, seed=4, **options)  # type: ignore[arg-type]
        rl.Collector(policy, envs, buffer).collect(num_steps=800, random=True)
        found.append((buffer.sample(600), buffer.nbytes))
        envs.close()
    (stacked, small), (whole, large) = found
    assert torch.equal(stacked.obs, whole.obs)
    assert torch.equal(stacked.next_obs, whole.next_obs)
    assert stacked.obs.dtype == torch.uint8
    assert stacked.terminated.any()
    assert small < 0.3 * large


def test_games_are_their_seeds() -> None:
    envs = make(3, game="MsPacman")
    first, again = (envs.reset(seed=[11, 12, 12])[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first[1] == first[2]).all()
    assert (first[0] != first[1]).any()
    large = envs.reset(seed=[2**31 + 11, 2**40 + 12, np.int64(12)])[0]  # ALE's have 31 bits
    np.testing.assert_array_equal(large, first)
    mask = np.array([False, True, False])
    envs.step(np.zeros(3, np.int64))
    np.testing.assert_array_equal(envs.reset(seed=[None, 11, None], options={"reset_mask": mask})[0][1], first[0])


def test_a_state_holds_what_was_played() -> None:
    envs = make(2)
    random = np.random.default_rng(1)
    envs.reset(seed=[5, 6])
    for number in range(120):
        *_, terminated, truncated, _ = envs.step(random.integers(4, size=2))
        if (terminated | truncated).any():
            envs.reset(seed=[100 + number] * 2, options={"reset_mask": terminated | truncated})
    state, other = envs.unwrapped.state_dict(), make(2)
    assert len(state["actions"][0]) == 120  # over several lives
    other.reset(seed=1)
    other.unwrapped.load_state_dict(state)
    for _ in range(60):
        actions = random.integers(4, size=2)
        for one, two in zip(envs.step(actions)[:4], other.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(one, two)
    with pytest.warns(UserWarning, match=r"envs \[1\] came to other frames than before: was it another version of "):
        other.unwrapped.load_state_dict(state | {"checks": [state["checks"][0], 7]})


@pytest.mark.parametrize(("change", "text"), [
    ({"seeds": [1]}, "adapter.envs: expected the state of 2 games, found that of others"),
    ({"seeds": [1, -2]}, "adapter.envs.seeds.1: expected an integer in [0, 2**31), found -2"),
    ({"seeds": [2**31, 2]}, "adapter.envs.seeds.0: expected an integer in [0, 2**31), found 2147483648"),
    ({"actions": [torch.zeros(0, dtype=torch.uint8), torch.tensor([4], dtype=torch.uint8)]},
     "adapter.envs.actions.1: expected uint8 actions below 4, found others"),
    ({"actions": [torch.zeros(1), torch.zeros(1)]}, "adapter.envs.actions.0: expected uint8 actions below 4"),
    ({"lives": 3}, "adapter.envs.lives: expected no field of GamesState, found 3"),
])  # fmt: skip
def test_a_state_of_others_is_an_error(change: dict[str, Any], text: str) -> None:
    envs = make(2)
    envs.reset(seed=1)
    with pytest.raises(CheckpointError) as caught:
        envs.unwrapped.load_state_dict(envs.unwrapped.state_dict() | change)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(("env", "options", "kwargs", "backend"), [
    ("ALE/Pong-v5", {}, {}, "native"),
    ("PongNoFrameskip-v4", {"clip_reward": False}, {"full_action_space": True}, "native"),
    ("ALE/Pong-v5", {}, {"render_mode": "rgb_array"}, "sync"),
    ("ALE/Pong-v5", {}, {"mode": 1}, "sync"),
])  # fmt: skip
def test_auto_takes_what_can_do_it(
    env: str, options: Any, kwargs: Any, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "rltrainer"):
        envs = rl.make_vec(env, 1, wrappers=[partial(rl.AtariWrapper, **options)], **kwargs)
    assert f"runs on backend={backend!r}" in caplog.text
    assert envs.single_observation_space == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert envs.single_action_space.n == (18 if kwargs.get("full_action_space") else 6)  # type: ignore[attr-defined]
    assert rl.frame_skip(envs) == 4
    envs.close()


@pytest.mark.parametrize(("call", "kind", "text"), [
    (lambda: rl.AtariWrapper(gym.make("CartPole-v1")), ParamsError,
     "AtariWrapper.env: must be a game of ALE that skips no frames; got "),
    (lambda: rl.AtariWrapper(gym.make("ale_py:ALE/Pong-v5")), ParamsError,
     "AtariWrapper.env: must be a game of ALE that skips no frames; got "),
    (lambda: make(frame_stack=0), ParamsError, "AtariWrapper.frame_stack: must be a positive integer; got 0 (int)"),
    (lambda: make(clip_reward=1), ParamsError, "AtariWrapper.clip_reward: must be True or False; got 1 (int)"),
    (lambda: rl.make_vec("CartPole-v1", 2, backend="native", wrappers=[rl.AtariWrapper]), ParamsError,
     "make_vec.wrappers: 'native' has no single envs to wrap; got "),
    (lambda: rl.make_vec("ALE/Pong-v5", 2, backend="native", wrappers=[rl.AtariWrapper], mode=1), EnvError,
     "make_vec.env: ALE/Pong-v5 cannot be made: "),
])  # fmt: skip
def test_what_is_wrong_is_named(call: Any, kind: type[RLTrainerError], text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(text)
    assert "0x" not in str(caught.value)


def test_steps_that_cannot_be_are_errors_and_do_not_wait() -> None:
    envs = make(2)
    with pytest.raises(EnvError, match=r"AtariVectorEnv.step: reset must be called first"):
        envs.step(np.zeros(2, np.int64))
    envs.reset(seed=1)
    for actions in (np.zeros(3, np.int64), np.array([0, 4]), np.zeros(2)):
        with pytest.raises(ParamsError, match=r"AtariVectorEnv.step.actions: must be 2 integers in \[0, 4\); got "):
            envs.step(actions)
    envs.step(np.array([0, 3], np.int32))
    envs.close()
    with pytest.raises(EnvError, match=r"AtariVectorEnv.step: reset must be called first"):
        envs.step(np.zeros(2, np.int64))


def test_single_games_without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    assert make(1).num_envs == 1  # ALE's own needs none
    with pytest.raises(MissingExtraError, match=r'need OpenCV. Run: pip install "rltrainer\[atari\]"'):
        make(1, "sync")


def test_games_in_workers() -> None:
    envs = make(2, "workers", **CERTAIN)
    np.testing.assert_array_equal(envs.reset(seed=1)[0], make(2, **CERTAIN).reset(seed=1)[0])
    envs.close()


def test_ppo_trains_on_frames_and_is_tested_in_whole_games() -> None:
    rl.seed(1)
    envs, test_envs = make(8), make(2, terminal_on_life_loss=False, clip_reward=False)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(), share_encoder=True))
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs),
        test_collector=rl.Collector(algorithm.policy, test_envs, max_episode_steps=300),
        max_epochs=1, epoch_num_steps=1024, collection_step_num_env_steps=512, batch_size=128,
        test_step_num_episodes=2, seed=1, initial_test=False,
        runtime=rl.RuntimeParams(compile=False), show_progress=False, verbose=False,
    )  # fmt: skip
    info = rl.OnPolicyTrainer(algorithm, params).run()
    assert info.env_step == 1024
    epoch = info.epochs[-1]
    assert epoch.collect_stats is not None
    assert epoch.test_stats is not None
    assert epoch.collect_stats.lengths.max() < 200  # lives
    assert epoch.test_stats.lengths.min() > 100  # games
