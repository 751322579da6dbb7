"""The order in which a trainer calls its callbacks, and what it counts."""

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.fakes import ScriptedOffPolicy, ScriptedOnPolicy, counting_envs, replay_of, tiny_actor_critic

QUIET: dict[str, Any] = {"show_progress": False, "verbose": False, "seed": 1}


def on_policy_trainer(**changes: Any) -> rl.OnPolicyTrainer:
    envs = counting_envs(num_envs=2, length=5)
    algorithm = ScriptedOnPolicy(tiny_actor_critic(envs))
    options: dict[str, Any] = {
        "training_collector": rl.Collector(algorithm.policy, envs),
        "test_collector": rl.Collector(algorithm.policy, counting_envs(num_envs=2, length=5)),
        "max_epochs": 2,
        "epoch_num_steps": 20,
        "collection_step_num_env_steps": 10,
        **QUIET,
    }
    return rl.OnPolicyTrainer(algorithm, rl.OnPolicyTrainerParams(**(options | changes)))


def off_policy_trainer(num_envs: int = 1, **changes: Any) -> rl.OffPolicyTrainer:
    envs = counting_envs(num_envs=num_envs, length=5)
    algorithm = ScriptedOffPolicy(tiny_actor_critic(envs))
    buffer = replay_of(envs, 1000)
    options: dict[str, Any] = {
        "training_collector": rl.Collector(algorithm.policy, envs, buffer),
        "max_epochs": 1,
        "epoch_num_steps": 300,
        "collection_step_num_env_steps": 30,
        **QUIET,
    }
    return rl.OffPolicyTrainer(algorithm, rl.OffPolicyTrainerParams(**(options | changes)))


def test_callbacks_run_in_the_documented_order() -> None:
    calls: list[Any] = []
    scores = iter([5.0, 7.0, 6.0])

    def score(stats: rl.CollectStats) -> float:
        calls.append("score")
        return next(scores)

    trainer = on_policy_trainer(
        training_fn=lambda epoch, env_step: calls.append(("training", epoch, env_step)),
        test_fn=lambda epoch, env_step: calls.append(("test", epoch, env_step)),
        compute_score_fn=score,
        save_best_fn=lambda algorithm: calls.append("best"),
        stop_fn=lambda score: bool(calls.append(("stop?", score))),
        save_checkpoint_fn=lambda *counters: str(calls.append(("checkpoint", *counters))),
    )
    trainer.run()
    # 20 env steps per epoch in collections of 10: two training steps. The default batch size takes one gradient step.
    assert calls == [
        ("test", 0, 0), "score", "best",
        ("training", 1, 0), ("checkpoint", 1, 10, 1), ("training", 1, 10), ("checkpoint", 1, 20, 2),
        ("test", 1, 20), "score", "best", ("stop?", 7.0),
        ("training", 2, 20), ("checkpoint", 2, 30, 3), ("training", 2, 30), ("checkpoint", 2, 40, 4),
        ("test", 2, 40), "score", ("stop?", 6.0),
    ]  # fmt: skip


def test_initial_test_can_be_left_out() -> None:
    epochs = []
    on_policy_trainer(initial_test=False, test_fn=lambda epoch, env_step: epochs.append(epoch)).run()
    assert epochs == [1, 2]


@pytest.mark.parametrize(("epochs", "steps", "collection", "num_envs"), [(2, 20, 10, 2), (3, 7, 5, 2), (1, 1, 1, 3)])
def test_env_steps_of_a_run(epochs: int, steps: int, collection: int, num_envs: int) -> None:
    trainer = off_policy_trainer(
        num_envs, max_epochs=epochs, epoch_num_steps=steps, collection_step_num_env_steps=collection
    )
    per_collection = -(-collection // num_envs) * num_envs
    result = trainer.run()
    assert result.env_step == epochs * -(-steps // per_collection) * per_collection == trainer.params.planned_num_steps
    assert result.stop_reason == "max_epochs"
    assert [stats.collect_stats.num_env_steps for stats in result.epochs] == [result.env_step // epochs] * epochs


def test_collections_of_episodes_count_their_lengths() -> None:
    trainer = on_policy_trainer(
        collection_step_num_env_steps=None, collection_step_num_episodes=3, epoch_num_steps=15, max_epochs=1
    )
    result = trainer.run()
    # 3 episodes of 5 steps each.
    assert result.env_step == 15
    assert result.epochs[0].collect_stats.num_collected_episodes == 3
    rollout = trainer.algorithm.rollouts[0]
    assert rollout.valid.sum() == 15
    assert torch.equal(rollout.valid.sum(0), torch.tensor([10, 5]))


# Ten collections of 30 samples; at a ratio of 0.01, 0.3, 0.6, 0.9, 1.2, ... steps are due: no remainder is lost.
@pytest.mark.parametrize(("ratio", "expected"), [(0.01, 3), (0.1, 30), (1 / 3, 100), (1.0, 300), (2.5, 750)])
def test_gradient_steps_per_sample(ratio: float, expected: int) -> None:
    trainer = off_policy_trainer(update_step_num_gradient_steps_per_sample=ratio)
    result = trainer.run()
    assert result.gradient_step == int(trainer.algorithm.num_steps) == expected
    assert result.update_step == min(expected, 10)


def test_warmup_counts_env_steps_and_owes_nothing() -> None:
    trainer = off_policy_trainer(warmup_num_env_steps=65)
    result = trainer.run()
    # Collections of 30: warm-up ends with the third, the first after which env_step >= 65.
    assert result.env_step == 300
    assert result.gradient_step == 300 - 90


@pytest.mark.parametrize(("options", "expected"), [
    # Two repetitions of two minibatches with losses 1, 2, 3, 4.
    ({"epoch_num_steps": 10, "batch_size": 5, "update_step_num_repetitions": 2}, (2.5, 4)),
    ({"batch_size": None}, (1.5, 2)),  # two training steps with one gradient step each: losses 1 and 2
])  # fmt: skip
def test_losses_are_means_over_all_gradient_steps_of_an_epoch(options: Any, expected: tuple[float, int]) -> None:
    update = on_policy_trainer(max_epochs=1, **options).run().epochs[0].update
    assert (update.metrics["loss"], update.num_gradient_steps) == expected


def test_stop_fn_sees_the_score_of_this_test_step() -> None:
    scores = iter([10.0, 1.0, 2.0])
    seen = []
    result = on_policy_trainer(
        max_epochs=3,
        compute_score_fn=lambda stats: next(scores),
        stop_fn=lambda score: bool(seen.append(score)) or score >= 2,
    ).run()
    # The initial 10 is the best, but is not what stop_fn is asked about.
    assert seen == [1.0, 2.0]
    assert (result.epoch, result.stop_reason, result.best_score, result.best_epoch) == (2, "stop_fn", 10.0, 0)


NAN = float("nan")


@pytest.mark.parametrize(
    ("scores", "best", "num_saved"),
    [([2.0, 3.0, 3.0], (3.0, 1), 2), ([NAN, 3.0, NAN], (3.0, 1), 1), ([NAN, NAN, NAN], (None, None), 0)],
)
def test_the_best_is_strictly_better_than_all_before_and_a_number(scores: Any, best: Any, num_saved: int) -> None:
    given, saved = iter(scores), []
    result = on_policy_trainer(
        compute_score_fn=lambda stats: next(given), save_best_fn=lambda algorithm: saved.append(1)
    ).run()
    assert ((result.best_score, result.best_epoch), len(saved)) == (best, num_saved)
    assert (result.best_return is None) == (result.best_return_std is None) == (best[0] is None)


def test_test_in_training_stops_without_updating() -> None:
    trainer = on_policy_trainer(
        max_epochs=3, test_in_training=True, stop_fn=lambda score: score >= 5, initial_test=False
    )
    result = trainer.run()
    # Every episode returns 5: the first collection satisfies stop_fn, and so does the test step.
    assert (result.epoch, result.env_step, result.gradient_step, result.stop_reason) == (1, 10, 0, "stop_fn")
    assert result.epochs[0].test_stats is not None


def test_test_in_training_goes_on_if_the_test_fails() -> None:
    calls = []

    def stop(score: float) -> bool:
        calls.append(score)
        return len(calls) % 2 == 1  # yes to the training data, no to the test step

    trainer = on_policy_trainer(max_epochs=1, epoch_num_steps=10, test_in_training=True, stop_fn=stop)
    result = trainer.run()
    assert result.gradient_step == 1
    # Training score, test in training, and the epoch's own test step, which says yes.
    assert (len(calls), result.stop_reason) == (3, "stop_fn")


def test_test_in_training_waits_for_an_episode() -> None:
    asked: list[float] = []
    short = {"max_epochs": 1, "epoch_num_steps": 2, "collection_step_num_env_steps": 2, "test_in_training": True}
    on_policy_trainer(stop_fn=lambda score: bool(asked.append(score)), **short).run()
    # Two env steps end no episode of length 5: stop_fn is asked after the test step only.
    assert len(asked) == 1


def test_epoch_stats_are_filled() -> None:
    result = on_policy_trainer().run()
    stats = result.epochs[1]
    assert stats.epoch == 2
    assert stats.collect_stats.num_collected_steps == 20
    assert stats.collect_stats.returns.tolist() == [5.0] * 4
    assert stats.collect_stats.returns_stat == rl.SequenceSummaryStats(mean=5.0, std=0.0, max=5.0, min=5.0)
    assert stats.test_stats.num_collected_episodes == 1
    assert stats.timing.total >= stats.timing.collect > 0
    assert len(result.epochs) == 2
    assert result.timing.total == pytest.approx(sum(epoch.timing.total for epoch in result.epochs))


def test_verbose_prints_a_line_per_epoch_else_a_run_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    on_policy_trainer().run()
    assert capfd.readouterr() == ("", "")
    on_policy_trainer(verbose=True).run()
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines.pop(0) == "ScriptedOnPolicy: gradient steps uncompiled, torch threads 1"
    assert lines[1].startswith("epoch 2, score 5, best 5 (epoch 0), 20 env steps, 2 gradient steps in ")


def test_run_called_twice_starts_again_with_the_trained_networks() -> None:
    trainer = on_policy_trainer()
    for _ in range(2):  # a reset before a run is no other one
        trainer.reset()
    assert (trainer.epoch, trainer.env_step) == (0, 0)
    first, second = trainer.run(), trainer.algorithm.run_training(trainer.params)
    assert (first.env_step, second.env_step, second.epoch) == (40, 40, 2)
    assert trainer.run().epoch == 2
    assert int(trainer.algorithm.num_steps) == 12


def test_epochs_by_hand_equal_a_run_and_one_after_its_end_trains_on() -> None:
    by_hand, by_run = on_policy_trainer(), on_policy_trainer()
    for _ in range(2):
        by_hand.execute_epoch()
    by_run.run()
    assert (by_hand.env_step, by_hand.gradient_step) == (by_run.env_step, by_run.gradient_step)
    for one, other in zip(by_hand.algorithm.rollouts, by_run.algorithm.rollouts, strict=True):
        assert torch.equal(one.action, other.action)
    stopped = on_policy_trainer(stop_fn=lambda score: True)
    stopped.run()
    stats = stopped.execute_epoch()
    assert (stats.epoch, stopped.env_step) == (2, 40)
    assert stats.collect_stats is not None


def test_buffers_are_kept_or_emptied_on_reset() -> None:
    trainer = off_policy_trainer()
    trainer.run()
    trainer.run()
    assert len(trainer.buffer) == 600
    trainer.run(reset_collector_buffers=True)
    assert len(trainer.buffer) == 300


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_an_exception_closes_envs_and_logger_and_a_run_leaves_them_open(error: Any, tmp_path: Path) -> None:
    def fail(epoch: int, env_step: int) -> None:
        raise error

    closed: list[int] = []
    for training_fn in (None, fail):
        logger = rl.CSVLogger(tmp_path / "log.csv")
        logger.close = lambda: closed.append(1)  # type: ignore[method-assign]  # counts the calls
        trainer = on_policy_trainer(training_fn=training_fn, logger=logger)
        with pytest.raises(error) if training_fn else nullcontext():
            trainer.run()
        envs = [collector.envs for collector in trainer.params.collectors().values()]
        assert [*(each.closed for each in envs), bool(closed)] == [training_fn is not None] * 3


def test_a_copy_of_the_policy_is_no_copy_of_the_trainer() -> None:
    copies = []
    trainer = on_policy_trainer(save_best_fn=lambda algorithm: copies.append(copy.deepcopy(algorithm.policy)))
    trainer.run()
    assert copies[0].progress() == 0.0
    assert trainer.algorithm.policy.progress() == 1.0


def test_test_steps_do_not_explore(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = on_policy_trainer()
    collect, explored = rl.Collector.collect, list[tuple[bool, bool]]()

    def noted(self: rl.Collector, *args: Any, explore: bool = True, **options: Any) -> rl.CollectStats:
        explored.append((self is trainer.params.test_collector, explore))
        return collect(self, *args, explore=explore, **options)

    monkeypatch.setattr(rl.Collector, "collect", noted)
    trainer.execute_epoch()
    # The initial test step, two collections, and the test step of the epoch.
    assert explored == [(True, False), (False, True), (False, True), (True, False)]


def test_each_part_of_a_run_has_a_random_stream_of_its_own() -> None:
    def seeds(seed: int) -> list[int]:
        trainer = on_policy_trainer(seed=seed)
        trainer.reset()
        parts = trainer.algorithm, trainer.params.training_collector, trainer.params.test_collector
        return [part.generator.initial_seed() for part in parts]

    assert len({*seeds(1), *seeds(2)}) == 6
    assert seeds(1) == seeds(1)


def test_a_test_step_that_fails_leaves_the_policy_training() -> None:
    trainer = on_policy_trainer()
    trainer.params.test_collector.envs.envs[0].length = "none"
    with pytest.raises(rl.errors.EnvError):
        trainer.run()
    assert trainer.algorithm.policy.training
