"""Worker processes: the same data as in this process, whatever the spaces, slices and start methods."""

import copy
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode

import rltrainer as rl
from rltrainer.envs import EnvAdapter, make_vec
from rltrainer.envs.adapter.autoreset import find_autoreset
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.workers.worker_vector_env import WorkerVectorEnv
from rltrainer.errors import EnvError, ParamsError, SpaceError
from rltrainer.tree import leaves
from tests.unit.envs.scripted import SEED, ScriptedEnv, expected_cells, record
from tests.unit.state.test_global_random import draw

OBS_SPACES: dict[str, gym.Space[Any]] = {
    "box": Box(-9, 9, (3,), np.float32),
    "float64": Box(-9, 9, (2, 2), np.float64),
    "image": Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": Discrete(7, start=2),
    "multi": MultiDiscrete([3, 4]),
    "binary": MultiBinary(5),
    "nested": Dict({"b": Tuple([Discrete(4), Box(0, 1, (2,), np.float32)]), "a": Box(0, 255, (2, 2), np.uint8)}),
    "empty": Box(-1, 1, (0,), np.float32),
}
INFOS = ("none", "numbers", "odd", "mixed")


class NoisyEnv(gym.Env[Any, Any]):
    """Observations, rewards, ends and infos drawn from its generator and the actions.

    Args:
        space: of the observations, a key of `OBS_SPACES`.
        action_space: any.
        infos: what kind of infos, one of `INFOS`.
        in_place: write all observations into the same arrays.
        num_agents: rewards of several agents.
    """

    def __init__(
        self,
        space: str = "box",
        action_space: Any = None,
        infos: str = "none",
        in_place: bool = False,
        num_agents: int | None = None,
    ) -> None:
        self.observation_space = copy.deepcopy(OBS_SPACES[space])  # it draws the observations
        self.action_space = action_space or Box(-1, 1, (2,), np.float32)
        self.infos, self.in_place, self.num_agents = infos, in_place, num_agents
        self.memory: Any = None
        self.options: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.options, self.step_count = options, 0
        return self.obs(), self.info()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.step_count += 1
        total = sum(float(np.sum(part)) for part in leaves(action))
        reward = self.np_random.normal() + total
        draw = self.np_random.random()
        rewards = reward if self.num_agents is None else reward + np.arange(self.num_agents)
        return self.obs(), rewards, bool(draw < 0.1), bool(draw > 0.9), self.info()

    def obs(self) -> Any:
        obs = self.observation_space.sample()
        if not self.in_place:
            return obs
        if self.memory is None:
            self.memory = obs
        for here, there in zip(leaves(self.memory), leaves(obs), strict=True):
            if isinstance(here, np.ndarray):
                here[...] = there
        return self.memory

    def info(self) -> dict[str, Any]:
        draw = float(self.np_random.normal())
        numbers = {"x": draw, "y": np.float64(2 * draw), "z": np.float32(draw), "n": self.step_count, "even": draw > 0}
        match self.infos:
            case "numbers":
                return numbers
            case "odd":
                return {"vector": np.full(2, draw), "text": f"{draw:.3f}", "nested": {"x": draw, "deep": {"y": 1}}}
            case "mixed":  # sometimes nothing, sometimes numbers, sometimes numbers that float64 does not hold
                return [{}, numbers, {"n": 2**53 + self.step_count}][int(self.np_random.integers(3))]
        return {}


class TenFlags(NoisyEnv):
    """Has attributes and frames."""

    wheels = 3

    def render(self) -> Any:
        return np.full((2, 2, 3), self.wheels, np.uint8)

    def add(self, a: int, b: int = 0) -> int:
        return a + b + self.wheels


@contextmanager
def closing(*all_envs: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for envs in all_envs:
            envs.close()


def pair(factory: Any, num_envs: int, num_workers: int, seed: int = 3) -> tuple[SyncVectorEnv, WorkerVectorEnv]:
    factories = [factory] * num_envs
    return SyncVectorEnv(factories, seed), WorkerVectorEnv(factories, seed, num_workers=num_workers)


def assert_same(ours: Any, theirs: Any) -> None:
    """The same values, types, dtypes and keys in the same order."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, tuple):
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(ours, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs


def walk(all_envs: tuple[Any, Any], num_steps: int = 25) -> None:
    """Step two vector envs with the same actions, reset what has ended, compare everything at every step."""
    spaces = [envs.action_space for envs in all_envs]
    for space in spaces:
        space.seed(5)
    assert_same(*(envs.reset() for envs in all_envs))
    num_envs = all_envs[0].num_envs
    returned: list[tuple[Any, Any]] = []
    for k in range(num_steps):
        results = [envs.step(space.sample()) for envs, space in zip(all_envs, spaces, strict=True)]
        assert_same(*results)
        done = results[0][2] | results[0][3]
        if done.any():
            seeds = [100 * k + n if done[n] else None for n in range(num_envs)]
            for envs, result in zip(all_envs, results, strict=True):
                result += envs.reset(seed=seeds, options={"reset_mask": done, "level": k})
            assert_same(*results)
        copies = [leaf.copy() for leaf in leaves(results[1][0])]
        returned.append((leaves(results[1][0]), copies))
    for arrays, copies in returned:  # nothing that was returned was overwritten
        for array, kept in zip(arrays, copies, strict=True):
            np.testing.assert_array_equal(array, kept)


@pytest.mark.parametrize(("space", "in_place"), [("nested", False), *((space, True) for space in OBS_SPACES)])
def test_the_same_observations_as_in_this_process(space: str, in_place: bool) -> None:
    all_envs = pair(partial(NoisyEnv, space, in_place=in_place), 3, 2)
    with closing(*all_envs):
        walk(all_envs)


ACTION_SPACES = [
    Discrete(5, start=-2), MultiDiscrete([3, 3]), MultiBinary(3), Box(-1, 1, (2, 2), np.float64),
    Dict({"a": Discrete(3), "b": Tuple([Box(-1, 1, (2,), np.float32), Discrete(2)])}),
]  # fmt: skip


@pytest.mark.parametrize("space", ACTION_SPACES, ids=lambda space: type(space).__name__)
def test_the_same_actions_as_in_this_process(space: Any) -> None:
    all_envs = pair(partial(NoisyEnv, action_space=space), 3, 2)
    with closing(*all_envs):
        walk(all_envs, 10)


@pytest.mark.parametrize("num_agents", [None, 3])
@pytest.mark.parametrize("infos", INFOS)
def test_the_same_infos_and_rewards_as_in_this_process(infos: str, num_agents: int | None) -> None:
    all_envs = pair(partial(NoisyEnv, infos=infos, num_agents=num_agents), 3, 2)
    with closing(*all_envs):
        walk(all_envs)


@pytest.mark.parametrize("num_workers", [1, 5])
def test_any_number_of_workers(num_workers: int) -> None:
    all_envs = pair(partial(NoisyEnv, infos="numbers"), 5, num_workers)
    with closing(*all_envs):
        assert [list(worker.envs) for worker in all_envs[1].group.workers] == {
            1: [[0, 1, 2, 3, 4]],
            5: [[0], [1], [2], [3], [4]],
        }[num_workers]
        walk(all_envs, 10)


def test_how_many_workers_there_are_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.envs.workers.worker_vector_env.num_cores", lambda: 2)
    for num_envs, count in ((1, 1), (5, 2)):
        envs: Any = make_vec(NoisyEnv, num_envs, backend="workers")
        with closing(envs):
            assert len(envs.group.workers) == count


METHODS = multiprocessing.get_all_start_methods()
SLOW = ("spawn", "box")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(  # a spawned worker imports torch anew: once is enough
    ("method", "kind"), [(method, kind) for method in METHODS for kind in ("box", "dict") if (method, kind) != SLOW]
)
def test_every_start_method_through_the_adapter(method: str, kind: str) -> None:
    envs = make_vec(partial(ScriptedEnv, kind, True), 3, backend="workers", num_workers=2, start_method=method)
    with closing(envs):
        adapter = EnvAdapter(envs)
        adapter.seed(SEED)
        adapter.reset()
        for n, cells in enumerate(record(adapter, 25)):
            assert cells == expected_cells(n, 25)


class GlobalDraws(NoisyEnv):
    """Draws from the global generators, when it is made and at each reset."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = draw()

    def reset(self, **options: Any) -> Any:
        self.drawn += draw()
        return super().reset(**options)


def draws_of_workers(method: str, seed: int | None = None) -> list[list[float]]:
    """Return what three envs in as many workers draw, two that follow in the same program, and the program itself."""
    rl.seed(2)
    found: list[list[float]] = []
    for num_envs in (3, 2):
        envs: Any = make_vec(GlobalDraws, num_envs, backend="workers", num_workers=3, start_method=method, seed=seed)
        with closing(envs):
            envs.reset(seed=1)
            found += envs.get_attr("drawn")
    return [*found, draw()]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", [method for method in METHODS if method != "spawn"])
def test_each_worker_has_global_random_streams_of_its_own(method: str) -> None:
    drawn = draws_of_workers(method)
    assert len({number for draws in drawn for number in draws}) == 5 * 2 * 5 + 5
    again = draws_of_workers(method, seed=1)
    assert again[:3] == draws_of_workers(method, seed=1)[:3] != drawn[:3]
    rl.seed(2)
    assert drawn[-1] == again[-1] == draw()  # making them draws nothing


def test_an_id_with_arguments_and_wrappers() -> None:
    options: dict[str, Any] = {"wrappers": [gym.wrappers.FlattenObservation], "g": 2.0, "max_episode_steps": 4}
    all_envs: Any = [make_vec("Pendulum-v1", 3, backend=name, seed=1, **options) for name in ("sync", "workers")]
    with closing(*all_envs):
        walk(all_envs, 10)
        assert all_envs[1].get_attr("g") == (2.0, 2.0, 2.0)
        assert all_envs[1].base_seed == 1


def test_what_it_declares() -> None:
    sync, envs = pair(TenFlags, 2, 1)
    with closing(envs):
        assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        assert find_autoreset(envs) == (AutoresetMode.DISABLED, True)
        for name in ("num_envs", "render_mode", "observation_space", "action_space", "single_observation_space"):
            assert getattr(envs, name) == getattr(sync, name)


def test_attributes_methods_and_frames() -> None:
    envs = WorkerVectorEnv([TenFlags] * 3, num_workers=2)
    with closing(envs):
        envs.set_attr("wheels", [1, 2, 3])
        assert envs.get_attr("wheels") == (1, 2, 3)
        assert envs.call("add", 10, b=20) == (31, 32, 33)
        assert [int(frame[0, 0, 0]) for frame in envs.render()] == [1, 2, 3]
        envs.set_attr("wheels", 4)
        assert envs.get_attr("wheels") == (4, 4, 4)
        text = r"WorkerVectorEnv.set_attr.values: must hold one value per env \(3\); got \[1"
        with pytest.raises(ParamsError, match=text):
            envs.set_attr("wheels", [1, 2])


# Refusals


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif("fork" not in METHODS, reason="needs fork")
def test_a_closure_travels_by_fork() -> None:
    envs = make_vec(lambda: NoisyEnv(), 2, backend="workers", start_method="fork")
    with closing(envs):
        assert envs.reset(seed=1)[0].shape == (2, 3)


def test_other_spaces_in_another_process() -> None:
    factories = [partial(NoisyEnv, "box"), partial(NoisyEnv, "discrete")]
    text = r"env 1 observation_space: expected Box.*, as env 0 has, got Discrete\(7, start=2\)"
    with pytest.raises(SpaceError, match=text):
        WorkerVectorEnv(factories, num_workers=2)
    with pytest.raises(SpaceError, match=text):
        WorkerVectorEnv(factories, num_workers=1)


def test_numbers_of_agents_that_differ() -> None:
    envs = WorkerVectorEnv([partial(NoisyEnv, num_agents=n) for n in (2, 3)], num_workers=2)
    with closing(envs):
        envs.reset()
        with pytest.raises(SpaceError, match=r"^env 1 reward: expected shape \(2,\), as env 0 has, got float64 \(3,\)"):
            envs.step(np.zeros((2, 2), np.float32))


def test_actions_of_another_shape() -> None:
    envs = WorkerVectorEnv([NoisyEnv] * 2, num_workers=1)
    with closing(envs):
        with pytest.raises(EnvError, match="env 0 must be reset before it is stepped"):
            envs.step(np.zeros((2, 2)))
        envs.reset()
        with pytest.raises(ParamsError, match=r"WorkerVectorEnv.step.actions: must have shape \(2, 2\); got array"):
            envs.step(np.zeros((1, 2)))


def test_a_closed_one() -> None:
    envs = WorkerVectorEnv([NoisyEnv], num_workers=1)
    envs.close()
    with pytest.raises(EnvError, match="its workers have ended, by close or by a failure; make a new one"):
        envs.reset()
