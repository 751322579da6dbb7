"""The provided hooks in small runs: what they change, what they leave alone, and that runs with them resume."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.plan import UpdateCallbacks
from tests.resume.runs import QUIET, digest
from tests.unit.hooks.fake_run import trained, with_hooks
from tests.unit.loggers.rows import values

INSTANT = rl.Every(1e-6, "second")


def readers(folder: Path) -> list[rl.TrainerHook]:
    return [
        rl.LogScalar("reward", "max", std=True), rl.LogScalar("reward", every=2), rl.LogScalar("loss", every=2),
        rl.EarlyStopping(patience=100), rl.EarlyStopping("return", patience=100),
        rl.LogTiming(every=1), rl.ClearCudaCache(every=1), rl.SystemStats(INSTANT, INSTANT),
        rl.BatchRecorder(folder, every=2), rl.FunctionHook("post_steps", lambda ctx: None),
    ]  # fmt: skip


@pytest.mark.parametrize("run", ["a2c", "ppo_episodes", "dqn", "offline_bc"])
def test_those_that_only_read_change_no_bit(run: str, tmp_path: Path) -> None:
    assert trained(with_hooks(run, *readers(tmp_path))) == trained(with_hooks(run))
    assert sorted(tmp_path.iterdir())


def test_videos_change_no_bit(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    hook = rl.VideoRecorder(tmp_path, rl.Every(20, "env_step"), "CartPole-v1", max_episode_steps=5)
    assert trained(with_cartpole(hook)) == trained(with_cartpole())
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_0000000{i}_episode_1.mp4" for i in (20, 40)]


def with_cartpole(*hooks: rl.TrainerHook) -> Any:
    rl.seed(0)
    envs = rl.make_vec("CartPole-v1", 2)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,)))
    collection = {"collection_step_num_env_steps": 20, "epoch_num_steps": 40, "max_epochs": 1}
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs), batch_size=None, hooks=hooks, **collection, **QUIET
    )
    return params.create_trainer(algorithm)


def test_what_they_log(tmp_path: Path) -> None:
    logger = rl.JSONLinesLogger(tmp_path / "log.jsonl", training_interval=1)
    hooks = [
        rl.LogScalar("reward", "sum"), rl.LogScalar("reward", "sum", every=3, log_as="three"),
        rl.LogScalar("policy_loss"), rl.LogTiming(every=2), rl.SystemStats(INSTANT),
    ]  # fmt: skip
    with_hooks("a2c", *hooks, logger=logger).run()
    # Every env step of the counting envs is rewarded with 1; a training step takes 10.
    found = [value for _, value in values(logger, "training/reward_sum")]
    assert set(found) == {10.0}
    assert {value for _, value in values(logger, "training/three_sum")} == {30.0}
    assert values(logger, "training/policy_loss_mean")
    assert values(logger, "training/cpu_percent")
    assert all(value >= 0 for _, value in values(logger, "training/time_update"))


@pytest.mark.parametrize("make_hook", [rl.RewardNormalizer, partial(rl.SelectKeys, extra=[])])
def test_on_policy_the_rollout_is_changed_and_gradient_steps_are_left_alone(make_hook: Any) -> None:
    """Else they would run one by one: slower, and on CUDA as one graph for each."""
    on_policy, off_policy = with_hooks("a2c", make_hook()), with_hooks("sac", make_hook(), n_step=1)
    on_policy.run()
    off_policy.run()
    assert on_policy.algorithm.plan.callbacks == UpdateCallbacks()
    assert off_policy.algorithm.plan.callbacks.before is not None


class Seen(rl.TrainerHook):
    """Keeps the rewards that updates are given."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def pre_steps_log(self, ctx: rl.TrainerContext, batch: Any) -> None:
        self.batches.append(batch.reward.clone())


class Varying(rl.TrainerHook):
    """Rewards 0, 1, 2, ... in place of the counting env's ones."""

    def batch_process(self, ctx: rl.TrainerContext, batch: Any) -> Any:
        return dataclasses.replace(batch, reward=torch.arange(batch.reward.numel()).view(batch.reward.shape).float())


def test_normalised_rewards_on_policy() -> None:
    seen, hook = Seen(), rl.RewardNormalizer(decay=1.0)
    result = with_hooks("a2c", Varying(), hook, seen).run()
    ranks = torch.arange(10).view(5, 2).float()
    torch.testing.assert_close(seen.batches[0], (ranks - ranks.mean()) / ranks.std())
    assert result.epochs[0].collect_stats.returns.tolist() == [5.0] * len(result.epochs[0].collect_stats.returns)


def test_windows_are_what_an_update_learns_from_and_begin_with_the_memory_of_a_policy() -> None:
    seen = Seen()
    with_hooks("a2c", rl.BatchSubSampler(6, 2), seen).run()
    assert {tuple(batch.shape) for batch in seen.batches} == {(2, 3)}
    assert with_hooks("recurrent_ppo", rl.BatchSubSampler(5, 1), batch_size=5).run().gradient_step > 0


def test_the_seed_of_a_run_draws_the_windows() -> None:
    def learned(seed: int, **options: Any) -> str:
        return trained(with_hooks("a2c", rl.BatchSubSampler(6, 2, **options), seed=seed))

    assert learned(5) == learned(5)
    assert learned(5) != trained(with_hooks("a2c"))


HOOKS: dict[str, tuple[str, Callable[[Path], rl.TrainerHook]]] = {
    "LogScalar": ("a2c", lambda _: rl.LogScalar("reward", every=3)),
    "EarlyStopping": ("a2c", lambda _: rl.EarlyStopping("policy_loss", "min", patience=3, every=3)),
    "EarlyStopping of a score": ("a2c", lambda _: rl.EarlyStopping(patience=2)),
    "MaxEpisodes": ("a2c", lambda _: rl.MaxEpisodes(6)),
    "RewardNormalizer": ("a2c", lambda _: rl.RewardNormalizer()),
    "BatchSubSampler": ("a2c", lambda _: rl.BatchSubSampler(6, 2)),
    "BatchRecorder": ("dqn", lambda path: rl.BatchRecorder(path, every=2, max_files=2)),
    "SelectKeys": ("a2c", lambda _: rl.SelectKeys(extra=[])),
    "FunctionHook": ("a2c", lambda _: rl.FunctionHook("batch_process", lambda ctx, batch: None, name="mine")),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_run_that_was_broken_off_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    run, make = HOOKS[name]

    def fresh(part: str) -> Any:
        return with_hooks(run, make(tmp_path / part))

    whole = fresh("whole")
    whole.run()
    first = fresh("broken")
    first.execute_epoch()
    first.save(tmp_path / "checkpoint")
    second = fresh("broken")
    second.restore(tmp_path / "checkpoint")
    second.run()
    assert digest(second) == digest(whole)
    assert second.state.stop_reason == whole.state.stop_reason
    states = [str(trainer.params.hooks[0].state_dict()) for trainer in (whole, second)]
    assert states[0] == states[1]
