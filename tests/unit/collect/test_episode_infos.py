"""What envs tell at the end of episodes: in statistics, whoever collects, and in the log of a run."""

import copy
import functools
import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import EnvError, ParamsError
from rltrainer.trainers.run_state import LastEpisodes
from tests.fakes import CountingEnv, ScriptedOnPolicy, replay_of, rollouts_of, tiny_actor_critic

INFO_KEYS = ("is_success", "number", "steps")


class TellingEnv(CountingEnv):
    """Tells its steps so far with each step; when an episode terminates also its number, and whether that is odd."""

    number_of_episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed, options=options)
        return obs, {"steps": -1, "number": -1, "is_success": False}

    def step(self, action: Any) -> Any:
        *result, _ = super().step(action)
        self.number_of_episodes += self.step_count == 1  # some modes reset more often than they begin an episode
        number = self.number_of_episodes
        end = {"number": float(number), "is_success": number % 2 == 1} if result[2] else {}
        return *result, {"steps": self.step_count, **end}


def telling_envs(num_envs: int = 2, backend: Any = "sync", **options: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
    return rl.make_vec(functools.partial(TellingEnv, **options), num_envs, backend=backend, seed=1)


def collector_of(envs: Any, info_keys: Any = INFO_KEYS, **options: Any) -> rl.Collector:
    return rl.Collector(tiny_actor_critic(envs), envs, info_keys=info_keys, **options)


def lists(stats: rl.CollectStats) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in stats.infos.items()}


@pytest.mark.parametrize("mode", [*gym.vector.AutoresetMode, "sync", "workers"])
def test_values_of_the_end_in_every_autoreset_mode(mode: Any) -> None:
    if isinstance(mode, str):
        envs = telling_envs(2, mode, length=3)
    else:
        envs = gym.vector.SyncVectorEnv([lambda: TellingEnv(length=3)] * 2, autoreset_mode=mode)
    collector = collector_of(envs)
    stats = collector.collect(num_episodes=5, explore=False)  # the first env's share is 3, the other's 2
    assert lists(stats) == {"is_success": [1, 1, 0, 0, 1], "number": [1, 1, 2, 2, 3], "steps": [3] * 5}
    assert stats.info_means == {"is_success": 0.6, "number": 1.8, "steps": 3.0}
    assert stats.success_rate == 0.6
    assert "is_success 0.6, number 1.8, steps 3, " in repr(stats)
    none = collector.collect(num_steps=2)
    assert lists(none) == {name: [] for name in INFO_KEYS}
    assert (none.info_means, none.success_rate) == ({}, None)
    collector.close()


def test_envs_that_step_themselves() -> None:
    pytest.importorskip("envpool")
    envs = rl.make_vec("CartPole-v1", 2, backend="envpool", seed=1)
    stats = collector_of(envs, ["elapsed_step"]).collect(num_episodes=3)
    np.testing.assert_array_equal(stats.infos["elapsed_step"], stats.lengths)


def test_collections_and_streams_are_those_without() -> None:
    found = []
    for keys in ((), INFO_KEYS):
        rl.seed(3)
        envs = telling_envs(length=4)
        collector = collector_of(envs, keys)
        assert (collector.envs is envs) == (not keys)
        collector.attach_buffer(rollouts_of(envs, 6))
        collector.seed(5)
        found.append([(collector.collect(num_steps=12), collector.rollout()) for _ in range(2)])
    for (one, one_rollout), (other, other_rollout) in zip(*found, strict=True):
        assert one.returns.tolist() == other.returns.tolist()
        assert one_rollout.action.tolist() == other_rollout.action.tolist()
        assert one_rollout.obs.tolist() == other_rollout.obs.tolist()


def test_an_episode_whose_info_lacks_a_key_is_left_out_of_its_mean() -> None:
    collector = collector_of(telling_envs(length=4), max_episode_steps=3)
    with pytest.warns(UserWarning, match="'is_success' is in no info with which an episode ended so far"):
        stats = collector.collect(num_episodes=2)
    assert np.isnan(stats.infos["number"]).all()
    assert stats.info_means == {"steps": 3.0}
    ended = rl.CollectStats(4, 4, np.ones(2), np.array([2, 2]), 0.0, {"number": np.array([7.0, 9.0])})
    both = rl.CollectStats.merge([stats, ended])
    np.testing.assert_array_equal(both.infos["number"], [np.nan, np.nan, 7, 9])
    np.testing.assert_array_equal(both.infos["steps"], [3, 3, np.nan, np.nan])
    assert both.info_means == {"number": 8.0, "steps": 3.0}


def test_a_misspelt_key_is_told_once_with_the_nearest() -> None:
    collector = collector_of(telling_envs(length=3), ["is_sucess", "steps"])
    text = r"info_keys: 'is_sucess' is in no info .*; they had 'is_success', 'number', 'steps'\. Did you mean"
    with pytest.warns(UserWarning, match=text + " 'is_success'"):
        collector.collect(num_episodes=2)
    other = copy.deepcopy(collector)  # reads its own envs
    assert lists(other.collect(num_episodes=2))["steps"] == [3, 3]


class WordyEnv(TellingEnv):
    """Tells a text beside the numbers, so that infos of workers travel through a pipe."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, info | {"verdict": "good"}


def test_what_is_no_number_is_named() -> None:
    envs = rl.make_vec(WordyEnv, 2, backend="sync")
    text = r"env 0 info\['verdict'\]: expected a number at the end of an episode, found 'good' \(str\)"
    with pytest.raises(EnvError, match=text):
        collector_of(envs, ["verdict"]).collect(num_episodes=2)


def test_workers_that_collect_while_training() -> None:
    buffer = replay_of(telling_envs(2), 100)  # for the envs of both workers
    policy, make_envs = tiny_actor_critic(telling_envs(1)), functools.partial(telling_envs, 1, length=3)
    collector = rl.AsyncCollector(policy, make_envs, 2, buffer, info_keys=["number", "steps"])
    stats = [collector.collect(num_steps=n) for n in (8, 8)]  # 4 rows each: episodes end in rows 3 and 6
    collector.close()
    assert [lists(each) for each in stats] == [{"number": [n, n], "steps": [3, 3]} for n in (1, 2)]
    with pytest.raises(ParamsError, match="AsyncCollector.info_keys: must be a sequence of keys"):
        rl.AsyncCollector(policy, make_envs, 2, info_keys="steps")


def trainer_of(folder: Path | None, *hooks: rl.TrainerHook) -> rl.OnPolicyTrainer:
    """Return a trainer that has six episodes of 3 steps in an epoch, three in each env, and tests four of 4 steps."""
    envs, test_envs = telling_envs(length=3), telling_envs(length=4)
    policy = tiny_actor_critic(envs)
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs, info_keys=["is_success"]),
        test_collector=rl.Collector(policy, test_envs, info_keys=["is_success", "number"]),
        compute_score_fn=lambda stats: stats.success_rate, max_epochs=1, epoch_num_steps=18,
        collection_step_num_env_steps=18, test_step_num_episodes=4, hooks=hooks, initial_test=False,
        logger=None if folder is None else rl.JSONLinesLogger(folder / "log.jsonl", training_interval=1),
        verbose=False, show_progress=False,
    )  # fmt: skip
    return rl.OnPolicyTrainer(ScriptedOnPolicy(policy), params)


@pytest.mark.parametrize("env", [TellingEnv, WordyEnv])
def test_envs_that_are_stepped_each_by_itself(env: Any) -> None:
    envs = rl.make_vec(functools.partial(env, length=3), 2, backend="workers", seed=1, num_workers=2)
    policy = tiny_actor_critic(envs)
    collector = rl.BatchedCollector(policy, envs, info_keys=INFO_KEYS)
    stats = collector.collect(num_episodes=5)
    collector.close()
    assert sorted(stats.infos["number"].tolist()) == [1, 1, 2, 2, 3]
    assert stats.infos["steps"].tolist() == [3] * 5
    assert stats.infos["is_success"].tolist() == (stats.infos["number"] % 2 == 1).tolist()
    with pytest.raises(ParamsError, match="BatchedCollector.info_keys: must be a sequence of keys"):
        rl.BatchedCollector(policy, envs, info_keys="steps")


def test_a_trainer_logs_them_beside_returns_and_a_resumed_run_continues_with_the_last(tmp_path: Path) -> None:
    trainer, restored = trainer_of(tmp_path), trainer_of(None)
    result = trainer.run()
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    training, test = (next(row for row in rows if row["kind"] == kind) for kind in ("training", "test"))
    assert (training["training/return"], training["training/is_success"]) == (3.0, pytest.approx(2 / 3))
    assert (test["test/score"], test["test/is_success"], test["test/number"]) == (0.5, 0.5, 1.5)
    assert result.best_score == 0.5
    trainer.save(tmp_path / "run")
    restored.restore(tmp_path / "run")
    assert restored.state.log.infos == {"is_success": [1, 1, 0, 0, 1, 1]}
    found, expected = (lists(each.state.epochs[0].test_stats) for each in (restored, trainer))
    assert found == expected == {"is_success": [1, 1, 0, 0], "number": [1, 1, 2, 2]}


def test_what_is_read_from_a_file_is_checked() -> None:
    numbers = np.ones(2), np.array([2, 2]), 0.0
    for wrong in (np.ones(3), np.ones(2, np.int64)):
        problem = rl.CollectStats(4, 4, *numbers, {"steps": wrong}).problem()
        assert problem is not None
        assert problem.startswith("infos.steps: expected float64 (2,), found ")
    assert rl.CollectStats(4, 4, *numbers, {"steps": np.ones(2)}).problem() is None
    assert LastEpisodes(infos={"steps": [1.0] * 101}).problem() == "expected at most 100 values of each info"


class Logs(rl.TrainerHook):
    def test_log(self, ctx: rl.TrainerContext, stats: rl.CollectStats) -> Any:
        return {"number": 1.0}


def test_a_hook_cannot_log_under_their_names(tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="hooks: must log it under another name, as test rows have one of their own"):
        trainer_of(tmp_path, Logs()).run()


@pytest.mark.parametrize("env", ["CartPole-v1", TellingEnv])
def test_envs_that_are_read_come_back_to_where_they_were(env: Any) -> None:
    backend: Any = "native" if env == "CartPole-v1" else "sync"

    def made(keys: tuple[str, ...]) -> rl.Collector:
        rl.seed(1)
        envs = rl.make_vec(env, 8, backend=backend, seed=2)
        return rl.Collector(tiny_actor_critic(envs), envs, info_keys=keys)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "info_keys: ")  # CartPole tells nothing
        one, other = made(("steps",)), made(("steps",))
        one.collect(num_steps=64)
        other.load_state_dict(one.state_dict())
        found, expected = other.collect(num_steps=400), one.collect(num_steps=400)
    assert found.returns.tolist() == expected.returns.tolist() != []
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert other.needs_reset is False
    np.testing.assert_array_equal(found.infos["steps"], expected.infos["steps"])
