"""Every training episode can be stepped through again, from what was recorded of it."""

import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

import rltrainer as rl
from rltrainer.envs.adapter import episodes as recorder
from rltrainer.errors import CheckpointError, EnvError, ParamsError
from rltrainer.state.state_file import write_state
from tests.fakes import CountingEnv
from tests.resume.runs import build
from tests.resume.test_midway import cut
from tests.resume.wanderers import Saveable, Stranger, Wanderer


def wrapped() -> gym.Env[Any, Any]:
    return TimeLimit(Wanderer(True), 11)


def make_collector(envs: Any, cls: Any = rl.Collector, **options: Any) -> Any:
    rl.seed(3)
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(4,))
    spaces = (envs.single_observation_space, envs.single_action_space)
    collector = cls(policy, envs, rl.ReplayBuffer(5_000, *spaces, num_envs=envs.num_envs), **options)
    collector.seed(5)
    return collector


ENVS: dict[str, tuple[Callable[[], Any], Any]] = {
    "sync": (partial(rl.make_vec, Wanderer, 3, backend="sync"), Wanderer),
    "dict": (partial(rl.make_vec, wrapped, 2, backend="sync"), wrapped),
    "workers": (partial(rl.make_vec, Wanderer, 3, backend="workers", num_workers=3), Wanderer),
    **{mode.value: (lambda mode=mode: gym.vector.SyncVectorEnv([Wanderer] * 2, autoreset_mode=mode), Wanderer)
       for mode in AutoresetMode},
}  # fmt: skip


def episodes_of(buffer: rl.ReplayBuffer, env: int) -> list[Any]:
    """Return the episodes of an env that a buffer holds, one after the other."""
    cells = torch.from_numpy(np.arange(buffer._ring.written[env]) * buffer.num_envs + env)
    each = buffer._ring.transitions(cells, 1, 1.0)
    ends = (each.terminated | each.truncated).nonzero().flatten().tolist()
    return [each[first + 1 : end + 1] for first, end in zip([-1, *ends[:-1]], ends, strict=True)]


def assert_replayed(folder: Path, buffer: Any, make_env: Any) -> int:
    """Compare all episodes of a buffer with their records; return how many there are."""
    count = 0
    for env in range(buffer.num_envs):
        for number, expected in enumerate(episodes_of(buffer, env)):
            steps = list(rl.replay_episode(folder, env, number, make_env))
            assert len(steps) == len(expected.reward)
            for name in ("obs", "action", "next_obs"):
                found = [getattr(step, name) for step in steps]
                if isinstance(found[0], dict):
                    found, there = [each["place"] for each in found], getattr(expected, name)["place"]
                else:
                    there = getattr(expected, name)
                np.testing.assert_array_equal(np.stack(found), there.numpy())
            for name in ("reward", "terminated", "truncated"):
                found = np.array([getattr(step, name) for step in steps])
                np.testing.assert_array_equal(found.astype(np.float32), getattr(expected, name).float().numpy())
            count += 1
    return count


@pytest.mark.parametrize("name", ENVS)
def test_every_episode_comes_again(name: str, tmp_path: Path) -> None:
    make_envs, make_env = ENVS[name]
    envs = make_envs()
    with closing(envs):
        collector = make_collector(envs)
        record = collector.record_episodes(tmp_path / "episodes")
        for _ in range(4):
            collector.collect(num_steps=50 * envs.num_envs)
            record.flush()
        assert len(list((tmp_path / "episodes").iterdir())) == 4
        assert assert_replayed(tmp_path, collector.buffer, make_env) > 15
        assert assert_replayed(tmp_path / "episodes", collector.buffer, make_env) > 15


def test_episodes_of_batched_collection(tmp_path: Path) -> None:
    envs = rl.make_vec(Wanderer, 3, backend="workers", num_workers=3)
    with closing(envs):
        collector = make_collector(envs, rl.BatchedCollector, max_trajectory_length=9)
        record = collector.record_episodes(tmp_path)
        collector.collect(num_steps=300)
        record.flush()
        assert assert_replayed(tmp_path, collector.buffer, Wanderer) > 30


def test_episodes_of_async_collection(tmp_path: Path) -> None:
    make_envs = partial(rl.make_vec, Wanderer, 2, backend="sync")
    policy = rl.SquashedActorCritic.for_envs(make_envs(), hidden_sizes=(4,))
    buffer = rl.ReplayBuffer(5_000, policy.observation_space, policy.action_space, num_envs=4)
    collector = rl.AsyncCollector(policy, make_envs, 2, buffer)
    with closing(collector):
        collector.seed(1)
        record = collector.record_episodes(tmp_path)
        for _ in range(3):
            collector.collect(num_steps=160)
            record.flush()
        assert assert_replayed(tmp_path, buffer, Wanderer) > 15


def test_a_limit_of_the_collectors_ends_the_record_too(tmp_path: Path) -> None:
    envs = rl.make_vec(Wanderer, 2, backend="sync")
    collector = make_collector(envs, max_episode_steps=4)
    record = collector.record_episodes(tmp_path)
    stats = collector.collect(num_episodes=10)
    record.flush()
    assert stats.lengths.max() == 4
    assert assert_replayed(tmp_path, collector.buffer, Wanderer) == 10


def test_episodes_after_a_resume_are_recorded_as_a_whole(tmp_path: Path) -> None:
    """What is recorded twice, as the run went on after its checkpoint, counts once."""
    killed, resumed = (make_collector(rl.make_vec(Wanderer, 2, backend="sync")) for _ in range(2))
    record = killed.record_episodes(tmp_path / "episodes")
    killed.collect(num_steps=120)
    record.flush()
    cut(killed, resumed, tmp_path)
    killed.collect(num_steps=60)  # of which a kill leaves nothing but the record
    record.flush()
    record = resumed.record_episodes(tmp_path / "episodes")
    resumed.collect(num_steps=120)
    record.flush()
    assert len(list((tmp_path / "episodes").iterdir())) == 3
    assert assert_replayed(tmp_path, resumed.buffer, Wanderer) > 10


@pytest.mark.parametrize("name", ["ppo_midway", "dqn_midway", "ppo_episodes"])
def test_a_run_that_was_broken_off_has_all_its_episodes(name: str, tmp_path: Path) -> None:
    def stop(epoch: int, env_step: int, gradient_step: int) -> str:
        raise KeyboardInterrupt

    def trainer(**fields: Any) -> Any:
        return build(name, checkpoint=rl.CheckpointParams(tmp_path, record_episodes=True, signals=False), **fields)

    for _ in range(2):
        broken_off = trainer()
        broken_off.execute_epoch()
        object.__setattr__(broken_off.params, "save_checkpoint_fn", stop)
        with pytest.raises(KeyboardInterrupt):
            broken_off.run()
    finished = trainer()
    finished.run()
    episodes = finished.params.training_collector.adapter.state_dict()["clock"]["episode"]
    for env, count in enumerate(episodes):
        assert count >= 5
        for number in range(count):
            steps = list(rl.replay_episode(tmp_path, env, number, lambda: CountingEnv(truncates=True)))
            assert [step.next_obs[1] for step in steps] == [1, 2, 3, 4, 5]
            assert [step.truncated for step in steps] == [False] * 4 + [True]
        with pytest.raises(CheckpointError, match=f"env {env}, episode {count} was not recorded"):
            rl.replay_episode(tmp_path, env, count, CountingEnv)


def test_nothing_is_recorded_any_more_after_a_run(tmp_path: Path) -> None:
    collector = make_collector(rl.make_vec(Wanderer, 2, backend="sync"))
    record = collector.record_episodes(tmp_path)
    collector.collect(num_steps=100)
    record.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 1
    collector.collect(num_steps=100)
    record.flush()
    assert sorted(tmp_path.iterdir()) == files


def test_offline_there_is_nothing_to_record(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=r"^OfflineTrainerParams\.checkpoint: must record no episodes; got "):
        build("offline_bc", checkpoint=rl.CheckpointParams(tmp_path, record_episodes=True))


def test_random_actions_aside_are_not_recorded(tmp_path: Path) -> None:
    collector = make_collector(rl.make_vec(Wanderer, 2, backend="sync"))
    record = collector.record_episodes(tmp_path)
    collector.collect_random(60)
    collector.collect(num_steps=100)
    record.flush()
    assert assert_replayed(tmp_path, collector.buffer, Wanderer) > 3


def test_frames_are_rendered(tmp_path: Path) -> None:
    envs = rl.make_vec("CartPole-v1", 2)
    collector = rl.Collector(rl.ActorCritic.for_envs(envs), envs)
    record = collector.record_episodes(tmp_path)
    collector.collect(num_episodes=3)
    record.flush()
    make_env = partial(gym.make, "CartPole-v1", render_mode="rgb_array")
    steps = list(rl.replay_episode(tmp_path, 1, 0, make_env))
    assert all(step.frame.shape == (400, 600, 3) for step in steps)
    assert steps[-1].terminated
    assert (steps[0].frame != steps[-1].frame).any()


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_PENDING_NBYTES", 2_000)
    collector = make_collector(rl.make_vec(Wanderer, 2, backend="sync"))
    record = collector.record_episodes(tmp_path)
    for _ in range(50):
        collector.collect(num_steps=20)
        assert record._nbytes <= 2_000
    files = len(list(tmp_path.iterdir()))
    assert 5 < files < 40
    record.flush()
    assert assert_replayed(tmp_path, collector.buffer, Wanderer) > 30


# Errors


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    collector = make_collector(rl.make_vec(Wanderer, 2, backend="sync"))
    record = collector.record_episodes(folder / "episodes")
    collector.collect(num_steps=200)
    record.flush()
    return folder


def test_what_was_not_recorded(run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"^{tmp_path}: no episode of it was recorded"):
        rl.replay_episode(tmp_path, 0, 0, Wanderer)
    with pytest.raises(CheckpointError, match=r"env 2, episode 0 was not recorded: there are the envs \[0, 1\]"):
        rl.replay_episode(run, 2, 0, Wanderer)
    with pytest.raises(CheckpointError, match=r"env 1, episode 999 was not recorded: env 1 has episodes up to \d+$"):
        rl.replay_episode(run, 1, 999, Wanderer)


def test_another_env(run: Path) -> None:
    with pytest.raises(ParamsError, match="^replay_episode.make_env: must be a factory of one env.*; got 'CartPole"):
        rl.replay_episode(run, 0, 0, "CartPole-v1")  # type: ignore[arg-type]  # the mistake
    text = r"^env 0, episode 0 (did not end as it did|ended after \d+ steps instead of \d+) when its actions were "
    with pytest.raises(EnvError, match=text + "repeated: make_env must make the env of the run"):
        list(rl.replay_episode(run, 0, 0, Stranger))
    with pytest.raises(EnvError, match="ended after 1 steps instead of"):
        list(rl.replay_episode(run, 0, 0, lambda: TimeLimit(Wanderer(), 1)))
    for space in (gym.spaces.Discrete(2), gym.spaces.Box(2, 3, Wanderer.action_space.shape)):
        another = type("Another", (Wanderer,), {"action_space": space})
        with pytest.raises(EnvError, match=r"^env 0, episode 0 has actions outside .*: \[.* must make the env"):
            list(rl.replay_episode(run, 0, 0, another))


def test_the_env_is_closed(run: Path) -> None:
    closed = []

    class Closing(Wanderer):
        def close(self) -> None:
            closed.append(1)

    for _ in rl.replay_episode(run, 0, 0, Closing):
        pass
    steps = rl.replay_episode(run, 0, 1, Closing)
    next(steps)
    steps.close()  # type: ignore[attr-defined]  # a generator
    assert closed == [1, 1]


COLUMNS = ("env", "number", "seed", "length", "digest", "terminated", "truncated")


@pytest.mark.parametrize("scalars", [COLUMNS, *((name,) for name in COLUMNS)])
def test_a_record_of_scalars_is_named(scalars: tuple[str, ...], tmp_path: Path) -> None:
    state: Any = {name: torch.zeros(1, dtype=torch.int64) for name in COLUMNS[:5]}
    state |= {name: torch.zeros(1, dtype=torch.bool) for name in COLUMNS[5:]} | {"actions": torch.zeros(0)}
    path = tmp_path / "000000-0.safetensors"
    write_state(path, "episodes", state | {name: state[name][0] for name in scalars})
    with pytest.raises(CheckpointError, match=rf"^{path}: \w+: expected (int64|bool) \[1\], found (int64|bool) \("):
        rl.replay_episode(tmp_path, 0, 0, Wanderer)


def test_a_damaged_record_is_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (path,) = (tmp_path / "run" / "episodes").iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=path.name):
        rl.replay_episode(tmp_path / "run", 0, 0, Wanderer)


@pytest.mark.parametrize(
    "make_envs", [partial(rl.make_vec, "CartPole-v1", 8), partial(rl.make_vec, Saveable, 2, backend="sync")]
)
def test_envs_whose_episodes_cannot_be_repeated(make_envs: Any, tmp_path: Path) -> None:
    envs = make_envs()
    policy_class: Any = rl.ActorCritic
    collector = rl.Collector(policy_class.for_envs(envs), envs)
    with pytest.raises(ParamsError, match="^Collector.record_episodes.folder: must be a path; got 3"):
        collector.record_episodes(3)  # type: ignore[arg-type]  # on purpose
    text = "^CheckpointParams.record_episodes: must be False for envs whose episodes do not follow from their seeds"
    with pytest.raises(ParamsError, match=text):
        collector.record_episodes(tmp_path)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rltrainer.envs.adapter.episodes.write_state", full)
    collector = make_collector(rl.make_vec(Wanderer, 2, backend="sync"))
    record = collector.record_episodes(tmp_path)
    collector.collect(num_steps=200)
    with pytest.raises(CheckpointError, match="episodes could not be written .*No space left"):
        record.flush()
    monkeypatch.undo()
    record.flush()
    assert assert_replayed(tmp_path, collector.buffer, Wanderer) > 5
