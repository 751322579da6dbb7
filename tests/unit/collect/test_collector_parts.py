"""A collector whose envs are not made yet, and the part of them that a shard of a run takes."""

import copy
import types
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import rltrainer as rl
from rltrainer.collect.async_worker import CollectingProgram
from rltrainer.collect.collector import require_collector
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.envs.deferred_envs import DeferredEnvs
from rltrainer.errors import CheckpointError, ParamsError, ReplayBufferError, SpaceError
from rltrainer.seeding import derive_seed

OWNER = "OnPolicyTrainerParams.training_collector"


class Counted(gym.Env[Any, Any]):
    """Counts the envs that are open."""

    num_open = 0
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        Counted.num_open += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        obs = self.np_random.random(2, dtype=np.float32)
        return obs, float(action), bool(obs[1] > 0.8), False, {"x": 1.0}

    def close(self) -> None:
        Counted.num_open -= 1


@pytest.fixture(autouse=True)
def _none_open() -> None:
    Counted.num_open = 0


@pytest.fixture
def _under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)


under_torchrun = pytest.mark.usefixtures("_under_torchrun")


def made(num_envs: int = 4, buffer: Any = None, seed: int | None = None, **options: Any) -> rl.Collector:
    torch.manual_seed(0)
    envs = rl.make_vec(Counted, num_envs, backend="sync", seed=seed)
    policy = rl.ActorCritic.for_envs(envs)
    return rl.Collector(policy, envs, buffer, **options)


def replay(num_envs: int = 4, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(400, Counted.observation_space, Counted.action_space, num_envs, **options)


def buffer_of(kind: Any, size: int, num_envs: int = 4) -> Any:
    spaces = {"observation_space": Counted.observation_space, "action_space": Counted.action_space}
    return kind(size, num_envs=num_envs, **spaces)


def rollout_of(collector: rl.Collector, num_steps: int = 40) -> Any:
    collector.seed(3)
    collector.collect(num_steps)
    return collector.rollout()


@under_torchrun
def test_a_collector_opens_no_env() -> None:
    collector = made(buffer=replay())
    assert isinstance(collector.envs, DeferredEnvs)
    assert Counted.num_open == 2  # for the policy's spaces
    assert (collector.num_envs, collector.frame_skip, collector.shard, collector.num_env_restarts) == (4, 1, None, 0)
    collector.take_part(OWNER, 1, 2)
    assert Counted.num_open == 2
    assert (collector.num_envs, collector.shard) == (2, (1, 2))
    collector.close()
    assert Counted.num_open == 0


@under_torchrun
@pytest.mark.parametrize(
    "use",
    [
        lambda collector: collector.collect(8),
        lambda collector: collector.collect_random(2),
        lambda collector: collector.reset(),
        lambda collector: collector.seed(1),
        lambda collector: collector.state_dict(),
        lambda collector: collector.overlap(is_on=False),
        lambda collector: collector.record_episodes("folder"),
    ],
)
def test_used_by_hand_it_has_all_envs(use: Any) -> None:
    collector = made(buffer=replay())
    use(collector)
    assert Counted.num_open - 2 * collector.envs.closed == 4
    assert collector.envs.num_envs == collector.num_envs == 4


@under_torchrun
def test_used_by_hand_it_collects_what_it_would_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    collectors = [made(buffer=RolloutBuffer(10, 4, Counted.observation_space, Counted.action_space), seed=2)]
    monkeypatch.delenv("WORLD_SIZE")
    collectors.append(made(buffer=RolloutBuffer(10, 4, Counted.observation_space, Counted.action_space), seed=2))
    one, other = (rollout_of(collector) for collector in collectors)
    for name in ("obs", "action", "reward", "terminated"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    state = collectors[0].state_dict()
    collectors[1].load_state_dict(state)
    again = made(seed=2)
    again.load_state_dict(state)
    assert again.num_rows == 10


@under_torchrun
def test_a_state_is_loaded_before_any_use() -> None:
    state = made().state_dict()
    collector = made()
    collector.load_state_dict(state)
    assert not isinstance(collector.envs, DeferredEnvs)


@under_torchrun
def test_spaces_and_buffers_are_checked_without_envs() -> None:
    envs = rl.make_vec(Counted, 4, backend="sync")
    policy = rl.ActorCritic.for_envs(rl.make_vec("CartPole-v1", 1))
    with pytest.raises(SpaceError, match=r"Collector\.policy\.observation_space"):
        rl.Collector(policy, envs)
    with pytest.raises(ParamsError, match=r"buffer\.num_envs: must be made for num_envs=4; got 2"):
        made(buffer=replay(num_envs=2))
    assert Counted.num_open <= 4


@pytest.mark.parametrize("world", [2, 4])
def test_parts_have_the_envs_of_the_whole(world: int) -> None:
    whole = made(seed=5)
    whole.attach_buffer(RolloutBuffer(20, 4, Counted.observation_space, Counted.action_space))
    expected = rollout_of(whole).obs[0]
    parts = []
    for rank in range(world):
        collector = made(seed=5, buffer=RolloutBuffer(20, 4, Counted.observation_space, Counted.action_space))
        collector.take_part(OWNER, rank, world)
        parts.append(rollout_of(collector).obs[0])
    assert torch.equal(torch.cat(parts), expected)


def test_actions_are_random_by_rank() -> None:
    seeds = []
    for rank, world in ((None, 1), (0, 2), (1, 2)):
        collector = made()
        if rank is not None:
            collector.take_part(OWNER, rank, world)
        collector.seed(9)
        seeds.append(collector.generator.initial_seed())
    whole = derive_seed(9, "action")
    assert seeds == [whole, derive_seed(9, "action", 0), derive_seed(9, "action", 1)]


@pytest.mark.parametrize("kind", [ReplayBuffer, rl.PrioritizedReplayBuffer])
def test_references_of_the_user_stay_valid(kind: Any) -> None:
    buffer = kind(400, Counted.observation_space, Counted.action_space, 4)
    collector = made(buffer=buffer)
    collector.take_part(OWNER, 1, 2)
    assert collector.buffer is buffer
    assert (buffer.num_envs, buffer.capacity) == (2, 200)
    collector.seed(1)
    collector.collect(20)
    assert len(buffer) == 20
    assert collector.rollout().reward.shape == (10, 2)


def test_envs_are_closed_and_made_again() -> None:
    collector = made(buffer=replay(), info_keys=("x",))
    collector.collect(8)
    collector.buffer.clear()  # type: ignore[union-attr]
    for rank in (1, 0):
        collector.take_part(OWNER, rank, 4)
        assert Counted.num_open == 0
        assert (collector.num_envs, collector.num_rows, collector.needs_reset) == (1, 0, True)
        assert isinstance(collector.envs, DeferredEnvs)
    stats = collector.collect(num_episodes=8)
    assert (Counted.num_open, collector.num_envs, collector.envs.num_envs) == (1, 1, 1)
    assert (stats.info_means, collector.shard, collector.num_all_envs) == ({"x": 1.0}, (0, 4), 4)


def test_a_copy_takes_another_part() -> None:
    collector = made(buffer=replay())
    collector.take_part(OWNER, 0, 2)
    policy, buffer, copied = copy.deepcopy((collector.policy, collector.buffer, collector))
    assert Counted.num_open == 0
    assert copied.policy is policy is not collector.policy
    assert copied.buffer is buffer is not collector.buffer
    copied.take_part(OWNER, 1, 2)
    for each in (collector, copied):
        each.seed(1)
        each.collect(8)
    assert Counted.num_open == 4
    first, second = collector.rollout(), copied.rollout()
    assert not torch.equal(first.obs, second.obs)


@pytest.mark.parametrize("kind", [ReplayBuffer, rl.PrioritizedReplayBuffer, RolloutBuffer])
def test_a_copy_of_a_collector_with_an_empty_buffer_is_cheap(kind: Any) -> None:
    collector = made(buffer=buffer_of(kind, 10**5))
    collector.take_part(OWNER, 0, 2)
    memo: dict[int, Any] = {id(each): each for each in collector.replaced()}
    copied = copy.deepcopy(collector, memo)
    assert sum(each.nbytes for each in memo.values() if isinstance(each, np.ndarray | torch.Tensor)) < 100_000
    copied.take_part(OWNER, 1, 2)
    for each in (collector, copied):
        each.seed(1)
        each.collect(8)
    assert not torch.equal(collector.rollout().obs, copied.rollout().obs)
    assert collector.buffer.nbytes == copied.buffer.nbytes > 10**6  # type: ignore[union-attr]  # they have one


@pytest.mark.parametrize("kind", [ReplayBuffer, RolloutBuffer])
def test_a_buffer_for_a_part_keeps_its_envs_in_the_next_run(kind: Any) -> None:
    collector = made()
    for _ in range(2):
        collector.attach_buffer(buffer_of(kind, 16, collector.num_envs))
        collector.take_part(OWNER, 1, 2)
        collector.collect(8)
        assert collector.rollout().reward.shape == (4, 2)


def test_what_cannot_take_a_part_is_found_before_anything_changes() -> None:
    collector = made(buffer=replay())
    assert collector.check_part(OWNER, 2).num_envs == 4
    collector.collect(8)
    with pytest.raises(ReplayBufferError, match="must be empty"):
        collector.check_part(OWNER, 2)
    assert collector.collect(8).num_collected_steps == 8


def test_taking_a_part_moves_no_generator_of_torch() -> None:
    collector = made(buffer=replay())
    before = torch.get_rng_state()
    collector.take_part(OWNER, 0, 2)
    collector.open()
    assert torch.equal(torch.get_rng_state(), before)


def test_recorded_episodes_have_the_index_of_all_envs(tmp_path: Any) -> None:
    collector = made(seed=1)
    collector.take_part(OWNER, 1, 2)
    writer = collector.record_episodes(tmp_path)
    collector.collect(num_episodes=4)
    writer.close()
    steps = list(rl.replay_episode(tmp_path, env=3, episode=0, make_env=Counted))
    assert steps[-1].terminated
    with pytest.raises(CheckpointError, match=r"there are the envs \[2, 3\]"):
        list(rl.replay_episode(tmp_path, env=0, episode=0, make_env=Counted))


@pytest.mark.parametrize(("num_envs", "hint"), [(6, "Take 4 or 8."), (2, "Take 4.")])
def test_envs_must_be_divisible(num_envs: int, hint: str) -> None:
    collector = made(num_envs)
    text = rf"{OWNER}\.num_envs: must be a multiple of the number of shards, 4; got {num_envs} \(int\)\. {hint}"
    with pytest.raises(ParamsError, match=text):
        collector.take_part(OWNER, 0, 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RecordEpisodeStatistics(rl.make_vec(Counted, 4, backend="sync")),
        lambda: gym.vector.SyncVectorEnv([Counted] * 4),
    ],
)
def test_other_envs_cannot_be_made_again(make: Any) -> None:
    envs = make()
    collector = rl.Collector(rl.ActorCritic.for_envs(envs), envs)
    hint = r"Make it with rl\.make_vec, and wrap single envs by its wrappers=\."
    text = rf"{OWNER}\.envs: must be made by make_vec .*\({type(envs).__name__}\)\. {hint}"
    with pytest.raises(ParamsError, match=text):
        collector.take_part(OWNER, 0, 2)
    assert Counted.num_open == 4
    collector.collect(4)


def test_a_buffer_with_data_takes_no_part() -> None:
    collector = made(buffer=replay())
    collector.collect(8)
    with pytest.raises(ReplayBufferError, match="must be empty before a run of several shards; it holds 8"):
        collector.take_part(OWNER, 0, 2)
    assert Counted.num_open == 4
    collector.collect(8)
    assert len(collector.buffer) == 16  # type: ignore[arg-type]  # it has one


class Source:
    """A source of data of another kind."""


@pytest.mark.parametrize(
    "source", [Source(), rl.BatchedCollector.__new__(rl.BatchedCollector), rl.AsyncCollector.__new__(rl.AsyncCollector)]
)
def test_other_collectors_take_no_part(source: Any) -> None:
    text = rf"{OWNER}: must be a Collector in a run of several shards; .*\({type(source).__name__}\)"
    with pytest.raises(ParamsError, match=text):
        require_collector(OWNER, source)
    if isinstance(source, rl.BatchedCollector):
        with pytest.raises(ParamsError, match=text):
            source.take_part(OWNER, 0, 2)


@under_torchrun
def test_a_worker_of_an_async_collector_has_all_its_envs() -> None:
    link: Any = types.SimpleNamespace(load=lambda make: make)
    program = CollectingProgram(link, "AsyncCollector", partial(rl.make_vec, Counted, 4, backend="sync"), 0, 0)  # type: ignore[arg-type]
    assert program.make()[1] == 4
    assert Counted.num_open == 4


@under_torchrun
def test_other_collectors_have_all_envs_under_torchrun() -> None:
    envs = rl.make_vec("CartPole-v1", 2, backend="workers", num_workers=2)
    collector = rl.BatchedCollector(rl.ActorCritic.for_envs(envs), envs)
    try:
        assert collector.num_envs == 2
        assert collector.collect(10).num_collected_steps >= 10
    finally:
        collector.close()
