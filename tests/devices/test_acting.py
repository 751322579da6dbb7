"""Acting as a CUDA graph: the numbers of a run without one, bit for bit, and one wait for each step."""

import contextlib
import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.execution.cuda_graph import CudaRecorder
from rltrainer.execution.policy_execution import PolicyExecution
from rltrainer.nets.policy import Decision
from rltrainer.seeding import make_generator
from tests.devices import second_device
from tests.devices.test_runs import EAGER, made
from tests.fakes import counting_envs, replay_of, rollouts_of
from tests.resume.runs import assert_resumes, digest
from tests.resume.steered import steered_envs

AUTO = rl.RuntimeParams(compile=False)
FAST = ["ppo", "dqn", "sac", "recurrent_ppo_midway"]
FULL = ["ppo_binary", "a2c", "a2c_sde_midway", "sac_sde", "td3", "ddpg_drifting", "ppo_float64", "dqn_episodes"]
STEERED = ["ppo_masked", "dqn_masked", "sac_hindsight"]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[PolicyExecution]:
    """What ran each choice that was a graph."""
    found: list[PolicyExecution] = []
    choose = PolicyExecution.choose

    def counted(execution: PolicyExecution, *args: Any) -> Any:
        chosen = choose(execution, *args)
        found.extend([execution] * (chosen is not None))
        return chosen

    monkeypatch.setattr(PolicyExecution, "choose", counted)
    return found


def result(name: str, runtime: rl.RuntimeParams, **options: Any) -> str:
    """Return the digest of a short run."""
    trainer = made(name, "cuda", runtime=runtime, max_epochs=2, **options)
    policy = trainer.algorithm.policy
    if isinstance(policy.exploration, rl.EpsilonGreedy):
        policy.exploration = rl.EpsilonGreedy(rl.LinearSchedule(0.9, 0.1))
    if type(policy.exploration) is rl.GaussianNoise:
        policy.exploration = rl.GaussianNoise(rl.LinearSchedule(0.9, 0.1))
    trainer.run()
    trainer.state.runtime = EAGER
    return digest(trainer)


@pytest.mark.parametrize(("name", "num_envs"), [
    *((name, 2) for name in FAST), *(pytest.param(name, 2, marks=pytest.mark.full) for name in FULL),
    # One env, and many: how many there are is only a size of what is recorded.
    *(pytest.param(name, n, marks=pytest.mark.full) for name in ("ppo", "dqn") for n in (1, 16)),
])  # fmt: skip
def test_a_run_is_the_same_bit_for_bit(name: str, num_envs: int, replays: list[PolicyExecution]) -> None:
    with_graphs = result(name, AUTO, num_envs=num_envs)
    assert replays
    replays.clear()
    assert result(name, EAGER, num_envs=num_envs) == with_graphs
    assert not replays


@pytest.mark.parametrize("name", STEERED)
def test_masks_and_dicts(name: str, replays: list[PolicyExecution]) -> None:
    with_graphs = result(name, AUTO, make_envs=steered_envs)
    assert replays
    assert result(name, EAGER, make_envs=steered_envs) == with_graphs


def test_each_collection_follows_the_schedule_and_waits_once_a_step(
    replays: list[PolicyExecution], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Any] = []
    wait = second_device.wait
    monkeypatch.setattr(second_device, "wait", lambda *clock: (waits.append(clock), wait(*clock)))
    envs = counting_envs(64)
    policy = rl.QNetwork.for_envs(envs, hidden_sizes=(8,)).to("cuda")
    schedule = rl.LinearSchedule(1.0, 0.0)
    policy.exploration = rl.EpsilonGreedy(schedule)
    collector = rl.Collector(policy, envs, replay_of(envs, 1000))
    shares = []
    for k in range(5):
        policy.progress = lambda k=k: k / 4
        waits.clear()
        collector.collect(num_steps=192)
        assert k == 0 or len(waits) == 3
        greedy = policy.act(torch.as_tensor(collector.rollout().obs).to("cuda").flatten(0, 1)).cpu()
        shares.append(float((collector.rollout().action.flatten() != greedy).float().mean()))
    assert len(replays) == 15
    assert len(replays[0]._choices) == 1
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.4
    assert shares[-1] == 0.0


def collected(policy: rl.Policy, with_graph: bool, **options: Any) -> tuple[Any, rl.Collector]:
    """Return what a collector of its own has stored, with and without exploring."""
    policy.cuda_graph = with_graph
    envs = counting_envs(3, seed=4, action_space=policy.action_space)
    buffer = rl.RolloutBuffer(8, 3, policy.observation_space, policy.action_space, extra=options.pop("extra", None))
    collector = rl.Collector(policy, envs, buffer, **options)
    collector.seed(6)
    found = []
    for explore in (True, True, False, True):
        collector.collect(num_steps=24, explore=explore)
        rollout = collector.rollout()
        found += [rollout.action.clone(), *(rollout.extra[name].clone() for name in rollout.extra)]
    return found, collector


class Looks(rl.ActorCritic):
    def decide(self, *args: Any) -> Decision:
        decision = super().decide(*args)
        if decision.action.sum() > 1e9:
            raise AssertionError
        return decision


class Counts(rl.ActorCritic):
    num_calls = 0

    def decide(self, *args: Any) -> Decision:
        self.num_calls += 1
        decision = super().decide(*args)
        decision.action = torch.full_like(decision.action, self.num_calls % 2)
        return decision


def refuses(action: Any, space: Any, progress: float, generator: Any) -> Any:
    return torch.zeros_like(action)


@pytest.mark.parametrize(("cls", "options", "reason"), [
    (Looks, {}, "_local_scalar_dense: the host would wait for the device"),
    (Counts, {}, "choosing an action changes its attributes"),
    (rl.ActorCritic, {"exploration": refuses}, "the exploration function is not of rltrainer"),
])  # fmt: skip
def test_a_policy_that_cannot_be_recorded_acts_without_a_graph(
    cls: Any, options: Any, reason: str, replays: list[PolicyExecution], caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for with_graph in (True, False):
        rl.seed(1)
        policy = cls.for_envs(counting_envs(3), hidden_sizes=(8,)).to("cuda")
        with caplog.at_level(logging.INFO, "rltrainer"):
            found.append(collected(policy, with_graph, **options)[0])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert not replays
    lines = [record.getMessage() for record in caplog.records if "CUDA graph" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"{cls.__name__} acts without a CUDA graph, which cannot be recorded: {reason}")


@pytest.mark.parametrize("name", ["recurrent_ppo_midway", pytest.param("a2c_sde_midway", marks=pytest.mark.full)])
def test_a_run_is_resumed_bit_for_bit(name: str, tmp_path: Path, replays: list[PolicyExecution]) -> None:
    resumed = assert_resumes(lambda: made(name, "cuda", runtime=AUTO, max_epochs=3), tmp_path)
    assert resumed.params.training_collector._selection._execution in replays


def recurrent() -> tuple[rl.Policy, rl.Collector]:
    rl.seed(1)
    envs = counting_envs(3)
    policy = rl.RecurrentActorCritic.for_envs(envs, hidden_sizes=(8,)).to("cuda")
    collector = rl.Collector(policy, envs, rollouts_of(envs, 4, extra={"state": policy.columns["state"]}))
    collector.seed(2)
    return policy, collector


def test_a_saved_memory_and_a_copy_are_not_changed_by_later_steps() -> None:
    _, collector = recurrent()
    collector.collect(num_steps=6)
    state = collector.state_dict()
    before, twin = state["memory"].clone(), copy.deepcopy(collector)
    collector.collect(num_steps=6)
    assert torch.equal(state["memory"], before)
    twin.collect(num_steps=6)
    assert torch.equal(twin.rollout().action, collector.rollout().action)
    assert torch.equal(twin.rollout().extra["state"], collector.rollout().extra["state"])


class Chooses(rl.ActorCritic):
    """Takes the action of an attribute, or of a method."""

    choice = 0

    def decide(self, *args: Any) -> Decision:
        decision = super().decide(*args)
        decision.action = torch.full_like(decision.action, self.choice)
        return decision


def replaced_module(policy: Any) -> None:
    policy.actor[2].linear = nn.Linear(8, 2).to("cuda")


def moved_weights(policy: Any) -> None:
    for parameter in policy.parameters():
        parameter.data = parameter.data.clone().neg()


def changed_attribute(policy: Any) -> None:
    policy.choice = 1


def replaced_method(policy: Any) -> None:
    def decide(self: Any, *args: Any) -> Decision:
        decision = rl.ActorCritic.decide(self, *args)
        decision.action = 1 - decision.action
        return decision

    type(policy).decide = decide


def added_noise(policy: Any) -> None:
    policy.exploration = rl.EpsilonGreedy(1.0)


@pytest.mark.parametrize(
    ("cls", "change"),
    [
        (rl.ActorCritic, replaced_module), (rl.ActorCritic, moved_weights), (Chooses, changed_attribute),
        (Chooses, replaced_method), (rl.QNetwork, added_noise),
    ],
)  # fmt: skip
def test_a_policy_that_changed_is_recorded_again(cls: Any, change: Any, replays: list[PolicyExecution]) -> None:
    found = []
    for with_graph in (True, False):
        rl.seed(1)
        envs = counting_envs(3)
        policy = type("Own", (cls,), {}).for_envs(envs, hidden_sizes=(8,)).to("cuda")
        policy.cuda_graph = with_graph
        collector = rl.Collector(policy, envs, rollouts_of(envs, 20))
        collector.seed(3)
        collector.collect(num_steps=30, explore=cls is rl.QNetwork)
        actions = collector.rollout().action.clone()
        change(policy)
        collector.collect(num_steps=60, explore=cls is rl.QNetwork)
        found.append((actions, collector.rollout().action.clone()))
    assert len(replays) == 30
    assert len(replays[-1]._choices) == 2
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_after_many_changes_it_acts_without_a_graph(caplog: pytest.LogCaptureFixture) -> None:
    envs = counting_envs(2)
    policy = Chooses.for_envs(envs, hidden_sizes=(4,)).to("cuda")
    collector = rl.Collector(policy, envs, rollouts_of(envs, 4))
    with caplog.at_level(logging.INFO, "rltrainer"):
        for policy.choice in range(100, 134):
            with contextlib.suppress(rl.errors.SpaceError):
                collector.collect(num_steps=2)
    text = "Chooses acts without a CUDA graph, which cannot be recorded: what it depends on has changed 32 times"
    assert caplog.messages == [text]


def test_a_module_with_hooks_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    _, collector = recurrent()
    calls = []
    collector.policy.actor.register_forward_hook(lambda *args: calls.append(args))
    with caplog.at_level(logging.INFO, "rltrainer"):
        collector.collect(num_steps=6)
        collector.collect(num_steps=6)
    assert len(calls) == 4
    assert [text.rpartition(": ")[2] for text in caplog.messages] == ["its modules have hooks"]


def test_all_leaves_of_an_observation_go_up_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[Any] = []
    upload = second_device.Upload
    monkeypatch.setattr(second_device, "Upload", lambda *args: uploads.append(args) or upload(*args))
    envs = steered_envs(4, None, kind="masked")
    policy = rl.QNetwork.for_envs(envs, hidden_sizes=(8,)).to("cuda")
    collector = rl.Collector(policy, envs, replay_of(envs, 100))
    collector.collect(num_steps=4)
    uploads.clear()
    collector.collect(num_steps=40)
    assert len(uploads) == 10
    now, after = collector.adapter._now, collector.adapter._next
    assert now.tensor is after.tensor  # one place on the device
    assert torch.equal(collector.adapter.obs_tensor["state"].cpu(), torch.from_numpy(collector.adapter.obs["state"]))


def test_the_generator_of_a_capture_that_failed_still_draws() -> None:
    generator = make_generator(1, "cuda")
    expected = torch.rand(3, device="cuda", generator=generator.clone_state()).tolist()

    def waits() -> None:
        torch.rand(3, device="cuda", generator=generator).sum().item()

    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        CudaRecorder(torch.device("cuda", 0)).capture(waits, [generator])
    assert torch.rand(3, device="cuda", generator=generator).tolist() == expected


def test_a_recorder_records_after_all_of_its_graphs_are_gone() -> None:
    x, recorder = torch.zeros(1, device="cuda"), CudaRecorder(torch.device("cuda", 0))
    for _ in range(2):
        recorder.capture(lambda: x.add_(1))()
    assert x.tolist() == [2.0]
