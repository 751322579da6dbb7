"""What schedules see: the share of the planned training that was done before the training step."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from tests.fakes import ScriptedOffPolicy, ScriptedOnPolicy, counting_envs, replay_of, tiny_actor_critic

QUIET: dict[str, Any] = {"show_progress": False, "verbose": False, "seed": 1}


class Rates:
    """Remembers the learning rate of each gradient step, in percent of the first."""

    def __init__(self, policy: rl.Policy) -> None:
        super().__init__(policy)  # type: ignore[call-arg]  # of the algorithm
        self.optimizer = rl.Optimizer({"policy": policy}, rl.LinearSchedule(100.0, 0.0))
        self.rates: list[float] = []

    def gradient_step(self, *args: Any) -> rl.UpdateResult:
        self.rates.append(self.optimizer.method.lr)
        result: rl.UpdateResult = super().gradient_step(*args)  # type: ignore[misc]  # of the algorithm
        return result


class OnPolicyWithRates(Rates, ScriptedOnPolicy):
    pass


class OffPolicyWithRates(Rates, ScriptedOffPolicy):
    pass


def on_policy(**options: Any) -> Any:
    envs = counting_envs(num_envs=2, length=5)
    algorithm = OnPolicyWithRates(tiny_actor_critic(envs))
    collector = rl.Collector(algorithm.policy, envs)
    common = {"training_collector": collector, "batch_size": None, "collection_step_num_env_steps": 10}
    return rl.OnPolicyTrainer(algorithm, rl.OnPolicyTrainerParams(**(common | QUIET | options)))


def off_policy(**options: Any) -> Any:
    envs = counting_envs(num_envs=2, length=5)
    algorithm = OffPolicyWithRates(tiny_actor_critic(envs))
    collector = rl.Collector(algorithm.policy, envs, replay_of(envs, 100))
    common = {"training_collector": collector, "collection_step_num_env_steps": 10}
    return rl.OffPolicyTrainer(algorithm, rl.OffPolicyTrainerParams(**(common | QUIET | options)))


def offline(**options: Any) -> Any:
    algorithm = OffPolicyWithRates(tiny_actor_critic(counting_envs(num_envs=2, length=5)))
    collector = rl.Collector(algorithm.policy, counting_envs(num_envs=2, length=5))
    collector.attach_buffer(
        rl.ReplayBuffer(20, algorithm.policy.observation_space, algorithm.policy.action_space, num_envs=2)
    )
    collector.collect(num_steps=20)
    return rl.OfflineTrainer(algorithm, rl.OfflineTrainerParams(**({"buffer": collector.buffer} | QUIET | options)))


def rates(trainer: Any) -> list[float]:
    trainer.run()
    return trainer.algorithm.rates


EPISODES = {"collection_step_num_env_steps": None, "collection_step_num_episodes": 2}


@pytest.mark.parametrize(("make", "options", "expected"), [
    # Two epochs of 20 env steps in collections of 10: four updates.
    (on_policy, {"max_epochs": 2, "epoch_num_steps": 20}, [100, 75, 50, 25]),
    (on_policy, {"max_epochs": 1, "epoch_num_steps": 10}, [100]),
    # All gradient steps of an update step have one rate.
    (on_policy, {"max_epochs": 1, "epoch_num_steps": 20, "batch_size": 5, "update_step_num_repetitions": 2},
     [100] * 4 + [50] * 4),
    # 30 env steps in collections of 10, with two gradient steps each: env steps before the collection count.
    (off_policy, {"max_epochs": 1, "epoch_num_steps": 30, "update_step_num_gradient_steps_per_sample": 0.2},
     [100, 100, 200 / 3, 200 / 3, 100 / 3, 100 / 3]),
    # Warm-up is part of the progress.
    (
        off_policy,
        {
            "max_epochs": 1, "epoch_num_steps": 40, "warmup_num_env_steps": 20,
            "update_step_num_gradient_steps_per_sample": 0.1,
        },
        [50, 25],
    ),
    (offline, {"max_epochs": 2, "epoch_num_steps": 2}, [100, 75, 50, 25]),
    # Two episodes of 5 steps are 10 env steps, and an epoch has planned 8: each epoch counts as done after one.
    (on_policy, {"max_epochs": 4, "epoch_num_steps": 8, **EPISODES}, [100, 75, 50, 25]),
    # And as done after two where 18 are planned; the first is 10 / 18 of it.
    (on_policy, {"max_epochs": 2, "epoch_num_steps": 18, **EPISODES}, [100, 100 - 50 * 10 / 18, 50, 50 - 50 * 10 / 18]),
])  # fmt: skip
def test_rates_of_gradient_steps(make: Any, options: dict[str, Any], expected: list[float]) -> None:
    assert rates(make(**options)) == pytest.approx(expected)


def test_exploration_sees_the_same_progress_as_the_update() -> None:
    trainer = on_policy(max_epochs=2, epoch_num_steps=20)
    seen = []
    trainer.params.training_collector.exploration = lambda greedy, space, progress, generator: (
        seen.append(progress) or greedy
    )
    trainer.run()
    assert seen == [0.0] * 5 + [0.25] * 5 + [0.5] * 5 + [0.75] * 5


def test_outside_of_training_steps_progress_is_what_was_done() -> None:
    seen: list[float] = []
    trainer = on_policy(max_epochs=2, epoch_num_steps=20)
    tests = {"test_collector": rl.Collector(trainer.algorithm.policy, counting_envs(num_envs=2, length=5))}
    note = {"test_fn": lambda epoch, env_step: seen.append(trainer.algorithm.plan.progress())}
    rl.OnPolicyTrainer(trainer.algorithm, dataclasses.replace(trainer.params, **tests, **note)).run()
    assert seen == [0.0, 0.5, 1.0]


def test_a_longer_run_after_a_resume_measures_against_its_own_plan(tmp_path: Path) -> None:
    first = offline(max_epochs=1, epoch_num_steps=2)
    first.run()
    first.save(tmp_path / "checkpoint")
    second = offline(max_epochs=4, epoch_num_steps=2)
    second.restore(tmp_path / "checkpoint")
    assert rates(second) == pytest.approx([100 * (8 - k) / 8 for k in range(2, 8)])
