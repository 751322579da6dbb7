"""Rollouts of envs of tensors, and updates from them, as CUDA graphs: the bits of runs without, and what falls back."""

import logging
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.execution import policy_execution
from rltrainer.execution.cuda_graph import CudaGraphs
from rltrainer.execution.execution import say_once
from rltrainer.nets.policy import Decision
from rltrainer.types import DenseRollout
from tests.fakes import built
from tests.resume.runs import digest

EAGER = rl.RuntimeParams(compile=False, cuda_graph=False)
GRAPHS = rl.RuntimeParams(compile=False)
N = 4


class Replays(list[str]):
    """What was replayed, in order: the names of graphs."""


@pytest.fixture(autouse=True)
def replays(monkeypatch: pytest.MonkeyPatch) -> Replays:
    """Record after one warm-up, and note the replays."""
    monkeypatch.setattr("rltrainer.execution.cuda_graph.NUM_WARM_UPS", 1)
    monkeypatch.setattr(policy_execution, "ROWS_PER_GRAPH", 8)
    found = Replays()
    call = CudaGraphs.__call__

    def noted(graphs: CudaGraphs, *args: Any) -> Any:
        result = call(graphs, *args)
        found.extend([graphs._name] * graphs.is_on)
        return result

    monkeypatch.setattr(CudaGraphs, "__call__", noted)
    return found


def envs_of(env: Any = "CartPole-v1") -> Any:
    return rl.make_vec(env, N, backend="tensor", device="cuda", seed=3)


def collector_of(policy_class: Any = rl.ActorCritic, env: Any = "CartPole-v1", **options: Any) -> rl.Collector:
    rl.seed(1)
    envs = envs_of(env)
    policy = getattr(policy_class, "for_envs", policy_class)(envs, hidden_sizes=(8,)).to("cuda")
    spaces = envs.single_observation_space, envs.single_action_space
    collector = rl.Collector(policy, envs, rl.RolloutBuffer(8, N, *spaces, device="cuda"), **options)
    collector.seed(7)
    return collector


def assert_same(one: rl.Collector, other: rl.Collector) -> None:
    """Check that the last rollouts have the same bits."""
    for name in ("obs", "action", "reward", "terminated", "successor", "last_obs", "final_obs"):
        assert torch.equal(getattr(one.rollout(), name), getattr(other.rollout(), name)), name


DRIFTING = rl.OrnsteinUhlenbeckNoise(rl.LinearSchedule(0.5, 0.1))
EXPLORING: dict[str, tuple[Any, str, Any]] = {
    "sampling": (rl.ActorCritic, "CartPole-v1", None),
    "epsilon": (rl.QNetwork, "CartPole-v1", rl.EpsilonGreedy(rl.LinearSchedule(0.9, 0.1))),
    "normal": (rl.DeterministicActorCritic, "Pendulum-v1", rl.GaussianNoise(rl.LinearSchedule(0.5, 0.1))),
    "drifting": (rl.DeterministicActorCritic, "Pendulum-v1", DRIFTING),
    "recurrent": (rl.RecurrentActorCritic, "CartPole-v1", None),
    "repeated": (partial(rl.SquashedActorCritic.for_envs, noise_repeat=16), "Pendulum-v1", None),
    "chunks": (SimpleNamespace(for_envs=partial(rl.FlowActorCritic.for_envs, chunk_length=3)), "Pendulum-v1", None),
}


@pytest.mark.parametrize("name", EXPLORING)
def test_rollouts_have_the_bits_of_those_without_graphs(name: str, replays: Replays) -> None:
    policy_class, env, exploration = EXPLORING[name]
    with_graph, without = (collector_of(policy_class, env, exploration=exploration) for _ in range(2))
    without.policy.cuda_graph = False
    for progress in (0.0, 0.5):
        for collector in (with_graph, without):
            collector.policy.progress = lambda value=progress: value
            collector.collect(num_steps=20 * N)
        assert_same(with_graph, without)
    assert len(replays) == 2 * 3  # of 8, 8 and 4 rows
    assert with_graph._tensors is not None
    assert len(with_graph._tensors._execution._graphs._graphs) == 2


def test_the_envs_may_be_moved_in_between() -> None:
    with_graph, without = collector_of(), collector_of()
    without.policy.cuda_graph = False
    for collector in (with_graph, without):
        envs = collector.envs
        collector.collect(num_steps=8 * N)
        saved, action = envs.state(), torch.ones(N, dtype=torch.int64, device="cuda")
        for _ in range(3):
            envs.step(action)
        collector.collect(num_steps=8 * N)
    assert_same(with_graph, without)
    for collector in (with_graph, without):
        collector.envs.set_state(saved)
        collector.collect(num_steps=8 * N)
        collector.collect(num_steps=8 * N, random=True)
        collector.reset()
        collector.collect(num_steps=8 * N)
    assert_same(with_graph, without)


def test_a_replay_does_not_wait() -> None:
    collector = collector_of()
    collector.collect(num_steps=8 * N)
    tensors, selection = collector._tensors, collector._selection
    assert tensors is not None
    torch.cuda.set_sync_debug_mode("error")
    tensors.collect(8, selection, collector.generator, 0)
    torch.cuda.set_sync_debug_mode("default")


class Looks(rl.ActorCritic):
    def decide(self, *args: Any) -> Decision:
        decision = super().decide(*args)
        assert decision.action.sum() < 1e9
        return decision


class Counts(rl.ActorCritic):
    num_calls = 0

    def decide(self, *args: Any) -> Decision:
        self.num_calls += 1
        return super().decide(*args)


@pytest.mark.parametrize(("policy_class", "reason"), [(Looks, "would wait"), (Counts, "changes its attributes")])
def test_a_policy_that_cannot_be_recorded_runs_without(policy_class: Any, reason: str) -> None:
    with_graph, without = collector_of(policy_class), collector_of(policy_class)
    without.policy.cuda_graph = False
    with pytest.warns(UserWarning, match=f"a rollout of envs of tensors as a CUDA graph failed, .*{reason}"):
        with_graph.collect(num_steps=8 * N)
    without.collect(num_steps=8 * N)
    with warnings.catch_warnings(action="error"):
        with_graph.collect(num_steps=8 * N)
    without.collect(num_steps=8 * N)
    assert_same(with_graph, without)
    assert vars(with_graph.policy).get("num_calls") == vars(without.policy).get("num_calls")


class Windy(rl.TensorEnv):
    """Its wind is an attribute that a user changes."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (4,))
    action_space = gym.spaces.Discrete(2)
    num_first_uniforms = 4

    def __init__(self) -> None:
        self.wind = 1.0

    def first_state(self, uniform: Tensor) -> Tensor:
        return torch.zeros_like(uniform)

    def transition(self, state: Tensor, action: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return state, torch.full_like(state[:, 0], self.wind), state[:, 0] > 1.0


def test_a_graph_follows_weights_hooks_and_rules(replays: Replays) -> None:
    collector = collector_of(env=Windy)
    collector.collect(num_steps=8 * N)
    before = collector.rollout().action.clone()
    collector.envs.env.wind = 2.0  # type: ignore[attr-defined]  # of tensors
    with torch.no_grad():
        for parameter in collector.policy.parameters():
            parameter.zero_()
    collector.collect(num_steps=8 * N)
    assert collector.rollout().reward.unique().tolist() == [2.0]
    assert not torch.equal(collector.rollout().action, before)
    assert len(replays) == 2
    collector.policy.actor.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]  # a module
    with pytest.warns(UserWarning, match="its modules have hooks"):
        collector.collect(num_steps=8 * N)
    assert isinstance(collector.rollout(), DenseRollout)


RATE, CLIP = rl.LinearSchedule(1e-2, 1e-3), rl.LinearSchedule(0.3, 0.1)
ALGORITHMS: dict[str, tuple[Any, Any, Any, str]] = {
    "ppo": (rl.PPO, rl.ActorCritic, rl.PPOParams(lr=RATE, clip=CLIP), "CartPole-v1"),
    "a2c": (rl.A2C, rl.ActorCritic, rl.A2CParams(lr=RATE), "Pendulum-v1"),
    "impala": (rl.IMPALA, rl.ActorCritic, rl.IMPALAParams(lr=RATE), "CartPole-v1"),
    "trpo": (rl.TRPO, rl.ActorCritic, rl.TRPOParams(lr=RATE), "CartPole-v1"),
    "reinforce": (rl.REINFORCE, rl.Actor, rl.REINFORCEParams(lr=RATE), "CartPole-v1"),
    "recurrent_ppo": (rl.RecurrentPPO, rl.RecurrentActorCritic, rl.PPOParams(lr=RATE), "CartPole-v1"),
    "pqn": (rl.PQN, rl.QNetwork, rl.PQNParams(lr=RATE), "CartPole-v1"),
    "distillation": (rl.Distillation, rl.ActorCritic, rl.DistillationParams(lr=RATE), "CartPole-v1"),
    "dqn": (rl.DQN, rl.QNetwork, rl.DQNParams(lr=RATE), "CartPole-v1"),
    "sac": (rl.SAC, rl.SquashedActorCritic, rl.SACParams(lr=RATE), "Pendulum-v1"),
    "td3": (rl.TD3, rl.DeterministicActorCritic, rl.TD3Params(lr=RATE), "Pendulum-v1"),
}


def trainer_of(name: str, runtime: rl.RuntimeParams, **fields: Any) -> Any:
    """Return the trainer of a run of 3 epochs, each of two training steps."""
    algorithm_class, policy_class, params, env = ALGORITHMS[name]
    rl.seed(1)
    envs = envs_of(env)
    options = {"normalize_reward": True} if policy_class is rl.ActorCritic else {}
    policy = policy_class.for_envs(envs, hidden_sizes=(8,), normalize_obs=True, **options).to("cuda")
    algorithm = built(algorithm_class, policy, params)
    common: dict[str, Any] = {
        "collection_step_num_env_steps": 6 * N, "epoch_num_steps": 12 * N, "max_epochs": 3, "seed": 5,
        "runtime": runtime, "show_progress": False, "verbose": False, "initial_statistics_num_env_steps": 20,
    }  # fmt: skip
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        more = {"batch_size": 12 if algorithm.trains_recurrent else 8, "update_step_num_repetitions": 2}
        params_class: Any = rl.OnPolicyTrainerParams
        collector = rl.Collector(policy, envs)
    else:
        spaces = envs.single_observation_space, envs.single_action_space
        collector = rl.Collector(policy, envs, rl.ReplayBuffer(1000, *spaces, num_envs=N, device="cuda"))
        more = {"batch_size": 8, "warmup_num_env_steps": 6 * N, "update_step_num_gradient_steps_per_sample": 0.1}
        params_class = rl.OffPolicyTrainerParams
    return params_class(training_collector=collector, **common | more | fields).create_trainer(algorithm)


def end(trainer: Any) -> str:
    """Return a hash of everything after the run."""
    trainer.run()
    trainer.state.runtime = EAGER  # part of the state, and not to be compared
    return digest(trainer)


@pytest.mark.parametrize(
    "name", [name if name in ("ppo", "dqn") else pytest.param(name, marks=pytest.mark.full) for name in ALGORITHMS]
)
def test_a_run_has_the_bits_of_one_without_graphs(name: str, replays: Replays, tmp_path: Path) -> None:
    without = end(trainer_of(name, EAGER))
    assert not replays
    assert end(trainer_of(name, GRAPHS)) == without
    assert replays.count("a rollout of envs of tensors") == 6
    if name in ("ppo", "a2c", "impala", "pqn", "distillation"):
        assert replays == ["a rollout of envs of tensors", "the update"] * 6
    stopped, resumed = trainer_of(name, GRAPHS), trainer_of(name, GRAPHS)
    stopped.execute_epoch()
    stopped.save(tmp_path / "checkpoint")
    resumed.restore(tmp_path / "checkpoint")
    assert end(resumed) == without


def test_an_update_that_is_one_graph_does_not_wait() -> None:
    trainer = trainer_of("ppo", GRAPHS)
    trainer.execute_epoch()
    algorithm, rollout = trainer.algorithm, trainer.params.training_collector.rollout()
    algorithm.update(rollout, 8, 2)
    torch.cuda.set_sync_debug_mode("error")
    result = algorithm.update(rollout, 8, 2)
    torch.cuda.set_sync_debug_mode("default")
    assert result.num_gradient_steps == 6
    assert {"explained_variance", "approx_kl", "loss"} <= result.metrics.keys()


class OwnAdvantages(rl.PPO):
    def process(self, rollout: rl.Rollout) -> rl.OnPolicyBatch:
        samples = super().process(rollout)
        samples.advantage = samples.advantage * float(samples.return_.max() > 0)
        return samples


class Watching(rl.TrainerHook):
    def post_optim_log(self, ctx: rl.TrainerContext, minibatch: rl.OnPolicyBatch) -> Any:
        return {"largest_advantage": minibatch.advantage.max()}


@pytest.mark.parametrize(("change", "reason"), [
    ("process", "it has a method process of its own"),
    pytest.param("accumulate", "gradients are accumulated", marks=pytest.mark.full),
    pytest.param("target_kl", "target_kl may end it", marks=pytest.mark.full),
    pytest.param("hook", "a callback is given its batches", marks=pytest.mark.full),
])  # fmt: skip
def test_additions_to_an_update_leave_it_in_several_graphs(
    change: str, reason: str, monkeypatch: pytest.MonkeyPatch, replays: Replays, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm_class, *more = ALGORITHMS["ppo"]
    fields: dict[str, Any] = {}
    if change == "process":
        algorithm_class = OwnAdvantages
    elif change == "accumulate":
        fields["update"] = rl.UpdateParams(accumulate=2)
    elif change == "target_kl":
        more[1] = rl.PPOParams(lr=RATE, clip=CLIP, target_kl=0.01)
    else:
        fields["hooks"] = (Watching(),)
    monkeypatch.setitem(ALGORITHMS, "ppo", (algorithm_class, *more))
    say_once.cache_clear()
    with caplog.at_level(logging.INFO, "rltrainer"):
        found = end(trainer_of("ppo", GRAPHS, **fields))
    assert sum(record.message.endswith(f"an update is several CUDA graphs instead of one, as {reason}")
               for record in caplog.records) == 1  # fmt: skip
    assert "the update" not in replays
    assert "the gradient step" in replays
    assert found == end(trainer_of("ppo", EAGER, **fields))
