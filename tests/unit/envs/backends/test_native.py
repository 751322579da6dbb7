"""EnvPool behind gymnasium's interface; what needs it is skipped without it, except in CI (REQUIRE_ALL_TESTS)."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rltrainer.envs import EnvAdapter, make_vec
from rltrainer.envs.adapter.autoreset import find_autoreset
from rltrainer.errors import EnvError, MissingExtraError, ParamsError


@pytest.fixture
def envpool() -> None:
    pytest.importorskip("envpool", exc_type=ImportError)


def make(num_envs: int = 3, seed: int | None = 1, **options: Any) -> Any:
    return make_vec("CartPole-v1", num_envs, backend="envpool", seed=seed, **{"num_threads": 1, **options})


def test_without_envpool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(MissingExtraError, match=r'needs EnvPool: .* Run: pip install "rltrainer\[envpool\]"'):
        make()


@pytest.mark.usefixtures("envpool")
def test_what_it_declares() -> None:
    envs = make()
    assert (envs.num_envs, envs.base_seed) == (3, 1)
    assert envs.single_observation_space.shape == (4,)
    assert envs.observation_space.shape == (3, 4)
    assert envs.action_space == gym.spaces.MultiDiscrete([2, 2, 2])
    assert find_autoreset(envs) == (AutoresetMode.NEXT_STEP, False)


@pytest.mark.usefixtures("envpool")
def test_seeds() -> None:
    first, again, other = make(), make(), make(seed=2)
    obs = [envs.reset()[0] for envs in (first, again, other)]
    np.testing.assert_array_equal(obs[0], obs[1])
    assert not np.array_equal(obs[0], obs[2])
    assert not np.array_equal(first.reset()[0], obs[0])
    np.testing.assert_array_equal(first.reset(seed=9)[0], other.reset(seed=9)[0])


@pytest.mark.usefixtures("envpool")
def test_an_episode_and_its_reset_through_the_adapter() -> None:
    adapter = EnvAdapter(make(max_episode_steps=5))
    adapter.reset()
    valid, truncated, returned = [], [], []
    for k in range(12):
        step = adapter.step(np.full(3, k % 2))
        returned.append((step.next_obs, step.next_obs.copy()))
        valid.append(step.valid is None or bool(step.valid[0]))
        truncated.append(bool(step.truncated[0]))
        adapter.advance()
    # Five steps, one that is spent on the reset, five steps, ...
    assert valid == [True] * 5 + [False] + [True] * 5 + [False]
    assert truncated == [False] * 4 + [True] + [False] * 5 + [True] + [False]


@pytest.mark.usefixtures("envpool")
def test_nothing_that_was_returned_is_overwritten() -> None:
    envs = make()
    returned = [envs.reset()[0]]
    returned += [envs.step(np.zeros(3, np.int64))[0] for _ in range(20)]
    copies = [obs.copy() for obs in returned]
    for _ in range(200):
        envs.step(np.zeros(3, np.int64))
    envs.close()
    np.testing.assert_array_equal(returned, copies)


@pytest.mark.usefixtures("envpool")
def test_an_id_or_an_option_it_does_not_know() -> None:
    with pytest.raises(EnvError, match="make_vec.env: EnvPool cannot make Wheels-v1: "):
        make_vec("Wheels-v1", 2, backend="envpool")
    with pytest.raises(EnvError, match="make_vec.env: EnvPool cannot make CartPole-v1: TypeError: .*wheels"):
        make(wheels=3)


@pytest.mark.usefixtures("envpool")
def test_what_a_reset_refuses() -> None:
    envs = make()
    with pytest.raises(ParamsError, match="EnvPoolVectorEnv.reset.seed: must be one integer for all envs, or None"):
        envs.reset(seed=[1, 2, 3])
    with pytest.raises(ParamsError, match="EnvPoolVectorEnv.reset.options: EnvPool takes none"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})
