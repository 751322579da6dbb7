"""Trainers that share an algorithm, epochs in turn: each follows its own plan."""

from typing import Any

import rltrainer as rl
from rltrainer.nets.normalizer import running_moments
from tests.fakes import counting_envs, replay_of


class Counting(rl.TrainerHook):
    """Counts its points inside updates."""

    def __init__(self) -> None:
        self.num_steps = self.num_losses = 0

    def post_optim(self, ctx: rl.TrainerContext) -> None:
        self.num_steps += 1

    def post_loss(self, ctx: rl.TrainerContext, minibatch: Any) -> None:
        self.num_losses += 1


def a2c() -> rl.A2C:
    rl.seed(1)
    policy = rl.ActorCritic.for_envs(counting_envs(2), hidden_sizes=(4,), normalize_obs=True)
    return rl.A2C(policy, rl.A2CParams(lr=rl.LinearSchedule(1.0, 0.0)))


def trainer(algorithm: Any, max_epochs: int, hook: Any = None, **changes: Any) -> rl.OnPolicyTrainer:
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, counting_envs(2)), max_epochs=max_epochs, epoch_num_steps=10,
        collection_step_num_env_steps=10, hooks=[] if hook is None else [hook], show_progress=False, verbose=False,
        batch_size=None, **changes,
    )  # fmt: skip
    return rl.OnPolicyTrainer(algorithm, params)


def test_each_has_its_own_schedule_hooks_and_update_params() -> None:
    algorithm, hooks = a2c(), (Counting(), Counting())
    first = trainer(algorithm, 4, hooks[0], update=rl.UpdateParams(max_grad_norm=0.5))
    second = trainer(algorithm, 2, hooks[1])
    rates, norms = [], []
    for one in (first, second, first, second, first):
        stats = one.execute_epoch()
        rates.append(round(algorithm.logged_values()["lr"], 6))
        norms.append("grad_norm" in stats.update.metrics)
    assert rates == [1.0, 1.0, 0.75, 0.5, 0.5]  # each by the share of its own training that was done before
    assert [(hook.num_steps, hook.num_losses) for hook in hooks] == [(3, 3), (2, 2)]
    assert norms == [True, False, True, False, True]


def test_a_run_goes_on_where_another_trainer_has_attached() -> None:
    algorithm, hook = a2c(), Counting()
    first = trainer(algorithm, 2, hook)
    first.execute_epoch()
    trainer(algorithm, 1).run()
    first.execute_epoch()
    assert hook.num_steps == 2
    assert algorithm.policy.progress() == 1.0  # of the first


def test_one_trainer_attaches_once() -> None:
    """What a user adds to the plan stays, and nothing is compiled again."""
    algorithm = a2c()
    one = trainer(algorithm, 3)
    one.execute_epoch()
    plan = algorithm.plan
    one.execute_epoch()
    assert algorithm.plan is plan


def test_statistics_of_offline_data_are_taken_once() -> None:
    """An online trainer has turned to other data meanwhile, which the next offline epoch must not forget."""
    rl.seed(1)
    envs = counting_envs(2)
    policy = rl.QNetwork.for_envs(envs, hidden_sizes=(4,), normalize_obs=True)
    algorithm = rl.DQN(policy)
    buffer = replay_of(envs, 100)
    collector = rl.Collector(policy, envs, buffer)
    collector.collect(num_steps=20, random=True)
    quiet: Any = {"show_progress": False, "verbose": False, "max_epochs": 2, "batch_size": 4}
    offline = rl.OfflineTrainer(algorithm, rl.OfflineTrainerParams(buffer=buffer, epoch_num_steps=2, **quiet))
    online = rl.OffPolicyTrainer(
        algorithm,
        rl.OffPolicyTrainerParams(
            training_collector=collector, epoch_num_steps=20, collection_step_num_env_steps=10, **quiet
        ),
    )
    offline.execute_epoch()
    online.execute_epoch()
    (moments,) = running_moments(policy)
    count = float(moments.count)
    offline.execute_epoch()
    assert float(moments.count) == count
    assert algorithm.plan.progress == offline._progress
