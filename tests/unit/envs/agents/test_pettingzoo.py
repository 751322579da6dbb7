"""PettingZoo's own envs: rows are what PettingZoo says, agents die, kinds that do not fit are named."""

from functools import partial
from typing import Any

import numpy as np
import pettingzoo
import pytest
from mpe2 import simple_spread_v3

import rltrainer as rl
from rltrainer.seeding import derive_seed
from tests.unit.envs.agents.teams import Visitors


def spread(continuous: bool = False) -> Any:
    """Return three agents that shall cover three landmarks in 7 steps; at the top level, as workers need it."""
    return simple_spread_v3.parallel_env(max_cycles=7, continuous_actions=continuous)


@pytest.mark.parametrize("backend", ["sync", "workers"])
@pytest.mark.parametrize("continuous", [False, True])
def test_simple_spread(backend: Any, continuous: bool) -> None:
    make = partial(spread, continuous)
    options = {"num_workers": 1} if backend == "workers" else {}
    envs = rl.AgentsAsEnvs(make, 2, backend=backend, **options)
    obs, _ = envs.reset(seed=3)
    actions = [envs.action_space.sample() for _ in range(20)]
    seeds = iter(derive_seed(3, 1, number) for number in range(9))
    alone = make()
    expected, _ = alone.reset(seed=next(seeds))
    for action in actions:
        assert np.array_equal(obs[3:], np.stack(list(expected.values())))
        obs, reward, terminated, truncated, infos = envs.step(action)
        given = dict(zip(alone.agents, action[3:], strict=True))
        expected, rewards, *_ = alone.step(given)
        assert reward[3:] == pytest.approx(list(rewards.values()), rel=1e-6)
        assert not terminated.any()
        assert truncated[3:].tolist() == [not alone.agents] * 3
        if not alone.agents:
            assert np.array_equal(infos["final_obs"][3:], np.stack(list(expected.values())))
            expected, _ = alone.reset(seed=next(seeds))
    envs.close()


def test_agents_that_die() -> None:
    make = partial(pettingzoo.make, "parallel", "butterfly/knights_archers_zombies-v11", max_cycles=150, spawn_delay=2)
    envs = rl.AgentsAsEnvs(make, 1, agent_id=True)
    assert envs.agents == ("archer_0", "archer_1", "knight_0", "knight_1")
    buffer = rl.RolloutBuffer(300, 4, envs.single_observation_space, envs.single_action_space)
    collector = rl.Collector(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,)), envs, buffer, info_keys=("team_return",))
    collector.seed(1)
    stats = collector.collect(num_steps=300 * 4)
    rollout = collector.rollout()
    assert stats.num_collected_steps == int(rollout.valid.sum()) < 1200
    assert rollout.valid.any(1).all()  # somebody is always there
    assert int(rollout.terminated.sum()) > 2
    # Whose row waits has died, and waits until the others' episode ends.
    waits = ~rollout.valid[1:] & rollout.valid[:-1]
    assert rollout.terminated[:-1][waits].all()
    assert (~rollout.valid).any()
    assert stats.info_means["team_return"] >= 0
    envs.close()


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_what_other_tests_use_is_a_parallel_env_to_pettingzoo() -> None:
    from pettingzoo.test import parallel_api_test

    class Proper(Visitors):
        unwrapped = property(lambda env: env)

    parallel_api_test(Proper({"a": (0, 6), "b": (0, 9)}), num_cycles=30)
