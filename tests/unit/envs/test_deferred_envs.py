"""Parts of a vector env: what `make_vec` returns under torchrun, and seeds by the global index of an env."""

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import rltrainer as rl
from rltrainer.algorithms.recommended import look_at
from rltrainer.envs import EnvAdapter
from rltrainer.envs.deferred_envs import DeferredEnvs, opened
from rltrainer.envs.vector_env import share_an_env

COUNTS = (1, 2, 4, 8)


@pytest.fixture
def under_torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


class Counted(gym.Env[Any, Any]):
    """Notes how many there are, and the seeds of their episodes."""

    made: list["Counted"] = []  # noqa: RUF012
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.is_closed = False
        Counted.made.append(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        obs = self.np_random.random(2, dtype=np.float32)
        return obs, float(action) + float(obs[0]), bool(obs[1] > 0.8), False, {}

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def _none_made() -> None:
    Counted.made.clear()


def recipe_of(envs: Any) -> DeferredEnvs:
    found: DeferredEnvs = envs.recipe
    return found


def histories(envs: Any, num_steps: int = 40) -> list[list[Any]]:
    """Return the transitions of each env, whose actions depend on its own history."""
    adapter = EnvAdapter(envs)
    adapter.seed(11)
    adapter.reset()
    found: list[list[Any]] = [[] for _ in range(envs.num_envs)]
    sums = np.zeros(envs.num_envs)
    for _ in range(num_steps):
        action = (np.abs(sums * 1000).astype(np.int64)) % envs.single_action_space.n
        env_action = adapter.to_env(torch.from_numpy(action))
        step = adapter.step(env_action)
        sums += np.asarray(step.next_obs, np.float64).reshape(envs.num_envs, -1).sum(1)
        for n in range(envs.num_envs):
            row = (adapter.obs[n].tobytes(), int(action[n]), float(step.reward[n]), step.next_obs[n].tobytes())
            found[n].append((*row, bool(step.terminated[n])))
        adapter.advance()
    return found


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("env", [Counted, "CartPole-v1"])
def test_an_env_goes_through_the_same_episodes_in_every_part(env: Any, seed: int | None) -> None:
    whole = rl.make_vec(env, 8, backend="sync", seed=seed)
    expected = histories(whole)
    for count in COUNTS:
        parts = [recipe_of(whole).part(index, count) for index in range(count)]
        assert [history for part in parts for history in histories(part)] == expected
    assert len({repr(history) for history in expected}) == 8


@pytest.mark.parametrize("count", COUNTS)
def test_no_two_envs_share_a_seed(count: int) -> None:
    recipe = recipe_of(rl.make_vec(Counted, 8, backend="sync"))
    Counted.made.clear()
    for index in range(count):
        histories(recipe.part(index, count))
    seeds = [seed for env in Counted.made for seed in env.seeds]
    assert len(seeds) > 40
    assert len(set(seeds)) == len(seeds)


def test_worker_processes_are_divided_too() -> None:
    whole = rl.make_vec("CartPole-v1", 4, backend="workers", num_workers=2, seed=3)
    part = recipe_of(whole).part(1, 2)
    try:
        assert len(part.group.alive) == 1  # type: ignore[attr-defined]
        assert histories(part, 10) == histories(whole, 10)[2:]
    finally:
        whole.close()
        part.close()


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("backend", ["native", "tensor"])
def test_envs_that_are_seeded_as_a_whole_differ_by_part(backend: Any, seed: int | None) -> None:
    whole = rl.make_vec("CartPole-v1", 8, backend=backend, seed=seed)
    first, second = (recipe_of(whole).part(index, 2) for index in (0, 1))
    begun = []
    for envs in (first, second, rl.make_vec("CartPole-v1", 4, backend=backend, seed=seed)):
        adapter = EnvAdapter(envs)
        adapter.seed(11)
        adapter.reset()
        begun.append(adapter.obs_tensor.numpy().copy())
    assert not np.isin(begun[0], begun[1]).any()
    assert (begun[0] == begun[2]).all()  # the first part is seeded as ever
    if seed is not None:
        assert first.base_seed == seed != second.base_seed  # type: ignore[attr-defined]


def test_the_generators_of_envs_of_tensors_differ_by_part() -> None:
    recipe = recipe_of(rl.make_vec("CartPole-v1", 8, backend="tensor", seed=3))
    generators = [recipe.part(index, 4).generator.get_state() for index in range(4)]  # type: ignore[attr-defined]
    assert len({state.numpy().tobytes() for state in generators}) == 4


@pytest.mark.parametrize("seed", [None, 3])
def test_envs_of_tensors_move_torchs_generator_alike_under_torchrun(seed: Any, request: Any) -> None:
    found = []
    for _ in range(2):
        rl.seed(1)
        envs = rl.make_vec("CartPole-v1", 8, backend="tensor", seed=seed)
        found.append([float(torch.rand(())), envs.single_action_space, float(torch.rand(()))])
        request.getfixturevalue("under_torchrun")
    assert found[0] == found[1]


def test_the_backend_does_not_depend_on_the_size_of_a_part() -> None:
    whole = rl.make_vec("CartPole-v1", 8)
    assert type(recipe_of(whole).part(0, 8).unwrapped) is type(whole.unwrapped)


def test_a_part_that_is_reset_by_hand_takes_the_seeds_of_its_envs() -> None:
    whole = rl.make_vec(Counted, 6, backend="sync", seed=4)
    part = recipe_of(whole).part(2, 3)
    assert (part.reset()[0] == whole.reset()[0][4:]).all()


@pytest.mark.usefixtures("under_torchrun")
def test_make_vec_makes_nothing_under_torchrun() -> None:
    envs = rl.make_vec(Counted, 8, backend="sync", seed=2)
    assert isinstance(envs, DeferredEnvs)
    assert (envs.num_envs, envs.base_seed, repr(envs)) == (8, 2, "DeferredEnvs(num_envs=8)")
    assert not Counted.made


@pytest.mark.usefixtures("under_torchrun")
def test_spaces_are_those_of_all_envs_and_make_one_part() -> None:
    envs = rl.make_vec(Counted, 8, backend="sync")
    assert envs.single_observation_space == Counted.observation_space
    assert (envs.observation_space.shape, envs.action_space.shape) == ((8, 2), (8,))
    assert rl.frame_skip(envs) == 1
    policy = rl.ActorCritic.for_envs(envs)
    assert policy.action_space == Counted.action_space
    assert look_at(envs, rl.PPO) == (8, False)
    assert rl.PPO.recommended(envs)["collection_step_num_env_steps"] == 2048
    assert envs.metadata["autoreset_mode"] is gym.vector.AutoresetMode.DISABLED
    assert len(Counted.made) == 4
    part = envs.part(1, 2)  # type: ignore[attr-defined]
    assert len(Counted.made) == 4
    assert part.first_env == 4  # it was made before
    assert envs.part(1, 2) is not part  # type: ignore[attr-defined]


@pytest.mark.usefixtures("under_torchrun")
def test_a_part_that_nobody_asks_for_is_closed() -> None:
    envs: Any = rl.make_vec(Counted, 8, backend="sync")
    assert envs.single_action_space.n == 3
    part = envs.part(3, 4)
    assert [env.is_closed for env in Counted.made] == [True] * 4 + [False] * 2
    assert envs.single_action_space.n == 3  # of the part that is open
    assert len(Counted.made) == 6
    envs.close()
    assert part.closed
    assert envs.closed


@pytest.mark.usefixtures("under_torchrun")
def test_spaces_of_envs_that_cannot_be_divided_need_one_env() -> None:
    assert rl.make_vec(Counted, 3, backend="sync").single_action_space.n == 3  # type: ignore[attr-defined]
    assert len(Counted.made) == 1


def test_used_by_hand_they_are_all_envs(under_torchrun: pytest.MonkeyPatch) -> None:
    envs = rl.make_vec(Counted, 4, backend="sync", seed=6)
    wrapped = RecordEpisodeStatistics(rl.make_vec(Counted, 4, backend="sync", seed=6))
    own = rl.make_vec("CartPole-v1", 4, seed=6)
    assert own.spec is not None
    under_torchrun.setenv("WORLD_SIZE", "1")
    plain = rl.make_vec(Counted, 4, backend="sync", seed=6)
    assert (envs.reset()[0] == plain.reset()[0]).all()
    actions = np.array([0, 1, 2, 0])
    assert (envs.step(actions)[1] == plain.step(actions)[1]).all()
    assert histories(wrapped) == histories(plain)
    assert histories(own) == histories(rl.make_vec("CartPole-v1", 4, seed=6))
    envs.close()
    assert envs.closed


@pytest.mark.usefixtures("under_torchrun")
def test_what_tests_and_plays_has_all_its_envs_here() -> None:
    made = rl.make_vec("CartPole-v1", 3)
    assert opened(made) is opened(made) is not made
    policy = rl.ActorCritic.for_envs(made)
    assert len(rl.evaluate_policy(policy, "CartPole-v1", num_episodes=3, seed=1).returns) == 3


@pytest.mark.usefixtures("under_torchrun")
def test_a_copy_makes_envs_of_its_own() -> None:
    envs: Any = rl.make_vec(Counted, 4, backend="sync")
    copied = copy.deepcopy(envs)
    assert not Counted.made
    assert not share_an_env(copied, envs)
    assert share_an_env(envs, envs)
    assert not share_an_env(copied.env, envs.env)
    assert share_an_env(envs.env, envs)
    assert pickle.loads(pickle.dumps(envs)) is None


def test_envs_of_one_process_can_be_copied_and_pickled() -> None:
    envs = rl.make_vec(lambda: gym.make("CartPole-v1"), 2, backend="sync")
    copied = copy.deepcopy(envs)
    assert not share_an_env(copied, envs)
    assert recipe_of(copied).part(1, 2).num_envs == 1
    assert pickle.loads(pickle.dumps(envs)).recipe is None
