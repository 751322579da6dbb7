"""Agents as rows: each row is what its agent went through, wherever the env runs, and nothing else."""

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.envs import EnvAdapter
from rltrainer.seeding import derive_seed
from tests.unit.envs.agents.teams import BOTH, BOX, Failing, Visitors, choice, episode, joined

SEED, NUM_STEPS = 3, 40
SPANS = {
    "all to the end": {"a": (0, 4), "b": (0, 4)},
    "one leaves": BOTH,
    "the first comes later": {"a": (2, 6), "b": (0, 4), "c": (0, 7)},
    "one step": {"a": (0, 1), "b": (0, 2)},
    "alone": {"a": (0, 3)},
}


def cells_of(envs: gym.vector.VectorEnv[Any, Any, Any]) -> list[list[Any]]:
    """Return the transitions of each row in so many steps."""
    adapter = EnvAdapter(envs)
    adapter.seed(SEED)
    adapter.reset()
    cells: list[list[Any]] = [[] for _ in range(envs.num_envs)]
    for _ in range(NUM_STEPS):
        actions = torch.tensor([choice(obs) for obs in adapter.obs])
        step = adapter.step(adapter.to_env(actions))
        for n in range(envs.num_envs):
            if step.valid is None or step.valid[n]:
                ends = bool(step.terminated[n]), bool(step.truncated[n])
                obs, next_obs = adapter.obs[n].tolist(), step.next_obs[n].tolist()
                cells[n].append((obs, int(actions[n]), float(step.reward[n]), next_obs, *ends))
        adapter.advance()
    return cells


def check(envs: rl.AgentsAsEnvs, make: Callable[[], Any]) -> None:
    root = derive_seed(SEED, "reset", 0)
    for n, cells in enumerate(cells_of(envs)):
        copy, agent = divmod(n, envs.num_agents)
        played = (episode(make(), derive_seed(root, copy, number)) for number in count())
        assert len(cells) > 6
        assert cells == joined(played, envs.agents[agent], len(cells))
    envs.close()


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("truncated", [(), ("a",), ("a", "b", "c")])
@pytest.mark.parametrize("lingers", [False, True])
def test_rows_are_what_agents_go_through(spans: Any, truncated: Any, lingers: bool) -> None:
    check(rl.AgentsAsEnvs(partial(Visitors, spans, truncated, lingers=lingers), 2), partial(Visitors, spans, truncated))


def test_who_leaves_without_a_word_was_truncated() -> None:
    make = partial(Visitors, BOTH, silent=("a",))
    cells = episode(make(), 1)["a"]
    assert [cell[4:] for cell in cells] == [(False, False), (False, False), (False, True)]
    check(rl.AgentsAsEnvs(make, 2), make)


def test_workers_give_the_same() -> None:
    make = partial(Visitors, SPANS["the first comes later"], ("a",))
    check(rl.AgentsAsEnvs(make, 3, backend="workers", num_workers=2), make)


def test_who_is_gone_waits_until_the_episode_of_the_others_ends() -> None:
    envs = rl.AgentsAsEnvs(Visitors, 1, seed=1)  # agent a leaves after 3 steps, b after 5
    obs, _ = envs.reset()
    valid, ends, waiting = [], [], []
    for _ in range(6):
        obs, reward, terminated, truncated, infos = envs.step(np.ones(2, np.int64))
        no_transition = infos.get("rltrainer_no_transition", np.zeros(2, np.bool_))
        valid.append((~no_transition).tolist())
        ends.append((terminated.tolist(), truncated.tolist()))
        waiting.append((obs[0].tolist(), float(reward[0])))
    assert valid == [[True, True]] * 3 + [[False, True]] * 2 + [[True, True]]
    nobody = [False, False]
    assert ends[:3] == [(nobody, nobody)] * 2 + [([True, False], nobody)]
    assert ends[3:] == [(nobody, nobody), ([False, True], [True, False]), (nobody, nobody)]
    assert waiting[3] == ([0.0, 0.0, 0.0], 0.0)  # after the third step, and before the fifth, nobody is there
    assert waiting[5] == (obs[0].tolist(), 2.0)


def test_who_comes_later_begins_an_episode_with_an_empty_memory() -> None:
    envs = rl.AgentsAsEnvs(partial(Visitors, {"a": (2, 4), "b": (0, 4)}), 1)
    policy = rl.RecurrentActorCritic.for_envs(envs, hidden_sizes=(8,), cell_size=4)
    buffer = rl.RolloutBuffer(4, 2, envs.single_observation_space, envs.single_action_space, extra=policy.columns)
    collector = rl.Collector(policy, envs, buffer)
    collector.collect(num_steps=8)
    rollout = collector.rollout()
    assert rollout.valid[:, 0].tolist() == [False, False, True, True]
    assert rollout.truncated[:, 0].tolist() == [False, True, False, False]
    assert rollout.begins[2:, 0].tolist() == [True, False]
    is_empty = (rollout.extra["state"][:, 0] == 0).all(-1)
    assert is_empty[2:].tolist() == [True, False]


def test_statistics_are_those_of_agents_and_the_team_return_is_their_sum() -> None:
    envs = rl.AgentsAsEnvs(partial(Visitors, num_choices=1), 2)  # rewards of 1 and 2 a step
    collector = rl.Collector(rl.ActorCritic.for_envs(envs), envs, info_keys=("team_return", "count"))
    collector.seed(1)
    stats = collector.collect(num_steps=10 * envs.num_envs)  # two episodes of each copy
    assert sorted(zip(stats.returns.tolist(), stats.lengths.tolist(), strict=True)) == [(3.0, 3)] * 4 + [(10.0, 5)] * 4
    assert (stats.num_env_steps, stats.num_collected_steps) == (40, 4 * (3 + 5))
    assert stats.info_means == {"team_return": 13.0, "count": 4.0}
    assert np.isfinite(stats.infos["team_return"]).sum() == 4
    stats = collector.collect(num_episodes=6)
    assert sorted(stats.returns.tolist()) == [3.0] * 3 + [10.0] * 3
    stats = rl.evaluate_policy(collector.policy, envs, 8, info_keys=("team_return",))
    assert stats.info_means == {"team_return": 13.0}


def collector_of(spans: Any, num_copies: int = 1, keys: Any = (), buffer: Any = None, **options: Any) -> Any:
    """Return a collector of agents whose rewards are 1, 2, ... a step."""
    envs = rl.AgentsAsEnvs(partial(Visitors, spans, num_choices=1), num_copies)
    collector = rl.Collector(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)), envs, buffer, info_keys=keys, **options)
    collector.seed(1)
    return collector


NEVER = (1000, 1000)


@pytest.mark.parametrize("num_episodes", [1, 2, 3, 7])
@pytest.mark.parametrize("num_copies", [1, 2])
def test_agents_that_never_appear_hand_their_episodes_on(num_copies: int, num_episodes: int) -> None:
    collector = collector_of({"a": NEVER, "b": (0, 4), "c": NEVER}, num_copies, ("team_return",))
    for _ in range(2):
        stats = collector.collect(num_episodes=num_episodes)
        assert stats.lengths.tolist() == [4] * num_episodes
        assert stats.returns.tolist() == [8.0] * num_episodes
        assert stats.info_means == {"team_return": 8.0}
        assert stats.num_env_steps == stats.num_collected_steps == 4 * num_episodes


def test_episodes_are_shared_among_those_that_appear() -> None:
    stats = collector_of({"a": (0, 3), "b": NEVER, "c": (0, 5)}).collect(num_episodes=9)
    assert sorted(stats.lengths.tolist()) == [3, 3, 3, 3, 3, 5, 5, 5, 5]  # 3 each, and b's: 2 of a and 1 of c


def test_a_rollout_holds_the_episodes_that_are_counted() -> None:
    one = collector_of({"a": NEVER, "b": (0, 4)})
    buffer = rl.RolloutBuffer(4, 2, one.envs.single_observation_space, one.envs.single_action_space)
    one.attach_buffer(buffer)
    assert one.collect(num_episodes=3).lengths.tolist() == [4, 4, 4]
    rollout = buffer.rollout()
    assert rollout.valid[:, 0].sum() == 0
    assert rollout.reward[rollout.valid].tolist() == [2.0] * 12
    assert rollout.terminated[rollout.valid].nonzero().flatten().tolist() == [3, 7, 11]


def test_teams_are_cut_where_episodes_are_as_long_as_they_may_be() -> None:
    collector = collector_of({"a": (0, 3), "b": (0, 1000), "c": NEVER}, max_episode_steps=6, keys=("team_return",))
    stats = collector.collect(num_episodes=5)  # more than there are rows, without a reset of all
    assert sorted(stats.lengths.tolist()) == [3, 3, 3, 6, 6]
    assert stats.info_means == {"team_return": 15.0}
    assert collector.collect(num_steps=3 * 100).lengths.tolist() == [3]  # these are not cut


@pytest.mark.parametrize("backend", ["sync", "workers"])
def test_the_return_of_a_team_whose_agents_leave_early(backend: Any) -> None:
    """One episode, of agent a, which leaves after 3 of 5 steps: its team comes to 3 + 10."""
    envs = rl.AgentsAsEnvs(partial(Visitors, num_choices=1), 2, backend=backend, **(
        {"num_workers": 1} if backend == "workers" else {}))  # fmt: skip
    collector = rl.Collector(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)), envs, info_keys=("team_return",))
    stats = collector.collect(num_episodes=1)
    assert (stats.lengths.tolist(), stats.info_means) == ([3], {"team_return": 13.0})
    assert stats.num_env_steps == 3
    stats = collector.collect(num_episodes=3)  # two of the first team, and a's of the second
    assert np.nansum(stats.infos["team_return"]) == 26.0
    envs.close()


def test_a_collection_in_which_no_team_is_done_is_no_surprise() -> None:
    collector = collector_of({"a": (0, 3), "b": (0, 50)}, keys=("team_return",))
    stats = collector.collect(num_steps=2 * 4)  # a warning would be an error
    assert stats.lengths.tolist() == [3]
    assert stats.info_means == {}


def test_no_window_and_no_advantage_reaches_over_who_is_gone() -> None:
    envs = rl.AgentsAsEnvs(partial(Visitors, truncated=("b",)), 2)
    policy = rl.QNetwork.for_envs(envs)
    buffer = rl.ReplayBuffer(400, envs.single_observation_space, envs.single_action_space, num_envs=4, seed=1)
    collector = rl.Collector(policy, envs, buffer)
    collector.collect(num_steps=120)
    assert len(buffer) == 12 * (3 + 5)
    drawn = buffer.sample(500, n_step=3, gamma=1.0)
    agent, step = drawn.obs[:, 0].long(), drawn.obs[:, 1].long()
    last = torch.where(agent == 0, 3, 5)
    assert set(agent.tolist()) == {0, 1}
    # A window ends at the end of its agent's episode; only who was truncated (b) is bootstrapped there.
    assert torch.equal(drawn.next_obs[:, 1].long(), torch.minimum(step + 3, last))
    assert torch.equal(drawn.next_obs[:, 0].long(), agent)
    assert torch.equal(drawn.discount == 0, (agent == 0) & (step + 3 >= 3))


def test_seeds() -> None:
    made: list[Visitors] = []

    def make() -> Any:
        made.append(Visitors())
        return made[-1]

    envs = rl.AgentsAsEnvs(make, 2)
    collector = rl.Collector(rl.ActorCritic.for_envs(envs), envs)
    collector.seed(5)
    collector.collect(num_episodes=8)
    first = [env.seeds[:2] for env in made]
    assert len({seed for seeds in first for seed in seeds}) == 4  # each episode of each copy has its own
    for env in made:
        env.seeds.clear()
    collector.reset(first_episode=True)  # as every test step does
    collector.collect(num_episodes=8)
    assert [env.seeds[:2] for env in made] == first
    again = rl.AgentsAsEnvs(Visitors, 2, seed=7)
    obs = again.reset()[0]
    assert np.array_equal(rl.AgentsAsEnvs(Visitors, 2, seed=7).reset()[0], obs)
    again.step(np.zeros(4, np.int64))
    assert not np.array_equal(again.reset()[0], obs)
    assert np.array_equal(again.reset(seed=3)[0], again.reset(seed=3)[0])


class Positions(Visitors):
    """Observes a choice, whose first is 1, and several."""

    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Tuple([gym.spaces.Discrete(9, start=1), gym.spaces.MultiDiscrete([4, 9], start=[1, 2])])

    def _obs(self, name: str) -> Any:
        return self.num_steps + 1, np.array([1, 2 + self.num_steps])


def test_who_is_gone_observes_what_the_space_holds() -> None:
    envs = rl.AgentsAsEnvs(Positions, 2)
    obs, _ = envs.reset(seed=1)
    for _ in range(3):
        obs, *_ = envs.step(np.zeros(4, np.int64))
    assert [leaf.tolist() for leaf in obs] == [[1, 4, 1, 4], [[1, 2], [1, 5]] * 2]
    joint = rl.JointEnv(Positions())
    obs, _ = joint.reset(seed=1)
    for _ in range(4):
        assert obs in joint.observation_space
        obs, *_ = joint.step(np.zeros(2, np.int64))
    assert (obs["a"][0], obs["a"][1].tolist()) == (1, [1, 2])


@pytest.mark.parametrize("agent_id", [False, True])
def test_masks(agent_id: bool) -> None:
    envs = rl.AgentsAsEnvs(partial(Visitors, is_masked=True), 2, agent_id=agent_id)
    assert envs.single_observation_space["action_mask"] == gym.spaces.MultiBinary(2)
    obs, _ = envs.reset(seed=1)
    for _ in range(3):
        obs, *_, infos = envs.step(np.zeros(4, np.int64))
    assert infos["final_obs"]["action_mask"][:, 0].tolist() == [0, 1, 0, 1]  # a is at its end, b goes on
    assert obs["action_mask"].tolist() == [[1, 1]] * 4  # who waits may do anything
    assert obs["observation"][0].tolist() == [0.0, 0.0, 0.0]
    for policy in (rl.ActorCritic.for_envs(envs), rl.QNetwork.for_envs(envs)):
        rl.Collector(policy, envs).collect(num_episodes=8)


def test_agent_id() -> None:
    envs = rl.AgentsAsEnvs(Visitors, 2, agent_id=True)
    assert envs.single_observation_space == gym.spaces.Dict({"agent": gym.spaces.Discrete(2), "observation": BOX})
    obs, _ = envs.reset(seed=1)
    assert obs in envs.observation_space
    for number in range(7):
        assert obs["agent"].tolist() == [0, 1, 0, 1]
        assert [int(frame[0, 0, 0]) for frame in envs.render()] == [number % 5] * 4  # those of the copies
        obs, *_ = envs.step(np.zeros(4, np.int64))
    rl.Collector(rl.ActorCritic.for_envs(envs), envs).collect(num_steps=40)


def test_nothing_that_was_returned_is_overwritten() -> None:
    envs = rl.AgentsAsEnvs(partial(Visitors, SPANS["one step"]), 2)
    returned = [envs.reset(seed=1)[0]]
    for _ in range(6):
        obs, reward, terminated, truncated, infos = envs.step(np.zeros(4, np.int64))
        returned += [obs, reward, terminated, truncated, *infos.values()]
        assert obs in envs.observation_space
    before = [np.copy(value) for value in returned]
    envs.step(np.ones(4, np.int64))
    envs.reset(seed=2)
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(returned, before, strict=True))


def test_a_copy_that_fails_is_restarted(tmp_path: Path) -> None:
    options = {"backend": "workers", "num_workers": 1, "on_env_error": "restart", "max_restarts": 1}
    envs = rl.AgentsAsEnvs(partial(Failing, tmp_path / "failed"), 1, **options)
    collector = rl.Collector(rl.ActorCritic.for_envs(envs), envs)
    collector.seed(1)
    stats = collector.collect(num_steps=2 * 7)
    # One step, the one that failed, and an episode, of which agent a leaves two steps early.
    assert (sorted(stats.lengths.tolist()), stats.num_collected_steps) == ([3, 5], 2 + 3 + 5)
    assert collector.num_env_restarts == 1
    envs.close()
