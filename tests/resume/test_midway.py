"""A collector that is resumed in the middle of episodes goes on bit for bit, its buffer's traces too."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers.vector import ClipReward, NormalizeReward

import rltrainer as rl
from rltrainer.errors import CheckpointError, EnvError
from rltrainer.state.state_file import read_state, write_state
from rltrainer.tree import leaves
from rltrainer.types import State
from tests.resume.wanderers import BOX, Fragile, Moody, Saveable, Stranger, Wanderer
from tests.unit.envs.agents.teams import Strangers, Visitors

MakeEnvs = Callable[[], Any]


def wrapped() -> gym.Env[Any, Any]:
    return FrameStackObservation(RecordEpisodeStatistics(TimeLimit(Wanderer(), 11)), 3)


def of_gymnasium(
    num_envs: int, mode: AutoresetMode, cls: Any = gym.vector.SyncVectorEnv, factory: Any = Wanderer, **options: Any
) -> Any:
    return cls([factory] * num_envs, autoreset_mode=mode, **options)


ASYNC = gym.vector.AsyncVectorEnv
SIX = {"a": (0, 6), "b": (0, 6)}
COMING_AND_GOING = partial(Visitors, {"a": (2, 9), "b": (0, 13), "c": (0, 5)}, ("c",))
LIVES = partial(rl.AtariWrapper, screen_size=36, frame_stack=3)
ENVS: dict[str, MakeEnvs] = {
    "one": partial(rl.make_vec, Wanderer, 1, backend="sync"),
    "four": partial(rl.make_vec, Wanderer, 4, backend="sync"),
    "dict": partial(rl.make_vec, partial(Wanderer, True), 3, backend="sync"),
    "wrapped": partial(rl.make_vec, wrapped, 3, backend="sync"),
    "seeded": partial(rl.make_vec, Wanderer, 2, backend="sync", seed=3),
    "workers": partial(rl.make_vec, Wanderer, 4, backend="workers", num_workers=2),
    "restarting": partial(rl.make_vec, wrapped, 2, backend="workers", num_workers=1, on_env_error="restart"),
    "pendulum": partial(rl.make_vec, "Pendulum-v1", 2, max_episode_steps=13),
    "cartpole": partial(rl.make_vec, "CartPole-v1", 2),
    "atari": partial(rl.make_vec, "ALE/Pong-v5", 2, obs_type="ram"),
    "atari, native": partial(rl.make_vec, "ALE/Breakout-v5", 3, wrappers=[LIVES], num_threads=1),
    "saveable": partial(rl.make_vec, Saveable, 3, backend="sync"),
    "saveable workers": partial(rl.make_vec, Saveable, 3, backend="workers", num_workers=2),
    "native": partial(rl.make_vec, "CartPole-v1", 8),
    "native, one": partial(rl.make_vec, "CartPole-v1", 1, backend="native", max_episode_steps=9),
    **{f"sync {m.value}": partial(of_gymnasium, 3, m) for m in AutoresetMode},
    **{f"sync {m.value}, views": partial(of_gymnasium, 3, m, copy=False) for m in AutoresetMode},
    **{f"async {m.value}": partial(of_gymnasium, 2, m, ASYNC, shared_memory=True) for m in AutoresetMode},
    "agents": partial(rl.AgentsAsEnvs, Visitors, 2),
    "agents who come and go": partial(rl.AgentsAsEnvs, COMING_AND_GOING, 2, agent_id=True, seed=4),
    "agents in workers": partial(rl.AgentsAsEnvs, COMING_AND_GOING, 3, backend="workers", num_workers=2),
    "joint": partial(rl.make_vec, lambda: rl.JointEnv(COMING_AND_GOING()), 2),
    "tensors": partial(rl.make_vec, "CartPole-v1", 3, backend="tensor"),
    "tensors, continuous": partial(rl.make_vec, "Pendulum-v1", 2, backend="tensor"),
    "clipped": lambda: ClipReward(of_gymnasium(2, AutoresetMode.NEXT_STEP), -1.0, 1.0),
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@contextmanager
def collector_in(make_envs: MakeEnvs, replays: bool = True) -> Iterator[rl.Collector]:
    envs = make_envs()
    try:
        rl.seed(3)
        discrete = not isinstance(envs.single_action_space, gym.spaces.Box)
        policy_class: Any = rl.ActorCritic if discrete or not replays else rl.SquashedActorCritic
        policy = policy_class.for_envs(envs, hidden_sizes=(4,))
        spaces = (envs.single_observation_space, envs.single_action_space)
        buffer: Any = rl.RolloutBuffer(8, envs.num_envs, *spaces)
        buffer = rl.ReplayBuffer(60, *spaces, num_envs=envs.num_envs) if replays else buffer
        collector = rl.Collector(policy, envs, buffer)
        collector.seed(5)
        yield collector
    finally:
        envs.close()


def rows(collector: rl.Collector, counts: list[int]) -> list[Any]:
    """Collect so many rows at a time; return all that it says."""
    found = []
    for count in counts:
        stats = collector.collect(num_steps=count * collector.num_envs)
        rollout = collector.rollout()
        parts = [getattr(rollout, name) for name in type(rollout).__slots__ if name != "extra"]
        found += [leaf.clone() for part in parts for leaf in leaves(part)]
        found += [torch.from_numpy(stats.returns), torch.from_numpy(stats.lengths)]
    return found


def through_a_file(state: State, path: Path) -> State:
    write_state(path, "state", state)
    return read_state(path, "state", CheckpointError)


def cut(one: rl.Collector, other: rl.Collector, path: Path) -> None:
    """Let the other collector go on from where the one is."""
    buffers: Any = one.buffer, other.buffer
    state = through_a_file(one.state_dict(), path / "collector")
    if isinstance(buffers[0], rl.ReplayBuffer):
        buffers[1].load_state_dict(through_a_file(buffers[0].state_dict(), path / "buffer"))
    other.load_state_dict(state)


@contextmanager
def cut_after(num_rows: int, make_envs: MakeEnvs, path: Path) -> Iterator[tuple[rl.Collector, rl.Collector]]:
    """Yield a collector that has collected so many rows, and one that continues from there."""
    with collector_in(make_envs) as one, collector_in(make_envs) as other:
        rows(one, [num_rows])
        cut(one, other, path)
        yield one, other


def assert_equal(one: Any, other: Any) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape
        assert torch.equal(a, b)


def assert_same_state(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_state(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same_state(a, b)
    else:
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("replays", [True, False])
@pytest.mark.parametrize("name", ENVS)
def test_it_goes_on_bit_for_bit(name: str, replays: bool, tmp_path: Path) -> None:
    random = np.random.default_rng(sorted(ENVS).index(name))
    with collector_in(ENVS[name], replays) as one:
        for _ in range(2):
            with collector_in(ENVS[name], replays) as other, warnings.catch_warnings():
                warnings.simplefilter("error")
                rows(one, random.integers(1, 25, size=2).tolist())
                cut(one, other, tmp_path)
                assert_same_state(one.state_dict(), other.state_dict())  # before the envs are there
                counts = [1, 3, 1, *random.integers(1, 40, size=2).tolist()]
                assert_equal(rows(one, counts), rows(other, counts))
                assert_same_state(one.state_dict(), other.state_dict())
                if isinstance(one.buffer, rl.ReplayBuffer) and isinstance(other.buffer, rl.ReplayBuffer):
                    assert_same_state(one.buffer.state_dict(), other.buffer.state_dict())


def test_data_does_not_depend_on_where_the_envs_live(tmp_path: Path) -> None:
    """A run may go on with its envs in workers, or in gymnasium's vector env."""
    with collector_in(ENVS["four"]) as one:
        rows(one, [17])
        found = []
        gymnasiums = partial(of_gymnasium, 4, AutoresetMode.SAME_STEP)
        for make_envs in (ENVS["four"], ENVS["workers"], gymnasiums):
            with collector_in(make_envs) as other:
                cut(one, other, tmp_path)
                found.append(rows(other, [9]))
        assert_equal(found[0], found[1])
        assert_equal(found[0], found[2])


def test_envs_are_stepped_only_as_often_as_needed(tmp_path: Path) -> None:
    with collector_in(ENVS["four"]) as one, collector_in(ENVS["four"]) as other:
        rows(one, [40])
        running = one.state_dict()["adapter"]["clock"]["episode_step"]
        cut(one, other, tmp_path)
        other.adapter.resume()
        assert list(other.envs.get_attr("num_steps")) == running
        assert max(other.envs.get_attr("num_resets")) <= 2


@pytest.mark.parametrize("env_class", [Stranger, Moody])
@pytest.mark.parametrize("backend", ["sync", "workers", "gymnasium"])
def test_an_env_that_does_not_come_back_is_named(env_class: Any, backend: str, tmp_path: Path) -> None:
    def make() -> Any:
        if backend == "gymnasium":
            return of_gymnasium(2, AutoresetMode.NEXT_STEP, factory=env_class)
        return rl.make_vec(env_class, 2, backend=backend)

    with collector_in(make) as one, collector_in(make) as other:
        clock = one.state_dict()["adapter"]["clock"]
        while 0 in clock["episode_step"] or 0 in clock["episode"]:
            rows(one, [1])
            clock = one.state_dict()["adapter"]["clock"]
        episodes = clock["episode"]
        cut(one, other, tmp_path)
        text = r"envs \[0, 1\] did not come back to where they were when the actions of their episode were repeated: t"
        with pytest.warns(UserWarning, match=f"{text}hey start a new episode") as warned:
            assert rows(other, [1])  # it continues
        assert len(warned) == 1
        assert other.rollout().starts.all()
        assert all(b > a for a, b in zip(episodes, other.state_dict()["adapter"]["clock"]["episode"], strict=True))
        buffer: Any = other.buffer
        assert torch.equal(torch.from_numpy(other._episodes.running.lengths), torch.ones(2, dtype=torch.int64))
        assert int(buffer._ring.pending_end.sum()) == 0
        cells = buffer._ring._slots_at(buffer._ring.written - 2)
        assert (buffer._ring.final.index.reshape(-1)[cells] > 0).all(), "the traces of before are closed"


def test_only_the_env_that_does_not_come_back_starts_anew(tmp_path: Path) -> None:
    factories = [Wanderer, Stranger, Wanderer]

    def make() -> Any:
        return gym.vector.SyncVectorEnv(factories, autoreset_mode=AutoresetMode.NEXT_STEP)  # type: ignore[arg-type]  # classes are factories

    with collector_in(make) as one, collector_in(make) as other:
        while 0 in (steps := one.state_dict()["adapter"]["clock"]["episode_step"]) or min(steps) < 3:
            rows(one, [1])
        cut(one, other, tmp_path)
        with pytest.warns(UserWarning, match=r"envs \[1\] did not come back"):
            rows(other, [1])
        assert other.rollout().starts.tolist() == [False, True, False]
        assert other._episodes.running.lengths[1] == 1
        rows(one, [1])
        assert torch.equal(one.rollout().obs[:, [0, 2]], other.rollout().obs[:, [0, 2]])


def test_agents_of_a_copy_that_does_not_come_back_start_anew(tmp_path: Path) -> None:
    def make() -> Any:
        envs = iter([Visitors(SIX), Strangers(SIX)])
        return rl.AgentsAsEnvs(lambda: next(envs), 2)

    with cut_after(3, make, tmp_path) as (one, other):
        with pytest.warns(UserWarning, match=r"envs \[1\] did not come back") as warned:
            rows(other, [1])
        assert len(warned) == 1
        rollout = other.rollout()
        assert rollout.valid.tolist() == [[True, True, False, False]]
        assert rollout.truncated.tolist() == [[False, False, True, True]]  # a boundary, and no episode's end
        rows(one, [1])
        assert torch.equal(one.rollout().obs[:, :2], other.rollout().obs[:, :2])
        rows(other, [1])
        assert other.rollout().valid.all()
        assert other._episodes.running.lengths.tolist() == [5, 5, 1, 1]


def test_a_copy_that_lost_its_episode_comes_back_in_the_next_resume(tmp_path: Path) -> None:
    """Its new episode has one step more than its agents' cells say."""
    make = partial(rl.AgentsAsEnvs, partial(Strangers, SIX), 1)
    with collector_in(make) as one, collector_in(make) as other, collector_in(make) as third:
        rows(one, [3])
        cut(one, other, tmp_path)
        Strangers.is_strange = False
        try:
            with pytest.warns(UserWarning, match=r"envs \[0\] did not come back"):
                rows(other, [3])
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                cut(other, third, tmp_path)
                assert_equal(rows(other, [9]), rows(third, [9]))
        finally:
            Strangers.is_strange = True


DeclaredReward = type("DeclaredReward", (NormalizeReward,), {"supports_masked_reset": True})
TOGETHER = r"envs \[0, 1\] cannot be reset one by one, and do not save where they are \(SaveableEnv\)"


@pytest.mark.parametrize(("make", "text"), [
    (lambda: DeclaredReward(of_gymnasium(2, AutoresetMode.NEXT_STEP)), r"envs \[0, 1\] did not come back"),
    (lambda: NormalizeReward(of_gymnasium(2, AutoresetMode.NEXT_STEP)), TOGETHER),
    (lambda: NormalizeReward(rl.make_vec("CartPole-v1", 2, backend="native")), TOGETHER),
])  # fmt: skip
def test_a_wrapper_that_remembers_more_than_an_episode(make: MakeEnvs, text: str, tmp_path: Path) -> None:
    with collector_in(make) as one, collector_in(make) as other:
        rows(one, [80])
        while 0 in one._episodes.running.lengths:
            rows(one, [1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cut(one, other, tmp_path)
            rows(other, [1])
        assert any(re.search(text, str(each.message)) for each in caught)


def test_a_state_without_actions_starts_new_episodes(tmp_path: Path) -> None:
    """As states of earlier releases do."""
    with collector_in(ENVS["four"]) as one, collector_in(ENVS["four"]) as other:
        rows(one, [9])
        state = one.state_dict()
        state["adapter"] = {name: state["adapter"][name] for name in ("is_started", "clock")}
        del state["episodes"], state["is_stored"]
        inside = np.flatnonzero(state["adapter"]["clock"]["episode_step"]).tolist()
        assert inside
        text = (
            f"envs {inside} were in the middle of an episode, and what led there is not in the state: they start a new "
            "episode instead of continuing"
        )
        with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
            other.load_state_dict(state)
        rows(other, [1])
        assert other.rollout().starts.all()


def test_too_long_episodes_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.envs.adapter.action_history.MAX_STEPS", 10)
    monkeypatch.setattr("rltrainer.envs.adapter.env_state.MAX_STEPS", 10)
    make = partial(rl.make_vec, "Pendulum-v1", 2, max_episode_steps=10**9)
    with collector_in(make) as one, collector_in(make) as other, collector_in(make) as third:
        rows(one, [10])
        cut(one, third, tmp_path)
        assert_equal(rows(one, [1]), rows(third, [1]))
        with pytest.warns(UserWarning, match=r"envs \[0, 1\] were more than 10 steps into their episode"):
            cut(one, other, tmp_path)
        rows(other, [1])


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
@pytest.mark.parametrize("method", ["noise", "reset"])
def test_an_env_that_fails_on_the_way_is_named(
    method: str, mode: AutoresetMode | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ENVS["four"] if mode is None else partial(of_gymnasium, 3, mode)
    with cut_after(1, make, tmp_path) as (_, other):
        works, calls = getattr(Wanderer, method), iter([False, True])
        monkeypatch.setattr(Wanderer, method, lambda env, **options: 1 / 0 if next(calls) else works(env, **options))
        when = "its return to a saved state" if mode else "step 1" if method == "noise" else "reset after 0 steps"
        with pytest.raises(EnvError, match=f"^env 1 failed during {when}: ZeroDivisionError"):
            rows(other, [1])


def test_a_saveable_env_is_not_replayed(tmp_path: Path) -> None:
    with collector_in(ENVS["saveable"]) as one, collector_in(ENVS["saveable"]) as other:
        rows(one, [20])
        assert one.state_dict()["adapter"]["actions"] is None
        cut(one, other, tmp_path)
        other.adapter.resume()
        assert list(other.envs.get_attr("num_steps")) == [0, 0, 0]
        assert list(other.envs.get_attr("num_loads")) == [1, 1, 1]


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_a_saveable_env_that_does_not_load_is_named(backend: str, tmp_path: Path) -> None:
    make = partial(rl.make_vec, Fragile, 2, backend=backend)
    error = pytest.raises(EnvError, match="env 0 failed during load_state_dict: KeyError: 'place'")
    with cut_after(3, make, tmp_path) as (_, other), error:
        rows(other, [1])


def test_a_wrapper_that_is_not_saveable_hides_an_env_that_is(tmp_path: Path) -> None:
    """What the wrapper remembers would be lost: so the episode is repeated."""
    make = partial(rl.make_vec, Saveable, 2, backend="sync", wrappers=[partial(TimeLimit, max_episode_steps=7)])
    with collector_in(make) as one, collector_in(make) as other:
        rows(one, [9])
        assert one.state_dict()["adapter"]["envs"] is None
        cut(one, other, tmp_path)
        assert_equal(rows(one, [20]), rows(other, [20]))


class SaveableVector(gym.vector.VectorEnv[Any, Any, Any]):
    """Counts, in all envs alike; knows how to go on, by no seed."""

    def __init__(self) -> None:
        self.num_envs, self.count = 2, 0
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space, self.single_action_space = BOX, Wanderer.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count, self.is_done = 0, False
        return self.observe(), {}

    def step(self, actions: Any) -> Any:
        self.count = 0 if self.is_done else self.count + 1
        reward = 0.0 if self.is_done else 1.0
        self.is_done = self.count == 7
        flags = np.full(2, self.is_done)
        return self.observe(), np.full(2, reward), flags, np.zeros(2, np.bool_), {}

    def observe(self) -> Any:
        return np.full((2, 3), self.count, np.float32)

    def state_dict(self) -> State:
        return {"count": self.count, "is_done": self.is_done}

    def load_state_dict(self, state: State) -> None:
        self.count, self.is_done = state["count"], state["is_done"]


@pytest.mark.parametrize("num_rows", [1, 6, 7, 8, 9])
def test_a_vector_env_that_saves_itself(num_rows: int, tmp_path: Path) -> None:
    assert isinstance(SaveableVector(), rl.SaveableEnv)
    assert not isinstance(rl.make_vec("CartPole-v1", 2), rl.SaveableEnv)
    with cut_after(num_rows, SaveableVector, tmp_path) as (one, other):
        assert_equal(rows(one, [1, 9]), rows(other, [1, 9]))


def test_a_vector_env_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with collector_in(SaveableVector) as one, collector_in(SaveableVector) as other:
        rows(one, [3])
        state = one.state_dict()
        del state["adapter"]["envs"]["count"]
        other.load_state_dict(state)
        with pytest.raises(CheckpointError, match=r"^adapter.envs: SaveableVector.load_state_dict raised KeyError: 'c"):
            rows(other, [1])


def wrong_states() -> Iterator[tuple[str, Callable[[State], Any], str]]:
    def change(name: str, value: Any) -> Callable[[State], Any]:
        return lambda state: state["adapter"].update({name: value})

    yield "four", change("obs", None), "adapter.obs: missing in the saved state"
    yield "four", change("obs", []), "adapter.obs: expected 1 tensors, found 0"
    yield ("four", change("obs", [torch.zeros(4, 2)]), r"adapter.obs.0: expected float32 \(4, 3\), found")
    yield "four", change("obs", [torch.full((4, 3), np.nan)]), "adapter.obs.0: holds NaN or infinity"
    yield "four", change("actions", torch.zeros(1, 3)), r"adapter.actions: expected float32 \(\d+, 3\), found"
    yield "four", change("actions", "x"), "adapter.actions: expected an array, found 'x'"
    yield "four", lambda s: s["adapter"]["actions"].fill_(7.0), "adapter.actions: expected actions in Box"
    yield "four", lambda s: s["adapter"]["actions"].fill_(np.inf), "adapter.actions: holds NaN or infinity"
    yield "four", change("resetting", [4]), r"adapter.resetting: expected some of 4 envs, found \[4\]"
    yield ("four", lambda s: s["episodes"].update(returns=torch.zeros(3)), "collector.episodes: returns: expected flo")
    yield "four", lambda s: s["episodes"]["returns"].fill_(np.nan), "collector.episodes: returns: holds NaN or infinity"
    yield ("four", lambda s: s["episodes"]["lengths"].fill_(-1), "collector.episodes: lengths: expected non-neg")
    yield "four", change("envs", 3), "adapter.envs: expected a mapping"
    yield (
        "native",
        lambda s: s["adapter"]["envs"].update(steps=torch.zeros(7)),
        r"adapter.envs.steps: expected int32 \(8,\), found",
    )
    yield "native", lambda s: s["adapter"]["envs"]["state"].fill_(np.nan), "adapter.envs.state: holds NaN or infinity"
    random = "adapter.envs.random: not the state of a PCG64 generator"
    yield "native", lambda s: s["adapter"]["envs"]["random"].update(state="x"), random
    yield "native", lambda s: s["adapter"]["envs"]["random"].update(inc="-5"), random
    yield "native", lambda s: s["adapter"]["envs"].update(more=1), "adapter.envs.more: expected no field"
    yield ("saveable", lambda s: s["adapter"]["envs"].update(envs=[]), "adapter.envs.envs: expected a list of")


@pytest.mark.parametrize(("name", "change", "text"), list(wrong_states()))
def test_a_state_that_is_wrong_changes_nothing(name: str, change: Callable[[State], Any], text: str) -> None:
    with collector_in(ENVS[name]) as one, collector_in(ENVS[name]) as other:
        rows(one, [9])
        state = one.state_dict()
        change(state)
        rows(other, [3])
        with pytest.raises(CheckpointError, match=rf"^(collector\.)?{text}"):
            other.load_state_dict(state)
        with collector_in(ENVS[name]) as third:
            rows(third, [3])
            assert_equal(rows(other, [3]), rows(third, [3]))


def assert_nothing_is_lost_or_doubled(buffer: rl.ReplayBuffer, num_steps: int) -> None:
    """Assert that each env's transitions follow each other, and that there are so many, none of them twice."""
    ring = buffer._ring
    assert len(buffer) == num_steps
    for n in range(buffer.num_envs):
        cells = torch.from_numpy(np.arange(ring.written[n]) * buffer.num_envs + n)
        each = ring.transitions(cells, 1, 1.0)
        done = each.terminated | each.truncated
        assert len(each.obs.unique(dim=0)) == len(cells)
        assert (each.obs[1:] == each.next_obs[:-1]).all(1)[~done[:-1]].all()
        assert not (ring.final.index[: ring.written[n], n] > 0)[~done.numpy()].any(), "no trace is broken"


def test_batched_collection_goes_on_without_loss(tmp_path: Path) -> None:
    envs = [rl.make_vec(Wanderer, 3, backend="workers", num_workers=3) for _ in range(3)]
    try:
        rl.seed(3)
        policy = rl.SquashedActorCritic.for_envs(envs[0], hidden_sizes=(4,))
        spaces = (envs[0].single_observation_space, envs[0].single_action_space)
        collectors = [rl.BatchedCollector(policy, each, rl.ReplayBuffer(3000, *spaces, num_envs=3)) for each in envs]
        collectors[0].seed(5)
        num_steps, lengths = 0, []
        for i, one in enumerate(collectors):
            if i > 0:
                cut(collectors[i - 1], one, tmp_path)
            for count in (1, 40, 2, 33):
                stats = one.collect(num_steps=count)
                num_steps += -(-count // 3) * 3
                lengths += stats.lengths.tolist()
            running = one._episodes.running.lengths.sum()
        buffer: Any = collectors[-1].buffer
        assert_nothing_is_lost_or_doubled(buffer, num_steps)
        assert sum(lengths) + running == num_steps
        assert max(lengths) <= 30
    finally:
        for each in envs:
            each.close()


@pytest.mark.parametrize("max_ahead", [0, None])
def test_async_collection_goes_on_without_loss(max_ahead: int | None, tmp_path: Path) -> None:
    rl.seed(3)
    make_envs = partial(rl.make_vec, Wanderer, 2, backend="sync")
    policy = rl.SquashedActorCritic.for_envs(make_envs(), hidden_sizes=(4,))
    spaces = (policy.observation_space, policy.action_space)
    collectors: list[Any] = []
    try:
        num_steps = 0
        for _ in range(2):
            buffer = rl.ReplayBuffer(3000, *spaces, num_envs=4)
            collectors.append(rl.AsyncCollector(policy, make_envs, 2, buffer, max_ahead=max_ahead))
            if len(collectors) == 1:
                collectors[0].seed(5)
            else:
                cut(collectors[0], collectors[1], tmp_path)
            for count in (4, 40, 80):
                collectors[-1].collect(num_steps=count)
                num_steps += count
        ring = buffer._ring
        assert len(buffer) == num_steps
        cells = torch.cat(list(ring.all_slots(1000)))
        each = ring.transitions(cells, 1, 1.0)
        assert len(each.obs.unique(dim=0)) == num_steps, "none is there twice"
        assert not any(value.isnan().any() for value in (each.obs, each.next_obs))
    finally:
        for collector in collectors:
            collector.close()
