"""Whole trainings on the second device: no operation mixes devices, and the numbers are the CPU's."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.data.ring import Ring
from tests.contract.test_all_algorithms import assert_same_state
from tests.fakes import counting_envs
from tests.resume.runs import RUNS, build
from tests.resume.steered import steered_envs

EAGER = rl.RuntimeParams(compile=False, cuda_graph=False)
GRAPH = rl.RuntimeParams(compile=False, cuda_graph=True)
FAST = ["ppo", "recurrent_ppo", "dqn", "sac", "tqc", "dqn_prioritized", "sac_mixed", "offline_iql"]
DRAWS_OTHERWISE = {"a2c_sde", "sac_sde"}
"""Runs that draw more random numbers on CUDA than on the CPU, where they can look at what is due without waiting."""
FULL = [name for name in RUNS if name not in FAST and not name.endswith("_midway")]

# The noise of a2c_sde and the running return of tqc's rewards are state beside the networks.
CONTINUED = ["tqc", *(pytest.param(name, marks=pytest.mark.full) for name in (
    "ppo", "a2c_sde", "dqn_prioritized", "recurrent_ppo", "offline_iql",
))]  # fmt: skip


@pytest.fixture(autouse=True)
def _draws_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let buffers on the CPU draw the transitions of those on the device, which cannot use the host's numbers."""
    monkeypatch.setattr(Ring, "_counts_on_device", True)


def made(name: str, device: str, **params: Any) -> Any:
    """Return the trainer of a short run."""
    options: dict[str, Any] = {"runtime": EAGER, "max_epochs": 1}
    if not name.startswith("offline"):
        options["initial_statistics_num_env_steps"] = 20
    return build(name, device=device, **(options | params))


def run(name: str, device: str, **params: Any) -> Any:
    """Return the trainer of a short run that is over."""
    trainer = made(name, device, **params)
    trainer.run()
    return trainer


def assert_same_numbers(one: Any, other: Any) -> None:
    """Check that two runs end with the same networks and statistics, wherever they are."""
    expected = other.algorithm.policy.state_dict()
    for name, value in one.algorithm.policy.state_dict().items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value.cpu(), expected[name].cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)])
def test_a_run_gives_the_numbers_of_the_cpu(name: str) -> None:
    trainer = run(name, "cuda")
    assert {p.device.type for p in trainer.algorithm.policy.parameters()} == {"cuda"}
    assert trainer.algorithm.policy.obs_normalizer is not None
    if name not in DRAWS_OTHERWISE:
        assert_same_numbers(trainer, run(name, "cpu"))


@pytest.mark.parametrize("name", [
    "ppo", "sac", *(pytest.param(name, marks=pytest.mark.full) for name in (*FAST, *FULL) if name not in ("ppo", "sac"))
])  # fmt: skip
def test_a_run_of_graphs_gives_the_same_bits(name: str) -> None:
    trainer = run(name, "cuda", runtime=GRAPH, max_epochs=2)
    assert trainer.algorithm.has_cuda_graph
    assert_same_state(trainer.algorithm, run(name, "cuda", max_epochs=2).algorithm)


@pytest.mark.parametrize(("device", "buffer_device"), [("cuda", "cpu"), ("cpu", "cuda")])
@pytest.mark.parametrize("name", ["dqn", "dqn_prioritized"])
def test_buffer_and_policy_lie_apart(name: str, device: str, buffer_device: str) -> None:
    assert_same_numbers(run(name, device, buffer_device=buffer_device), run(name, "cpu"))


@pytest.mark.parametrize(("device", "acting_device"), [("cuda", "cpu"), ("cpu", "cuda")])
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_copy_of_the_policy_acts_elsewhere(name: str, device: str, acting_device: str) -> None:
    assert_same_numbers(run(name, device, acting_device=acting_device), run(name, "cpu"))


def test_a_collection_of_arrays_reaches_the_device_without_waiting() -> None:
    trainer = made("ppo", "cuda")
    collector = trainer.params.training_collector
    collector.collect(num_steps=10)
    torch.cuda.set_sync_debug_mode("error")
    rollout = trainer._batch()
    torch.cuda.set_sync_debug_mode("default")
    assert (collector.buffer.device.type, rollout.obs.device.type, rollout.valid.device.type) == ("cpu", "cuda", "cuda")
    assert torch.equal(rollout.reward.cpu(), collector.rollout().reward)


def test_a_collection_of_tensors_stays_on_the_device() -> None:
    envs = rl.make_vec("CartPole-v1", 2, backend="tensor", device="cuda")
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)).to("cuda"))
    collector = rl.Collector(algorithm.policy, envs)
    rl.OnPolicyTrainer(algorithm, rl.OnPolicyTrainerParams(training_collector=collector, verbose=False))
    assert collector.buffer is not None
    assert collector.buffer.device.type == "cuda"


@pytest.mark.parametrize("name", ["ppo_masked", "dqn_masked", "sac_hindsight"])
def test_envs_that_mask_actions_or_have_goals(name: str) -> None:
    trainer = run(name, "cuda", make_envs=steered_envs)
    assert trainer.algorithm.device.type == "cuda"


@pytest.mark.parametrize(("name", "hook"), [
    ("ppo", rl.RewardNormalizer), ("td3", rl.RewardNormalizer), ("ppo", lambda: rl.BatchSubSampler(4, 2)),
])  # fmt: skip
def test_hooks_that_change_batches(name: str, hook: Any) -> None:
    assert_same_numbers(run(name, "cuda", hooks=(hook(),)), run(name, "cpu", hooks=(hook(),)))


def test_gathered_limited_and_skipped_steps() -> None:
    update = rl.UpdateParams(accumulate=2, max_grad_norm=0.1, nonfinite="skip")
    assert_same_numbers(run("dqn", "cuda", update=update), run("dqn", "cpu", update=update))


@pytest.mark.parametrize("name", CONTINUED)
@pytest.mark.parametrize(
    ("first", "second"), [("cuda", "cpu"), ("cpu", "cuda"), pytest.param("cuda", "cuda", marks=pytest.mark.full)]
)
def test_a_checkpoint_of_one_device_is_continued_on_another(name: str, first: str, second: str, tmp_path: Path) -> None:
    stopped = made(name, first, max_epochs=2)
    stopped.execute_epoch()
    stopped.save(tmp_path / "checkpoint")
    resumed = made(name, second, max_epochs=2)
    resumed.restore(tmp_path / "checkpoint")
    assert resumed.algorithm.device.type == second
    assert_same_numbers(resumed, stopped)
    resumed.run()
    if first == second:  # a generator of another device begins again from a seed
        assert_same_numbers(resumed, run(name, second, max_epochs=2))


@pytest.mark.parametrize(("first", "second"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_the_state_of_an_algorithm_is_taken_over_across_devices(first: str, second: str) -> None:
    one, other = run("tqc", first), made("tqc", second)
    other.algorithm.load_state_dict(one.algorithm.state_dict())
    assert_same_numbers(other, one)
    other.run()


@pytest.mark.parametrize("name", ["ppo", "recurrent_ppo"])
def test_a_policy_is_asked_and_tested(name: str) -> None:
    policy = made(name, "cuda").algorithm.policy
    envs = counting_envs(2)
    obs, _ = envs.reset()
    policy.predict(obs)
    assert rl.evaluate_policy(policy, envs, num_episodes=2).num_collected_episodes == 2


def test_a_layer_that_rests_for_an_epoch() -> None:
    trainers = [made("td3", device, max_epochs=2) for device in ("cuda", "cpu")]
    for trainer in trainers:
        layer = next(trainer.algorithm.policy.critic.parameters())
        trainer.execute_epoch()
        layer.requires_grad_(False)
        trainer.execute_epoch()
    assert_same_numbers(*trainers)
