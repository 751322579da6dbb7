"""A process that trains several shards: what each of them does, what only the first one does, and what is refused."""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.collect.collect_stats import NO_EPISODES, CollectStats
from rltrainer.errors import CheckpointError, ParamsError, RanksDifferError
from rltrainer.nets.blocks import BatchNorm
from rltrainer.nets.mlp import Dropout
from rltrainer.ranks.ranks import Ranks
from rltrainer.trainers import shards
from rltrainer.trainers.run_checkpoints import RunCheckpoints
from rltrainer.trainers.shards import merged_stats
from tests.fakes import ScriptedOffPolicy, ScriptedOnPolicy, counting_envs, replay_of, run_in_threads, tiny_actor_critic
from tests.resume.runs import build
from tests.resume.sharded import make, outcome
from tests.unit.tools.refusals import error_text

QUIET: dict[str, Any] = {"show_progress": False, "verbose": False, "seed": 5}


def sharded(num_shards: int = 2, **parallel: Any) -> rl.RuntimeParams:
    return rl.RuntimeParams(parallel=rl.ParallelParams(num_shards=num_shards, **parallel))


def scripted(
    num_shards: int = 2, num_envs: int = 4, test: bool = True, net: Any = None,
    params_class: type[Any] = rl.OnPolicyTrainerParams, **fields: Any,
) -> Any:  # fmt: skip
    """Return a trainer of an algorithm that learns nothing: two epochs of two training steps with two rows each."""
    envs = counting_envs(num_envs)
    algorithm = ScriptedOnPolicy(tiny_actor_critic(envs) if net is None else rl.ActorCritic.for_envs(envs, net))
    collectors = {"training_collector": rl.Collector(algorithm.policy, envs)}
    if test:
        collectors["test_collector"] = rl.Collector(algorithm.policy, counting_envs(num_envs))
    plain = {
        "max_epochs": 2, "epoch_num_steps": 4 * num_envs, "collection_step_num_env_steps": 2 * num_envs,
        "batch_size": None, "test_step_num_episodes": 2, "runtime": sharded(num_shards),
    }  # fmt: skip
    params = params_class(**{**QUIET, **collectors, **plain, **fields})
    return params.create_trainer(algorithm)


def test_dropout_differs_by_shard_and_counts_alike() -> None:
    trainer = scripted(net=rl.NetParams(hidden_sizes=(8,), dropout=0.5))
    trainer.run()
    parts = [part for each in all_of(trainer) for part in each.algorithm.policy.modules()]
    actor, critic, *others = [(int(part.stream), int(part.num_masks)) for part in parts if isinstance(part, Dropout)]
    assert actor[0] == critic[0] == 0
    assert others == [(1, actor[1]), (1, critic[1])]


def all_of(trainer: Any) -> list[Any]:
    return [trainer, *trainer.replicas]


def test_each_shard_has_its_envs_by_their_number_among_all() -> None:
    trainer = scripted(num_envs=6, num_shards=3)
    trainer.run()
    rollouts = [each.algorithm.rollouts[0] for each in all_of(trainer)]
    assert [rollout.reward.shape for rollout in rollouts] == [(2, 2)] * 3
    whole = scripted(num_envs=6, num_shards=1)
    whole.run()
    assert whole.meeting is None
    for row in range(2):
        numbers = torch.cat([rollout.obs[row] for rollout in rollouts])
        assert torch.equal(numbers, whole.algorithm.rollouts[0].obs[row])


def test_counts_are_of_all_shards() -> None:
    trainer = scripted()
    stats = trainer.run()
    assert (trainer.epoch, trainer.env_step, trainer.update_step) == (2, 32, 4)
    assert (stats.env_step, stats.update_step) == (32, 4)
    assert [each.env_step for each in trainer.replicas] == [32]


@pytest.mark.parametrize("num_shards", [1, 2])
def test_params_of_a_trainer_make_others(num_shards: int) -> None:
    trainer = scripted(num_shards)
    for each in all_of(trainer):
        again = rl.OnPolicyTrainerParams(**vars(each.params))
        assert again == each.params
        assert again.logger is None


def test_no_parallel_params_is_one_shard() -> None:
    for runtime in (rl.RuntimeParams(), rl.RuntimeParams(parallel=None), sharded(1)):
        trainer = scripted(runtime=runtime)
        assert (trainer.meeting, trainer.replicas, trainer.ranks.world) == (None, [], 1)


@pytest.mark.parametrize("num_episodes", [1, 2, 3])
def test_a_test_step_of_any_number_of_episodes(num_episodes: int) -> None:
    """With one episode, the second shard has none."""
    found: list[CollectStats] = []
    trainer = scripted(test_step_num_episodes=num_episodes, compute_score_fn=lambda stats: found.append(stats) or 3.0)
    trainer.run()
    assert [stats.num_collected_episodes for stats in found] == [num_episodes] * 3
    assert [each.state.best.score for each in all_of(trainer)] == [3.0, 3.0]
    assert found[0].returns.tolist() == [5.0] * num_episodes


def test_statistics_of_a_rank_without_an_episode() -> None:
    own = CollectStats(3, 2, np.array([1.0, 2.0]), np.array([3, 4]), 0.5, infos={"x": np.array([1.0, np.nan])})
    first, second = run_in_threads([partial(merged_stats, each) for each in (own, NO_EPISODES)])
    for found in (first, second):
        assert (found.num_collected_steps, found.returns.tolist(), found.lengths.tolist()) == (3, [1.0, 2.0], [3, 4])
        assert found.collect_time == 0.5
        np.testing.assert_array_equal(found.infos["x"], [1.0, np.nan])


def test_the_last_episodes_are_of_all_ranks() -> None:
    own = [CollectStats(n, n, np.full(n, 1.0 * i), np.full(n, 1), 0.5) for i, n in enumerate((4, 2, 0))]
    found = run_in_threads([partial(merged_stats, each) for each in own])
    assert [each.returns.tolist() for each in found] == [[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]] * 3


def test_callbacks_are_called_once_in_a_process() -> None:
    calls: list[str] = []

    def note(name: str, result: Any = None) -> Callable[..., Any]:
        return lambda *_: calls.append(name) or result

    trainer = scripted(
        training_fn=note("training"), test_fn=note("test"), stop_fn=note("stop", False),
        compute_score_fn=note("score", 1.0), save_best_fn=note("best"), save_checkpoint_fn=note("checkpoint", "path"),
    )  # fmt: skip
    trainer.run()
    once = {name: calls.count(name) for name in calls}
    assert once == {"training": 4, "test": 3, "stop": 2, "score": 3, "best": 1, "checkpoint": 4}


class WithAName(rl.OnPolicyTrainer):
    def __init__(self, algorithm: Any, params: Any) -> None:
        super().__init__(algorithm, params)
        self.name = "mine"


def test_a_trainer_class_may_have_a_constructor_of_its_own() -> None:
    alone = scripted(1)
    trainer = WithAName(alone.algorithm, dataclasses.replace(alone.params, runtime=sharded(2)))
    assert [(each.ranks.rank, each.name) for each in all_of(trainer)] == [(0, "mine"), (1, "mine")]


class OnOneRank(rl.TrainerHook):
    """Asks for the end in the second training step of the second shard."""

    def post_steps(self, ctx: Any) -> None:
        if ctx.ranks.rank == 1 and ctx.training_step == 2:
            ctx.request_stop("the second one")


@pytest.mark.parametrize(
    ("fields", "reason", "num_updates"),
    [
        ({"stop_fn": lambda score: True}, "stop_fn", 2),
        ({"stop_fn": lambda score: True, "test_in_training": True, "collection_step_num_env_steps": 24}, "stop_fn", 0),
        ({"hooks": [rl.EarlyStopping(patience=1)]}, "hook: score has not improved on 5 in 1 looks", 2),
        ({"hooks": [OnOneRank()]}, "hook: the second one", 2),
    ],
)
def test_all_shards_stop_together(fields: dict[str, Any], reason: str, num_updates: int) -> None:
    trainer = scripted(max_epochs=9, **fields)
    assert trainer.run().stop_reason == reason
    ends = [(each.epoch, each.update_step, each.state.stop_reason) for each in all_of(trainer)]
    assert ends == [(1, num_updates, reason)] * 2


class Marks(rl.TrainerHook):
    """Marks the batch with the shard."""

    def batch_process(self, ctx: Any, batch: Any) -> Any:
        batch.reward[:] = 10 + ctx.ranks.rank
        return batch


def test_hooks_process_the_batch_of_each_shard() -> None:
    trainer = scripted(hooks=[Marks()])
    trainer.run()
    assert [each.algorithm.rollouts[-1].reward.unique().tolist() for each in all_of(trainer)] == [[10.0], [11.0]]


def test_hooks_process_the_batch_of_each_shard_off_policy_and_offline() -> None:
    envs = counting_envs(4)
    algorithm = ScriptedOffPolicy(tiny_actor_critic(envs))
    buffer = replay_of(envs)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs, buffer), max_epochs=1, epoch_num_steps=16,
        collection_step_num_env_steps=8, batch_size=6, update_step_num_gradient_steps_per_sample=0.25, hooks=[Marks()],
        runtime=sharded(), **QUIET,
    )  # fmt: skip
    trainer = params.create_trainer(algorithm)
    trainer.run()
    for rank, each in enumerate(all_of(trainer)):
        assert [tuple(batch.reward.shape) for batch in each.algorithm.batches] == [(3,)] * 4
        assert {x for batch in each.algorithm.batches for x in batch.reward.tolist()} == {10.0 + rank}
        assert len(each.buffer) == 8


def test_only_the_first_rank_prints_and_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for num_shards in (1, 2):
        logger = rl.JSONLinesLogger(tmp_path / str(num_shards) / "log.jsonl", training_interval=1)
        scripted(num_shards, logger=logger, verbose=True).run()
    one, two = ((tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("1", "2"))
    assert len(one) == len(two)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(lines) == 4  # two epochs of two runs


def test_an_error_of_a_callback_ends_all_shards() -> None:
    def fail(*_: Any) -> None:
        raise ValueError("of a callback")

    trainer = scripted(training_fn=fail)
    assert error_text(ValueError, trainer.run) == "of a callback"
    trainer = scripted(hooks=[FailsOnSecond()])
    assert "of the second" in error_text(ValueError, trainer.run)


class FailsOnSecond(rl.TrainerHook):
    """Fails in the second shard."""

    def post_steps(self, ctx: Any) -> None:
        if ctx.ranks.rank == 1:
            raise ValueError("of the second")


@pytest.mark.parametrize("name", ["ppo", "dqn_prioritized", "offline_iql"])
def test_save_and_restore_in_one_process(name: str, tmp_path: Path) -> None:
    whole = make(name, 2)
    whole.execute_epoch()
    whole.save(tmp_path / "saved")
    resumed = make(name, 2)
    resumed.restore(tmp_path / "saved")
    for trainer in (whole, resumed):
        trainer.execute_epoch()
    assert outcome(resumed) == outcome(whole)


def test_a_callback_cannot_save_what_is_of_all_shards(tmp_path: Path) -> None:
    trainer = scripted(save_checkpoint_fn=lambda *_: trainer.save(tmp_path / "saved"))
    rule = "OnPolicyTrainer.save: must not be called while a run of several shards trains. CheckpointParams saves while"
    assert error_text(CheckpointError, trainer.run).startswith(rule)
    trainer = scripted(1, save_checkpoint_fn=lambda *_: trainer.save(tmp_path / "saved", overwrite=True))
    trainer.run()


@pytest.mark.parametrize(("saved", "now"), [(2, 1), (1, 2), (2, 4)])
def test_another_number_of_shards_is_named(saved: int, now: int, tmp_path: Path) -> None:
    trainer = scripted(saved)
    trainer.reset()
    trainer.save(tmp_path / "saved")
    text = error_text(CheckpointError, scripted(now).restore, tmp_path / "saved")
    have = f"was saved by a run of {saved} shards, and this one has {now}"
    assert text == f"{tmp_path / 'saved'}: {have}. Pass RuntimeParams(parallel=ParallelParams(num_shards={saved}))."


def test_a_resumed_run_has_the_shards_that_it_had(tmp_path: Path) -> None:
    checkpoint = rl.CheckpointParams(tmp_path, every=1)
    scripted(4, checkpoint=checkpoint).run()
    again = scripted(checkpoint=checkpoint, max_epochs=3, runtime=rl.RuntimeParams(parallel=rl.ParallelParams()))
    assert len(again.replicas) == 3
    again.run()
    assert again.epoch == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_ranks_clock_decides_on_checkpoints(
    rank: int, tmp_path: Path, saved: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's says otherwise."""
    position = RunCheckpoints._position

    def of_rank(self: Any) -> float:
        assert position(self) > 0
        return float(self._state.training_step) if self._ranks.rank == rank else 0.0

    monkeypatch.setattr(RunCheckpoints, "_position", of_rank)
    scripted(checkpoint=rl.CheckpointParams(tmp_path, every=rl.Every(1, "second"), keep_best=0)).run()
    # Each training step, or the last one.
    assert [step for step, _ in saved] == ([8, 8, 16, 16, 24, 24, 32, 32] if rank == 0 else [32, 32])


class Two(Ranks):
    """The first of two processes, which knows no other one."""

    def _gather(self, x: torch.Tensor, is_equal: bool) -> list[torch.Tensor]:
        return [x, x]


def test_processes_that_cannot_share_out_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "process_ranks", lambda *_: Two(0, 2))
    text = error_text(ParamsError, scripted, 3)
    rule = "must be a multiple of the number of processes, 2"
    assert text == f"ParallelParams.num_shards: {rule}; got 3 (int). 1, 3 processes can share them."
    assert scripted(1, num_envs=4, runtime=rl.RuntimeParams(parallel=None)).meeting is None


def test_a_process_has_its_share_of_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "process_ranks", lambda *_: Two(1, 2))
    trainer = scripted(4, num_envs=4)
    assert [(each.ranks.rank, each.ranks.world) for each in all_of(trainer)] == [(2, 4), (3, 4)]
    assert scripted(2).replicas == []
    assert scripted(2).ranks.world == 2


def test_batches_off_policy_and_offline_that_cannot_be_shared_out() -> None:
    for name, cls in {"dqn": "OffPolicyTrainerParams", "offline_iql": "OfflineTrainerParams"}.items():
        text = error_text(ParamsError, partial(build, name, num_envs=4, runtime=sharded(3)))
        assert "must be a multiple of the number of shards, 3" in text
        assert text.startswith(cls)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, BatchNorm])
def test_no_batch_norm(norm: Any) -> None:
    envs = counting_envs(4)
    policy = tiny_actor_critic(envs)
    algorithm = ScriptedOnPolicy(policy)
    policy.register_module("norm", norm(2))
    params = rl.OnPolicyTrainerParams(training_collector=rl.Collector(policy, envs), runtime=sharded(), **QUIET)
    text = error_text(ParamsError, params.create_trainer, algorithm)
    rule = "must have no batch norm in a run of several shards, as each would have statistics of its own"
    assert text.startswith(f"ScriptedOnPolicy.policy: {rule}; got ")
    assert text.endswith("Take nn.LayerNorm.")
    algorithm.uses_batch_stats = True  # type: ignore[misc]  # as CrossQ's class
    assert error_text(ParamsError, params.create_trainer, algorithm).endswith("It needs one: train in one shard.")


def test_no_log_is_resumed(tmp_path: Path) -> None:
    fields = {"resume_from_log": True, "logger": rl.JSONLinesLogger(tmp_path / "log.jsonl")}
    text = error_text(ParamsError, partial(scripted, **fields))
    assert text.startswith("OnPolicyTrainerParams.resume_from_log: must be False in a run of several shards")
    assert scripted(1, **fields).meeting is None


def test_a_trainer_of_several_shards_is_not_copied() -> None:
    text = error_text(ParamsError, copy.deepcopy, scripted())
    assert text.startswith("RuntimeParams.parallel: must leave one shard in a trainer that is copied; got ")
    assert copy.deepcopy(scripted(1)).meeting is None


def restart(algorithm: Any) -> None:
    """Reset all weights, as a `training_fn` for plasticity does."""
    for p in algorithm.policy.parameters():
        nn.init.normal_(p)


class Restarts(rl.TrainerHook):
    """Draws weights in the second training step: in each shard others."""

    def post_steps(self, ctx: Any) -> None:
        if ctx.training_step == 2:
            restart(ctx.algorithm)


RETURNS = {"stop_fn": False, "compute_score_fn": 1.0, "save_checkpoint_fn": ""}


@pytest.mark.parametrize("name", ["training_fn", "test_fn", "save_best_fn", *RETURNS])
def test_all_shards_get_the_weights_that_a_callback_leaves(name: str) -> None:
    trainer = scripted()
    algorithm = trainer.algorithm
    object.__setattr__(trainer.params, name, lambda *_: restart(algorithm) or RETURNS.get(name))
    before = next(algorithm.policy.parameters()).clone()
    trainer.run()
    for p, q in zip(*(each.algorithm.policy.parameters() for each in all_of(trainer)), strict=True):
        assert torch.equal(p, q)
    assert not torch.equal(before, next(algorithm.policy.parameters()))


@pytest.mark.parametrize(("fields", "num_steps"), [({}, 2), ({"checkpoint": 3}, 3), ({"checkpoint": 2}, 2)])
def test_weights_that_a_hook_changes_in_each_shard_are_an_error(
    fields: dict[str, int], num_steps: int, tmp_path: Path
) -> None:
    checkpoint = rl.CheckpointParams(tmp_path, every=fields["checkpoint"]) if fields else None
    trainer = scripted(hooks=[Restarts()], epoch_num_steps=32, checkpoint=checkpoint)
    text = error_text(RanksDifferError, trainer.run)
    assert text.startswith("policy."), text
    assert "must be equal in all ranks; rank 1 of 2 differs from rank 0 by up to " in text


class Saves(rl.OnPolicyTrainer):
    """Saves at the end of a run, and counts epochs in methods of its own."""

    def run(self, *args: Any) -> Any:
        calls.append("run")
        stats = super().run(*args)
        self.save(self.params.run_folder.path / "end")
        return stats

    def execute_epoch(self) -> Any:
        calls.append("epoch")
        return super().execute_epoch()

    def fit(self) -> Any:
        return super().run()


calls: list[str] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggedParams(rl.OnPolicyTrainerParams):
    """Params with a rule of the user's, which the other shards' params would break if they were made anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logger is None:
            raise ValueError("a run needs a logger")

    def create_trainer(self, algorithm: Any) -> Any:
        return Saves(algorithm, self)


@pytest.mark.parametrize(("method", "expected"), [("run", ["run"]), ("fit", [])])
def test_a_users_trainer_and_params(method: str, expected: list[str], tmp_path: Path) -> None:
    """A method of the user's runs once, whatever it calls; what the loop calls is each shard's."""
    calls.clear()
    trainer = scripted(params_class=LoggedParams, run_folder=rl.RunFolder.new("a", tmp_path))
    for each in all_of(trainer):
        assert each.params.run_folder.path == tmp_path / "a"
    getattr(trainer, method)()
    assert calls == [*expected, *["epoch"] * 4]
    assert [each.env_step for each in all_of(trainer)] == [32, 32]


def test_a_method_that_is_replaced_on_a_trainer() -> None:
    trainer = scripted()
    original, calls = trainer.execute_epoch, []
    trainer.execute_epoch = lambda: (calls.append(trainer.epoch), original())[1]
    trainer.run()
    assert calls == [0, 1]


def test_a_collector_that_was_a_shards_serves_a_trainer_alone() -> None:
    first = scripted()
    first.run()
    params = dataclasses.replace(first.params, runtime=rl.RuntimeParams(), batch_size=4)
    again = rl.OnPolicyTrainer(first.algorithm, params)
    assert (params.num_envs, params.own_batch_size) == (2, 4)
    assert again.run().env_step == 32
    params = dataclasses.replace(params, runtime=sharded(4))
    assert (rl.OnPolicyTrainer(first.algorithm, params).run().env_step, params.num_envs) == (32, 4)


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), BrokenBarrierError("the user's")])
def test_an_error_of_any_shard_is_raised(shard: int, error: BaseException) -> None:
    class Fails(rl.TrainerHook):
        def post_steps(self, ctx: Any) -> None:
            if ctx.ranks.rank == shard:
                raise error

    with pytest.raises(type(error)) as found:
        scripted(hooks=[Fails()]).run()
    assert found.value is error


def test_a_profiler_is_the_first_shards_and_changes_no_check(tmp_path: Path) -> None:
    runtime = dataclasses.replace(sharded(), profiler=rl.ProfilerParams(folder=str(tmp_path)))
    error_text(RanksDifferError, scripted(hooks=[Restarts()], epoch_num_steps=32, runtime=runtime).run)
    scripted(runtime=runtime).run()


class Uncopied(rl.TrainerHook):
    """A hook that cannot be copied."""

    def setup(self, ctx: Any) -> None: ...

    def __deepcopy__(self, memo: dict[int, Any]) -> "Uncopied":
        raise TypeError("cannot be copied")


@pytest.mark.parametrize("fields", [{"hooks": [Uncopied()]}, {"batch_size": 7}])
def test_collectors_stay_whole_if_a_run_cannot_be_split(fields: dict[str, Any]) -> None:
    envs = counting_envs(4)
    policy = tiny_actor_critic(envs)
    collector = rl.Collector(
        policy, envs, rl.RolloutBuffer(2, 4, envs.single_observation_space, envs.single_action_space)
    )
    collector.collect(8)
    params = rl.OnPolicyTrainerParams(
        training_collector=collector, runtime=sharded(), **QUIET, **{"batch_size": 8} | fields
    )
    with pytest.raises((TypeError, ParamsError)):
        params.create_trainer(ScriptedOnPolicy(policy))
    assert (collector.num_envs, collector.envs, collector.shard) == (4, envs, None)
    collector.collect(8)
    assert collector.rollout().reward.shape == (2, 4)
