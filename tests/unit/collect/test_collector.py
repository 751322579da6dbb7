"""Collectors: what is counted, what is stored, and what is invalid."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import NonFiniteError, SpaceError
from tests.fakes import CountingEnv, counting_envs, replay_of, rollouts_of, tiny_actor_critic

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)


def collector(num_envs: int = 2, stores: Any = None, **options: Any) -> rl.Collector:
    envs = counting_envs(num_envs, **options)
    return rl.Collector(tiny_actor_critic(envs), envs, None if stores is None else stores(envs))


def greedy(one: rl.Collector) -> torch.Tensor:
    """Return what the policy would do without exploring, for each cell of the last collection."""
    return one.policy.act(one.rollout().obs.flatten(0, 1))


def varied_envs(lengths: list[int]) -> Any:
    """Return envs whose episodes differ in length from env to env."""
    todo = iter(lengths)
    return rl.make_vec(lambda: CountingEnv(length=next(todo)), len(lengths), backend="sync", seed=1)


def test_steps_are_rounded_up_to_whole_rows_and_episodes_continue_in_the_next_collection() -> None:
    one = collector(num_envs=3, length=5)
    stats = one.collect(num_steps=7)
    assert (stats.num_collected_steps, stats.num_env_steps, stats.num_collected_episodes) == (9, 9, 0)
    stats = one.collect(num_steps=np.int64(9))  # type: ignore[arg-type]  # NumPy's integers are numbers too
    assert stats.returns.tolist() == [5.0] * 3
    assert stats.lengths.tolist() == [5] * 3
    assert stats.collect_time > 0
    assert stats.collect_speed == 9 / stats.collect_time
    assert one.collect(num_episodes=np.int32(2)).num_collected_episodes == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("stores", [rollouts_of, replay_of])
def test_episodes_are_shared_and_exact(stores: Any) -> None:
    envs = varied_envs([2, 9])
    one = rl.Collector(tiny_actor_critic(envs), envs, stores(envs))
    one.collect(num_steps=3)  # episodes under way are not continued
    stats = one.collect(num_episodes=5)
    # Three episodes of the short env, two of the long one, however long they are.
    assert sorted(stats.lengths.tolist()) == [2, 2, 2, 9, 9]
    assert stats.num_collected_steps == stats.num_env_steps == 24
    rollout = one.rollout()
    assert rollout.obs[0, :, 1].tolist() == [0, 0]
    assert rollout.valid.sum(0).tolist() == [6, 18]
    assert rollout.done[rollout.valid].sum() == 5
    assert len(one.buffer) == (24 if stores is rollouts_of else 4 + 24)  # no step past a quota


def test_a_reset_cuts_the_trace() -> None:
    one = collector(num_envs=1, length=50, stores=replay_of)
    one.collect(num_steps=3)
    one.reset()
    one.collect(num_steps=3)
    sample = one.buffer.sample(200, n_step=10, gamma=1.0)
    # Windows end at the boundary: none collects more than 3 rewards, and the successor is of the same episode.
    assert sample.reward.max() == 3
    assert torch.equal(sample.obs[:, 0], sample.next_obs[:, 0])
    assert not sample.terminated.any()
    one.reset(reset_buffer=True)
    assert len(one.buffer) == 0


def test_a_replay_buffer_stores_what_the_env_received() -> None:
    envs = counting_envs(2, action_space=BOX)
    policy = tiny_actor_critic(envs)
    with torch.no_grad():
        policy.actor[-1].linear.bias.fill_(5.0)  # far outside the bounds
    on, off = rl.Collector(policy, envs, rollouts_of(envs)), rl.Collector(policy, envs, replay_of(envs))
    on.collect(num_steps=4)
    off.collect(num_steps=4)
    assert on.rollout().action.min() > 1
    assert torch.equal(off.rollout().action, torch.ones(2, 2, 1))
    assert off.buffer.sample(8).action.unique().tolist() == [1.0]


def test_explore_false_is_deterministic_and_exploration_replaces_the_policys_own() -> None:
    one = collector(num_envs=8, stores=rollouts_of)
    for explore in (True, False):
        one.collect(num_steps=80, explore=explore)
        assert torch.equal(one.rollout().action.flatten(), greedy(one)) != explore
    envs = counting_envs(8)
    policy = rl.QNetwork.for_envs(envs, hidden_sizes=(8,))
    policy.exploration = rl.EpsilonGreedy(0.0)
    one = rl.Collector(policy, envs, replay_of(envs, 800), exploration=rl.EpsilonGreedy(1.0))
    one.collect(num_steps=400)
    assert 0.4 < one.rollout().action.float().mean() < 0.6
    one.collect(num_steps=80, explore=False)
    assert torch.equal(one.rollout().action.flatten(), greedy(one))


def test_random_actions_do_not_ask_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    one = collector(stores=replay_of)
    monkeypatch.setattr(one.policy, "decide", lambda *args, **kwargs: pytest.fail("asked"))
    one.collect(num_steps=10, random=True)
    assert len(one.buffer) == 10


class TwoAgents(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """Rewards two agents, the second one twice as much."""

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = self.env.step(actions)
        return obs, np.stack([reward, 2 * reward], 1), *rest


def test_rewards_of_several_agents_are_counted_but_not_stored() -> None:
    envs = TwoAgents(counting_envs(2, length=3))
    policy = tiny_actor_critic(envs)
    stats = rl.Collector(policy, envs).collect(num_episodes=2)
    assert stats.returns.tolist() == [[3.0, 6.0], [3.0, 6.0]]
    with pytest.raises(SpaceError, match=r"rewards of shape \(2, 2\) are several agents'"):
        rl.Collector(policy, envs, replay_of(envs)).collect(num_steps=2)


def test_native_envs_lose_the_cell_of_a_reset() -> None:
    envs = rl.make_vec("CartPole-v1", 4, backend="native", seed=1)
    policy = tiny_actor_critic(envs)
    one = rl.Collector(policy, envs, replay_of(envs, 4000))
    stats = one.collect(num_steps=2000)
    num_resets = int((~one.rollout().valid).sum())
    assert num_resets > 20
    assert (stats.num_env_steps, stats.num_collected_steps) == (2000, 2000 - num_resets)
    assert len(one.buffer) == 2000 - num_resets
    assert stats.returns.tolist() == stats.lengths.tolist()


def test_a_rollout_says_which_envs_were_started_anew() -> None:
    one = collector(num_envs=2, stores=rollouts_of, length=5)
    one.collect(num_steps=6)
    assert one.rollout().starts.tolist() == [True, True]
    one.collect(num_steps=6)
    assert one.rollout().starts.tolist() == [False, False]
    one.reset()
    one.collect(num_steps=6)
    assert one.rollout().starts.tolist() == [True, True]
    one.collect(num_episodes=2)
    assert one.rollout().starts.tolist() == [True, True]


# What a transform makes of a collection


def twice(rollout: rl.Rollout) -> rl.Rollout:
    return dataclasses.replace(rollout, reward=rollout.reward * 2)


@pytest.mark.parametrize("stores", [replay_of, rollouts_of])
@pytest.mark.parametrize("num_steps", [2, 20])
def test_rewards_may_be_others_where_they_are_stored(stores: Any, num_steps: int) -> None:
    plain, changed = collector(stores=stores), collector(stores=stores)
    for one in (plain, changed):
        one.seed(3)
    before = plain.collect(num_steps=num_steps)
    after = changed.collect(num_steps=num_steps, process=twice)
    assert after.returns.tolist() == before.returns.tolist()  # those of the envs
    assert torch.equal(changed.rollout().reward, 2 * plain.rollout().reward)
    assert torch.equal(changed.rollout().action, plain.rollout().action)
    if stores is replay_of:
        there, here = (one.buffer.sample(50).reward.tolist() for one in (plain, changed))  # type: ignore[union-attr]
        assert set(here) == {2 * reward for reward in there}
    for one in (plain, changed):
        one.collect(num_steps=num_steps)
    assert torch.equal(changed.rollout().reward, plain.rollout().reward), "the next collection is as it is"


@pytest.mark.parametrize(("process", "error", "text"), [
    (lambda rollout: None, TypeError, r"process: must return a Rollout of \(2, 2\); got None \(NoneType\)"),
    (lambda r: dataclasses.replace(r, reward=r.reward[:1]), TypeError, r"a Rollout of \(2, 2\); got \(1, 2\)"),
    (lambda r: dataclasses.replace(r, reward=r.reward / 0), NonFiniteError, "returned rewards that are not finite"),
])  # fmt: skip
def test_what_comes_back_is_checked_and_else_nothing_is_stored(process: Any, error: Any, text: str) -> None:
    one = collector(stores=replay_of)
    with pytest.raises(error, match=text):
        one.collect(num_steps=4, process=process)
    assert one.buffer is not None
    assert len(one.buffer) == 0
    assert one.needs_reset


def test_nothing_reaches_it_that_is_not_finite() -> None:
    one, seen = collector(stores=replay_of), []
    one.envs.envs[0].unwrapped.reward = float("nan")  # type: ignore[attr-defined]  # a CountingEnv's
    with pytest.raises(NonFiniteError, match="reward = nan"):
        one.collect(num_steps=4, process=lambda rollout: seen.append(1) or rollout)  # type: ignore[func-returns-value]
    assert seen == []
