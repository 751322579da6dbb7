"""PettingZoo's own envs: rows are what PettingZoo says, agents die, kinds that do not fit are named."""

from functools import partial
from typing import Any

import numpy as np
import pettingzoo
import pytest
from mpe2 import simple_speaker_listener_v4, simple_spread_v3

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError
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


def test_a_central_policy_in_simple_spread() -> None:
    envs = rl.make_vec(lambda: rl.JointEnv(spread(continuous=True)), 2)
    assert envs.single_action_space.shape == (15,)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,))
    stats = rl.Collector(policy, envs, rl.ReplayBuffer(50, *spaces, num_envs=2)).collect(num_steps=40)
    assert stats.lengths.tolist() == [7] * 4


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


def test_agents_of_two_kinds() -> None:
    kinds = partial(simple_speaker_listener_v4.parallel_env, max_cycles=5)
    with pytest.raises(
        SpaceError, match=r"observation_space of 'speaker_0' is Box\(.*\), of 'listener_0' Box\(.*rl.JointEnv"
    ):
        rl.AgentsAsEnvs(kinds, 2)
    envs = rl.make_vec(lambda: rl.JointEnv(kinds()), 2)
    assert envs.single_action_space.nvec.tolist() == [3, 5]
    assert rl.Collector(rl.ActorCritic.for_envs(envs), envs).collect(num_episodes=2).lengths.tolist() == [5, 5]


@pytest.mark.parametrize("make", [simple_spread_v3.env, partial(pettingzoo.make, "aec", "classic/rps-v2")])
def test_an_aec_env(make: Any) -> None:
    for owner, made in (("AgentsAsEnvs", lambda: rl.AgentsAsEnvs(make, 2)), ("JointEnv", lambda: rl.JointEnv(make()))):
        with pytest.raises(ParamsError) as caught:
            made()
        assert str(caught.value).startswith(f"{owner}.env: must be a PettingZoo parallel env; got ")
        assert "Agents of an AEC env act in turn" in str(caught.value)
        assert " at 0x" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")
def test_what_other_tests_use_is_a_parallel_env_to_pettingzoo() -> None:
    from pettingzoo.test import parallel_api_test

    class Proper(Visitors):
        unwrapped = property(lambda env: env)

    parallel_api_test(Proper({"a": (0, 6), "b": (0, 9)}), num_cycles=30)
