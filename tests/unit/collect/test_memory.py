"""What collectors remember for policies and explorations, and the columns that they fill."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from tests.fakes import counting_envs, replay_of, rollouts_of, tiny_actor_critic
from tests.unit.envs.scripted import SEED, ScriptedVectorEnv

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)


class Counts(rl.Policy):
    """Remembers how often it was asked in the episode, and what it saw last; tells both as a column."""

    extra_specs = {"asked": ((), torch.float32), "twice": ((2,), torch.float32)}  # noqa: RUF012 - a test's

    def __init__(self, *spaces: Any) -> None:
        super().__init__(*spaces)
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def initial_state(self, num_envs: int) -> Tensor:
        return torch.tensor([[0.0, -1.0]]).repeat(num_envs, 1)

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
        state = torch.stack([state[:, 0] + 1, obs[:, 1]], 1)
        action = torch.zeros(len(obs), dtype=torch.int64)
        if explore:
            action = torch.randint(2, (len(obs),), generator=generator)
        return rl.Decision(action, state, {"asked": state[:, 0], "twice": lambda: 2 * state})


class Walk:
    """Exploration with a memory: adds 1/8 more at each step of an episode."""

    def initial_state(self, num_envs: int, action_space: Any) -> Tensor:
        return torch.zeros(num_envs, 1)

    def __call__(self, action: Tensor, space: Any, progress: float, generator: Any) -> Tensor:
        return self.step(action, torch.zeros(len(action), 1), space, progress, generator)[0]

    def step(self, action: Tensor, state: Tensor, space: Any, progress: float, generator: Any) -> tuple[Tensor, Tensor]:
        return torch.full_like(action, 0.125) + state, state + 0.125


def collector(num_envs: int = 2, length: int = 3, columns: tuple[str, ...] = ("state",), kind: Any = None) -> Any:
    envs = counting_envs(num_envs, length=length)
    policy = Counts.for_envs(envs)
    extra = {name: policy.columns[name] for name in columns}
    buffer = rollouts_of(envs, 4, extra=extra)
    if kind is rl.ReplayBuffer:
        buffer = replay_of(envs, 100, extra=extra)  # type: ignore[assignment]
    return rl.Collector(policy, envs, buffer)


def test_memory_is_handed_on_and_forgotten_before_the_next_episode_begins() -> None:
    one = collector(length=3)
    one.collect(num_steps=8)
    state = one.rollout().extra["state"][:, 0]
    # Asked 0, 1, 2 times in the episode before; step counts 0 and 1 were seen last. Then another episode.
    assert state.tolist() == [[0, -1], [1, 0], [2, 1], [0, -1]]
    assert one.rollout().begins[:, 0].tolist() == [False, False, False, True]
    one.collect(num_steps=4)
    assert one.rollout().extra["state"][:, 0].tolist() == [[1, 0], [2, 1]], "the next collection goes on"


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
def test_valid_cells_are_acted_on_with_the_same_memory_in_every_autoreset_mode(mode: Any) -> None:
    envs: Any = ScriptedVectorEnv(3, mode)
    policy = Counts.for_envs(envs)
    one = rl.Collector(policy, envs, rollouts_of(envs, 40, extra={"state": ((2,), torch.float32)}))
    one.adapter.seed(SEED)
    one.collect(num_steps=120)
    rollout = one.rollout()
    asked, expected = rollout.extra["state"][..., 0], torch.zeros(3)
    begins = rollout.begins
    for t in range(40):
        expected = torch.where(begins[t], 0.0, expected)
        assert torch.equal(asked[t][rollout.valid[t]], expected[rollout.valid[t]]), f"row {t}"
        expected = expected + 1
    assert begins.any()


def test_memory_begins_again_with_the_envs_and_after_a_collection_that_broke_off() -> None:
    one = collector(length=50)
    for counts in ({"num_steps": 6}, {"num_episodes": 2}, {"num_steps": 6}):
        one.max_episode_steps = 5 if "num_episodes" in counts else None
        one.collect(**counts)
        assert one.rollout().extra["state"][0].tolist() == [[0, -1], [0, -1]]
        one.reset()
    one.collect(num_steps=6)
    step, one.envs.step = one.envs.step, lambda action: 1 / 0
    with pytest.raises(ZeroDivisionError):
        one.collect(num_steps=6)
    one.envs.step = step
    one.collect(num_steps=2)
    assert one.rollout().extra["state"][0].tolist() == [[0, -1], [0, -1]]


def test_what_happens_under_random_actions_is_remembered() -> None:
    one = collector(length=50)
    one.collect(num_steps=4, random=True)
    assert one.rollout().extra["state"][:, 0].tolist() == [[0, -1], [1, 0]]
    one.collect(num_steps=2)
    assert one.rollout().extra["state"][:, 0].tolist() == [[2, 1]]


def test_random_actions_are_the_same_with_and_without_a_memory() -> None:
    envs = counting_envs(2)
    spaces = (envs.single_observation_space, envs.single_action_space)
    actions = []
    for policy in (Counts(*spaces), rl.QNetwork(*spaces)):
        one = rl.Collector(policy, counting_envs(2), rollouts_of(envs, 10))
        one.seed(7)
        one.collect(num_steps=20, random=True)
        actions.append(one.rollout().action.clone())
    assert torch.equal(*actions)


def test_a_test_collector_remembers_without_a_buffer() -> None:
    asked: list[list[float]] = []

    class Records(Counts):
        def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
            asked.append(state[:, 0].tolist())
            return super().decide(obs, state, mask, explore, generator)

    envs = counting_envs(2, length=3)
    rl.Collector(Records.for_envs(envs), envs).collect(num_episodes=3, explore=False)
    # Env 0 has two episodes, env 1 one: what it does afterwards is not looked at.
    assert [row[0] for row in asked] == [0, 1, 2, 0, 1, 2]
    assert [row[1] for row in asked[:3]] == [0, 1, 2]


def test_copies_continue_alike_in_the_middle_of_an_episode_and_after_a_look_aside() -> None:
    one = collector(length=50)
    one.collect(num_steps=6)
    other = copy.deepcopy(one)
    for c in (one, other):
        c.collect(num_steps=6)
    assert one.rollout().extra["state"][0].tolist() == [[3, 2], [3, 2]]
    assert torch.equal(one.rollout().extra["state"], other.rollout().extra["state"])
    one.collect_random(5)
    other.reset()
    for c in (one, other):
        c.collect(num_steps=8)
    assert torch.equal(one.rollout().extra["state"], other.rollout().extra["state"])


def test_memory_is_in_the_state_and_fits_the_envs_after_a_resume() -> None:
    one, other = collector(length=3), collector(length=3)
    one.seed(4)
    one.collect(num_steps=6)  # the envs are at an episode's start
    state = one.state_dict()
    assert state["memory"].tolist() == [[0, -1], [0, -1]]
    other.load_state_dict(state)
    for c in (one, other):
        c.collect(num_steps=8)
    assert torch.equal(one.rollout().obs, other.rollout().obs)
    assert torch.equal(one.rollout().extra["state"], other.rollout().extra["state"])
    assert torch.equal(one.rollout().action, other.rollout().action)
    # In the middle of an episode the memory goes on with it; where envs begin another one, so does the memory.
    state = one.state_dict()
    other.load_state_dict(state)
    assert other.state_dict()["memory"].tolist() == [[1, 0], [1, 0]]
    other.collect(num_steps=2)
    assert other.rollout().extra["state"][0].tolist() == [[1, 0], [1, 0]]
    del state["adapter"]["actions"]
    with pytest.warns(UserWarning, match="start a new episode"):
        other.load_state_dict(state)
    other.collect(num_steps=2)
    assert other.rollout().extra["state"][0].tolist() == [[0, -1], [0, -1]]


def test_a_memory_of_another_policy_is_not_loaded() -> None:
    one, envs = collector(), counting_envs(2, length=3)
    one.collect(num_steps=6)
    with pytest.raises(CheckpointError, match="^collector.memory: QNetwork has none, found tensor"):
        rl.Collector(rl.QNetwork.for_envs(envs), envs).load_state_dict(one.state_dict())
    state = one.state_dict() | {"memory": torch.zeros(2, 5)}
    with pytest.raises(CheckpointError, match=r"^collector.memory: expected shape \(2, 2\), found \(2, 5\)"):
        one.load_state_dict(state)


def test_columns_go_into_replay_buffers() -> None:
    one = collector(kind=rl.ReplayBuffer, columns=("state", "asked", "twice"))
    one.collect(num_steps=2)  # one row, and several
    one.collect(num_steps=8)
    batch = one.buffer.sample(50)
    assert torch.equal(batch.extra["asked"], batch.extra["state"][:, 0] + 1)
    assert torch.equal(batch.extra["twice"][:, 0], 2 * batch.extra["asked"])
    assert torch.equal(batch.extra["asked"], batch.obs[:, 1] + 1), "steps of the episode"


@pytest.mark.parametrize("cls", [rl.Actor, rl.ActorCritic, rl.SquashedActorCritic, rl.GaussianActorCritic])
def test_stochastic_policies_tell_log_probabilities(cls: Any) -> None:
    rl.seed(1)  # an action that is nearly squashed to a bound tells its sample within rounding only
    envs = counting_envs(2, action_space=BOX)
    policy = cls.for_envs(envs, hidden_sizes=(8,), normalize_obs=True)
    one = rl.Collector(policy, envs, rollouts_of(envs, 4, extra=policy.columns))
    one.collect(num_steps=8)
    rollout = one.rollout()
    with torch.no_grad():
        distribution = policy.distribution(policy.normalize(rollout.obs.flatten(0, 1)))
        expected = distribution.log_prob(policy.unscale(rollout.action.flatten(0, 1)))
    torch.testing.assert_close(rollout.extra["log_prob"].flatten(), expected)


@pytest.mark.parametrize("kind", [rl.RolloutBuffer, rl.ReplayBuffer])
def test_cells_tell_which_weights_chose_them(kind: Any) -> None:
    envs = counting_envs(2)
    policy = rl.QNetwork.for_envs(envs)
    policy.exploration = rl.EpsilonGreedy(0.5)  # and random actions too: what they were chosen without is no secret
    made = rollouts_of if kind is rl.RolloutBuffer else replay_of
    one = rl.Collector(policy, envs, made(envs, 4, extra={"version": ((), torch.int64)}))
    for version, is_random in ((0, True), (1, False), (7, False)):
        policy.version = version
        one.collect(num_steps=4, random=is_random)
        assert one.rollout().extra["version"].tolist() == [[version] * 2] * 2
        assert one.rollout().extra["version"].dtype == torch.int64


def test_log_probabilities_are_not_computed_for_buffers_without_the_column() -> None:
    envs = counting_envs(2)
    policy = tiny_actor_critic(envs)
    decision = policy.select_action(torch.zeros(2, 2), explore=True)
    assert callable(decision.extra["log_prob"])


def test_a_column_that_is_declared_otherwise_or_that_nobody_fills_is_an_error() -> None:
    class Silent(Counts):
        def decide(self, *args: Any) -> rl.Decision:
            return rl.Decision(super().decide(*args).action)

    envs = counting_envs(2)
    text = r"^Collector.buffer.extra\['log_prob'\]: must be a column that the policy fills; ActorCritic fills {"
    with pytest.raises(ParamsError, match=text):
        rl.Collector(tiny_actor_critic(envs), envs, rollouts_of(envs, 4, extra={"log_prob": ((1,), torch.float32)}))
    one = rl.Collector(Silent.for_envs(envs), envs, rollouts_of(envs, 4, extra={"asked": ((), torch.float32)}))
    text = r"^Silent.decide: must return extra\['asked'\], as extra_specs declares; got \[\]"
    with pytest.raises(ParamsError, match=text):
        one.collect(num_steps=2)


@pytest.mark.parametrize("how", ["random", "exploration"])
def test_columns_of_the_policys_choices_need_the_policys_choices(how: str) -> None:
    one = collector(columns=("state", "asked"))
    one.exploration = rl.EpsilonGreedy(0.5) if how == "exploration" else None
    with pytest.raises(ParamsError, match=r"^Collector.buffer.extra: must hold no column of .*; got \['asked'\]"):
        one.collect(num_steps=4, random=how == "random")
    one.collect(num_steps=4, explore=False)


@pytest.mark.parametrize("whose", ["policy", "collector"])
def test_exploration_can_remember(whose: str) -> None:
    envs = counting_envs(2, length=3, action_space=BOX)
    policy = rl.DeterministicActorCritic.for_envs(envs, hidden_sizes=(8,))
    one = rl.Collector(policy, envs, rollouts_of(envs, 4))
    if whose == "collector":
        one.collect(num_steps=2)
        one.exploration = Walk()  # in the middle of an episode
        one.collect(num_steps=4)
        assert one.rollout().action[:, 0, 0].tolist() == [0.125, 0.25]
        return
    policy.exploration = Walk()
    one.collect(num_steps=8)
    assert one.rollout().action[:, 0, 0].tolist() == [0.125, 0.25, 0.375, 0.125]
    one.collect(num_steps=2, explore=False)
    one.collect(num_steps=2)
    assert one.rollout().action[:, 0, 0].tolist() == [0.25], "it is kept while others act"
    assert policy.act(torch.zeros(2, 2), explore=True).tolist() == [[0.125], [0.125]], "by itself it has just begun"


def test_only_one_of_policy_and_exploration_remembers() -> None:
    one = collector()
    one.exploration = Walk()
    with pytest.raises(ParamsError, match="^Collector.exploration: must have no memory where Counts has one; got"):
        one.collect(num_steps=2)


def test_algorithms_that_look_at_single_cells_train_no_memory() -> None:
    class Forgetful(rl.DQN):
        policy_class = rl.Policy  # type: ignore[assignment]  # would take any

    envs = counting_envs(2)
    text = "^Forgetful.policy: must have no memory, as Forgetful updates from single steps; got Counts. RecurrentPPO"
    with pytest.raises(ParamsError, match=text):
        Forgetful(Counts.for_envs(envs))  # type: ignore[arg-type]  # the mistake


def test_offline_data_without_the_columns_that_an_algorithm_reads_is_an_error() -> None:
    class Needs(rl.DQN):
        columns = ("version",)

    envs = counting_envs(2)
    algorithm = Needs(rl.QNetwork.for_envs(envs))
    buffer = replay_of(envs, 10)
    rl.Collector(algorithm.policy, envs, buffer).collect(num_steps=4)
    with pytest.raises(ParamsError, match="OfflineTrainerParams.buffer: must have the column 'version', which Needs"):
        rl.OfflineTrainerParams(buffer=buffer).create_trainer(algorithm)
