"""Evaluation in other envs while a run trains: when, in which episodes, what is logged and kept."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import rltrainer as rl
from rltrainer.hooks import Evaluate
from tests.fakes import CountingEnv, counting_envs
from tests.resume.runs import build
from tests.unit.collect.test_episode_infos import TellingEnv
from tests.unit.hooks.fake_run import trained, with_hooks
from tests.unit.trainers.test_order_and_counts import on_policy_trainer


def run_of(*hooks: rl.TrainerHook, logger: rl.Logger | None = None, **changes: Any) -> rl.OnPolicyTrainer:
    """Return a trainer of 4 epochs of two training steps of 10 env steps."""
    return on_policy_trainer(test_collector=None, hooks=hooks, logger=logger, **({"max_epochs": 4} | changes))


def rows(path: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "kind"} for row in found if row["kind"] == kind]


def test_rows_of_their_own(tmp_path: Path) -> None:
    logger = rl.JSONLinesLogger(tmp_path / "log.jsonl")
    easy = Evaluate(
        functools.partial(TellingEnv, length=3), rl.Every(2, "epoch"), num_episodes=4, name="easy", info_keys=["number"]
    )
    hard = Evaluate(counting_envs(length=7), rl.Every(30, "env_step"), num_episodes=3, name="hard")
    run_of(easy, hard, logger=logger).run()
    of_env = {"easy/return": 3.0, "easy/length": 3.0, "easy/number": 1.0, "easy/is_success": 1.0}
    again = of_env | {"easy/number": 2.0, "easy/is_success": 0.0}  # each env counts the episodes that it was stepped in
    assert rows(tmp_path / "log.jsonl", "easy") == [{"step": 40} | of_env, {"step": 80} | again]
    assert [row["step"] for row in rows(tmp_path / "log.jsonl", "hard")] == [30, 60]
    assert rows(tmp_path / "log.jsonl", "hard")[0] == {"step": 30, "hard/return": 7.0, "hard/length": 7.0}
    assert (easy.best_score, hard.best_score) == (3.0, 7.0)


class Improving(CountingEnv):
    """The k-th evaluation is worth `rewards[k]` for each of its 5 steps."""

    rewards = (1.0, 3.0, math.nan, 3.0, 2.0, 4.0)
    count = -1

    def reset(self, **options: Any) -> Any:
        self.count += 1
        self.reward = self.rewards[self.count]
        return super().reset(**options)


def test_the_best_is_saved_when_it_is_strictly_better() -> None:
    saved: list[Any] = []
    Improving.rewards = (1.0, 3.0, 3.0, 4.0)
    hook = Evaluate(
        Improving, num_episodes=1, save_best_fn=lambda algorithm: saved.append((algorithm, hook.best_score))
    )
    trainer = run_of(hook)
    trainer.run()
    assert [before for _, before in saved] == [None, 5.0, 15.0]
    assert saved[0][0] is trainer.algorithm
    assert hook.best_score == 20.0
    trainer.run()  # from the start: the run before is forgotten
    assert [before for _, before in saved] == [None, 5.0, 15.0] * 2


def test_what_could_not_be_saved_is_not_the_best() -> None:
    hook = Evaluate(CountingEnv, save_best_fn=lambda algorithm: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_of(hook).run()
    assert hook.best_score is None


@pytest.mark.parametrize("run", ["a2c", "dqn", "offline_bc"])
def test_no_bit_of_a_run_changes(run: str) -> None:
    make_env = functools.partial(CountingEnv, action_space=build(run).algorithm.policy.action_space)
    hook = Evaluate(make_env, rl.Every(1, "training_step"), num_episodes=2, save_best_fn=lambda algorithm: None)
    assert trained(with_hooks(run, hook)) == trained(with_hooks(run))


class Sees(gym.vector.VectorWrapper):
    """Keeps what episodes begin with."""

    supports_masked_reset = True

    def __init__(self, envs: Any) -> None:
        super().__init__(envs)
        self.seen: list[list[float]] = []

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        self.seen.append(result[0][:, 0].tolist())
        return result


@pytest.mark.parametrize(("own_seed", "run_seed"), [(None, 1), (3, 1), (3, 2)])
def test_the_same_episodes_each_time(own_seed: int | None, run_seed: int) -> None:
    envs = Sees(counting_envs(3, seed=None))
    run_of(Evaluate(envs, num_episodes=3, seed=own_seed), seed=run_seed).run()
    assert len(envs.seen) == 4
    assert all(each == envs.seen[0] for each in envs.seen)
    other = Sees(counting_envs(3, seed=None))
    run_of(Evaluate(other, num_episodes=3, seed=own_seed), seed=run_seed + 1).run()
    assert (other.seen == envs.seen) is (own_seed is not None)


@pytest.mark.parametrize("mode", gym.vector.AutoresetMode)
def test_every_autoreset_mode(mode: Any, tmp_path: Path) -> None:
    envs = gym.vector.SyncVectorEnv([lambda: TellingEnv(length=3)] * 2, autoreset_mode=mode)
    hook, logger = Evaluate(envs, rl.Every(4, "epoch"), num_episodes=3), rl.JSONLinesLogger(tmp_path / "log.jsonl")
    run_of(hook, logger=logger).run()
    assert rows(tmp_path / "log.jsonl", "evaluation")[0]["evaluation/length"] == 3
    envs.reset()  # a user's stay open


def test_envs_that_it_made_are_closed() -> None:
    closed = []

    class Closes(CountingEnv):
        def close(self) -> None:
            closed.append(self)

    run_of(Evaluate(Closes, num_episodes=20)).run()
    assert len(closed) == 10


def test_a_resumed_run_knows_the_best() -> None:
    Improving.rewards = (1.0, 3.0, 3.0, 4.0)
    one, other = Evaluate(Improving, num_episodes=1), Evaluate(Improving, num_episodes=1)
    trainer, restored = run_of(one, max_epochs=2), run_of(other)
    trainer.run()
    trainer.save("run")
    restored.restore("run")
    assert other.best_score == one.best_score == 15.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_without_env_steps_counts_gradient_steps(tmp_path: Path) -> None:
    logger = rl.JSONLinesLogger(tmp_path / "log.jsonl")
    with_hooks("offline_bc", Evaluate(CountingEnv, num_episodes=2), logger=logger).run()
    assert [row["step"] for row in rows(tmp_path / "log.jsonl", "evaluation")] == [4, 8, 12]


def test_an_int_is_in_training_steps() -> None:
    hooks = [Evaluate(CountingEnv, 3), rl.EarlyStopping(every=3), rl.BatchRecorder("batches", 3)]
    hooks += [rl.ClearCudaCache(every=3), rl.LogTiming(every=3), rl.LogScalar("reward", every=3)]
    assert [hook.every for hook in hooks] == 6 * [rl.Every(3, "training_step")]
    assert [Evaluate(CountingEnv).every, rl.EarlyStopping("loss").every] == 2 * [rl.Every(1, "epoch")]
    assert rl.LogTiming(every=rl.Every(2, "second")).every == rl.Every(2, "second")
