"""What a trainer hands to its logger and shows on its bar."""

import dataclasses
import json
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.loggers import terminal as progress
from tests.resume.runs import build
from tests.unit.loggers.rows import ListLogger as Rows
from tests.unit.loggers.rows import values as logged_values
from tests.unit.trainers.test_order_and_counts import off_policy_trainer, on_policy_trainer


def with_returns(trainer: Any) -> Any:
    """Let each env's k-th episode return k per step: 5, 10, 15, ... in episodes of 5 steps."""
    for env in trainer.params.training_collector.envs.envs:
        env.unwrapped.reward = 0.0
        reset = env.unwrapped.reset

        def more(reset: Any = reset, env: Any = env.unwrapped, **options: Any) -> Any:
            env.reward += 1.0
            return reset(**options)

        env.unwrapped.reset = more
    return trainer


@pytest.mark.parametrize(("ratio", "at"), [(1.0, [1, 1000, 2000, 2500]), (5.0, [5, 1000, 2000, 2500])])
def test_off_policy_every_thousand_gradient_steps_is_a_row(ratio: float, at: list[int]) -> None:
    logger = Rows()
    off_policy_trainer(
        logger=logger, epoch_num_steps=int(2500 / ratio), collection_step_num_env_steps=1,
        update_step_num_gradient_steps_per_sample=ratio,
    ).run()  # fmt: skip
    assert [step * ratio for step, _ in logger.of("update")] == at
    # The losses are 1, 2, 3, ...: each row is the mean of all since the one before, the last of what is left.
    between = zip([0, *at], at, strict=False)
    assert [values["loss"] for _, values in logger.of("update")] == [(a + 1 + b) / 2 for a, b in between]


class Notes(rl.TrainerHook):
    """Logs at points that no training step holds."""

    def setup(self, ctx: Any) -> None:
        ctx.log({"noted": 1.0})

    def post_steps_log(self, ctx: Any, batch: Any) -> dict[str, float]:
        return {"noted": 2.0}

    def shutdown(self, ctx: Any) -> None:
        ctx.log({"noted": 5.0})


def test_the_last_row_of_training_is_written_at_the_end() -> None:
    logger = Rows()
    with_returns(on_policy_trainer(logger=logger, max_epochs=3, hooks=(Notes(),))).run()
    (first, row), (step, rest), (last, closing) = logger.of("training")
    assert (first, step, last) == (10, 60, 60)
    assert row["noted"] == 1.5  # of the set-up and of the first training step
    assert (rest["noted"], rest["length"], rest["return"]) == (2.0, 5.0, 17.5)
    assert closing == {"noted": 5.0}  # of the shutdown


def test_a_run_of_epochs_by_hand_writes_its_last_row_too() -> None:
    logger = Rows()
    trainer = on_policy_trainer(logger=logger, max_epochs=2)
    for _ in range(2):
        trainer.execute_epoch()
    assert [step for step, _ in logger.of("training")] == [10, 40]


def rows_of(path: Path) -> list[tuple[str, int, float | None]]:
    """Return kind, step and what a hook counted of each row: what is learned depends on how long the run is."""
    rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [(row["kind"], row["step"], row.get(f"{row['kind']}/after")) for row in rows]


@pytest.mark.parametrize("name", ["ppo", pytest.param("dqn", marks=pytest.mark.full), "offline_bc"])
def test_a_run_that_is_extended_logs_as_one_that_was_longer_from_its_beginning(name: str, tmp_path: Path) -> None:
    def run(folder: str, max_epochs: int) -> list[tuple[str, int, float | None]]:
        logger = rl.JSONLinesLogger(tmp_path / folder / "log.jsonl", training_interval=13, strict=True)
        checkpoint = rl.CheckpointParams(tmp_path / folder / "checkpoints", every=10**6)
        build(name, max_epochs=max_epochs, logger=logger, checkpoint=checkpoint, hooks=(Steps(),)).run()
        assert logger.path == tmp_path / folder / "log.jsonl"
        return rows_of(logger.path)

    short, whole = run("extended", 2), run("whole", 4)
    assert run("extended", 2) == short  # it was finished: what its last rows held is not lost
    assert run("extended", 4) == whole


def test_an_interval_of_the_users_counts_what_it_says() -> None:
    by_updates, by_default = Rows(update_interval=2), Rows()
    off_policy_trainer(logger=rl.MultiLogger(by_updates, by_default)).run()
    # Ten update steps of 30 gradient steps.
    assert [step for step, _ in by_updates.of("update")] == [30, 60, 120, 180, 240, 300]
    assert [step for step, _ in by_default.of("update")] == [30, 300]  # every 1,000 gradient steps, and the rest
    # 31 to 60, and 31 to 300.
    assert [logger.of("update")[1][1]["loss"] for logger in (by_updates, by_default)] == [45.5, 165.5]


class Steps(rl.TrainerHook):
    """Logs the number of the training step at each point."""

    def pre_steps_log(self, ctx: Any, batch: Any) -> dict[str, float]:
        return {"before": float(ctx.training_step)}

    def post_optim_log(self, ctx: Any, minibatch: Any) -> dict[str, float]:
        return {"within": float(ctx.training_step)}

    def post_steps_log(self, ctx: Any, batch: Any) -> dict[str, float]:
        return {"after": float(ctx.training_step)}


@pytest.mark.parametrize(("interval", "at"), [(10, [1, 2, 3, 4, 5, 6]), (20, [1, 2, 4, 6]), (30, [1, 3, 6])])
def test_a_row_holds_the_means_of_all_that_hooks_log_up_to_its_step(interval: int, at: list[int]) -> None:
    """Training steps of 10 env steps, a row of the first and of those that cross the interval; none lags behind."""
    logger = Rows(training_interval=interval, update_interval=interval // 10)
    build("ppo", logger=logger, hooks=(Steps(),)).run()
    means = [(10 * b, (a + 1 + b) / 2) for a, b in zip([0, *at], at, strict=False)]
    for kind, name in (("training", "before"), ("training", "after"), ("update", "within")):
        assert [(step, row[name]) for step, row in logger.of(kind)] == means


def test_offline_hooks_log_into_the_rows_of_updates() -> None:
    logger = Rows(update_interval=4)
    build("offline_bc", logger=logger, hooks=(Steps(),)).run()
    for name in ("before", "within", "after"):
        assert [(step, row[name]) for step, row in logger.of("update")] == [(1, 1.0), (4, 3.0), (8, 6.5), (12, 10.5)]


def test_a_step_that_failed_is_in_no_row_of_the_next_run() -> None:
    logger, calls = Rows(training_interval=1), iter([False, True] + [False] * 20)

    class Fails(rl.TrainerHook):
        def post_steps(self, ctx: Any) -> None:
            if next(calls):
                raise KeyError("from a hook")

    trainer = build("ppo", logger=logger, hooks=(Fails(),))
    for collector in trainer.params.collectors().values():
        collector.close = lambda: None  # the envs are used again
    with pytest.raises(KeyError, match="from a hook"):
        trainer.run()
    assert [step for step, _ in logger.of("training")] == [10]
    trainer.run()
    assert [step for step, _ in logger.of("training")] == [10, 10, 20, 30, 40, 50, 60]


def test_returns_are_means_over_the_last_hundred_episodes() -> None:
    logger = Rows(training_interval=1)
    trainer = off_policy_trainer(
        logger=logger, epoch_num_steps=600, collection_step_num_env_steps=1,
        update_step_num_gradient_steps_per_sample=0.01,
    )  # fmt: skip
    with_returns(trainer).run()
    rows = logger.of("training")
    # Episodes of 5 steps: a row at every env step, new episode or not; no return before the first has ended.
    assert [step for step, _ in rows] == list(range(1, 601))
    assert not any({"return", "length"} & values.keys() for _, values in rows[:4])
    for step, values in rows[4:]:
        returns = [5.0 * k for k in range(1, step // 5 + 1)][-100:]
        assert values["return"] == pytest.approx(sum(returns) / len(returns), rel=1e-12)
        assert values["length"] == 5.0


def test_envs_whose_episodes_never_end_have_rows_too() -> None:
    logger = Rows(training_interval=20)
    trainer = build("ppo", logger=logger, hooks=(Steps(),))
    for env in trainer.params.training_collector.envs.envs:
        env.unwrapped.length = 10**9
    trainer.run()
    assert [(step, row["after"]) for step, row in logger.of("training")] == [(10, 1), (20, 2), (40, 3.5), (60, 5.5)]
    assert all(row.keys() == {"env_steps_per_second", "before", "after"} for _, row in logger.of("training"))


def test_a_new_run_forgets_the_episodes_of_the_last() -> None:
    logger = Rows(training_interval=1)
    trainer = with_returns(on_policy_trainer(logger=logger, max_epochs=1))
    trainer.run()
    trainer.run()
    # Two envs, each with episodes 1 to 4 in the first run (and a reset more), in the second other ones.
    assert [values["return"] for _, values in logger.of("training")][:2] == [5.0, 7.5]
    first = logger.of("training")[2][1]["return"]
    assert first > 10.0


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("ppo", {"lr"}), ("dqn", {"lr"}), ("sac", {"actor_lr", "critic_lr", "temperature_lr", "temperature"}),
        ("td3", {"actor_lr", "critic_lr"}), ("offline_iql", {"actor_lr", "critic_lr", "value_lr"}),
    ],
)  # fmt: skip
def test_learning_rates_and_temperature_are_logged(name: str, names: set[str]) -> None:
    logger = Rows(update_interval=1)
    trainer = build(name, logger=logger)
    trainer.run()
    rows = logger.of("update")
    assert all(names <= set(values) for _, values in rows)
    optimizer = next(value for key, value in vars(trainer.algorithm).items() if key.endswith("optimizer"))
    found = [values[sorted(names & {"lr", "actor_lr"})[0]] for _, values in rows]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] == optimizer.method.lr


def test_an_optimizer_of_any_name_and_kind_has_its_rate() -> None:
    trainer = build("ppo")
    params = dataclasses.replace(trainer.algorithm.params, lr=0.25, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    algorithm = rl.PPO(trainer.algorithm.policy, params)
    assert algorithm.logged_values() == {"lr": 0.25}
    algorithm.second = algorithm.make_optimizer(params, lr=0.5, policy=algorithm.policy)
    assert algorithm.logged_values() == {"lr": 0.25, "second_lr": 0.5}


def test_exploration_is_logged() -> None:
    """A collector's own is, instead of the policy's; a function has nothing to log."""
    own = rl.EpsilonGreedy(0.25), lambda action, space, progress, generator: action
    for name, exploration, key, values in (
        ("dqn", None, "epsilon", [1.0, 0.05]), ("td3", None, "exploration_noise", [0.1, 0.1]),
        ("dqn", own[0], "epsilon", [0.25, 0.25]), ("dqn", own[1], "epsilon", [None, None]),
    ):  # fmt: skip
        logger = Rows(training_interval=1)
        trainer = build(name, logger=logger)
        trainer.params.training_collector.exploration = exploration
        trainer.run()
        found = [row.get(key) for _, row in logger.of("training")]
        assert [found[0], found[-1]] == (values if values[0] is None else pytest.approx(values)), name


def test_the_actor_is_in_the_rows_of_its_turns_only() -> None:
    logger = Rows(update_interval=1)
    build("td3", logger=logger, update_step_num_gradient_steps_per_sample=0.1).run()
    # One gradient step in each update step; the actor's turn is every second.
    assert ["actor_loss" in values for _, values in logger.of("update")] == [False, True, False, True, False]


def test_params_are_handed_over_once_a_run(tmp_path: Path) -> None:
    logger, resumed, added = Rows(), Rows(), Rows()
    trainer = build("ppo", logger=logger)
    trainer.run()
    [(_, params)] = logger.of("params")
    assert list(params) == ["trainer", "algorithm", "runtime", "algorithm_class", "versions", "command", "devices"]
    assert params["devices"] == {"networks": "cpu"}
    assert params["trainer"] == json.loads(trainer.params.to_json())
    assert params["algorithm"] == json.loads(trainer.algorithm.params.to_json())
    assert params["versions"] == {
        "python": platform.python_version(), "rltrainer": rl.__version__, "torch": torch.__version__,
        "gymnasium": gym.__version__, "numpy": np.__version__,
    }  # fmt: skip
    assert (params["algorithm_class"], params["command"]) == ("PPO", shlex.join(sys.orig_argv))
    trainer.save(tmp_path / "checkpoint")
    trainer.run()
    assert len(logger.of("params")) == 2
    plain = build("ppo", max_epochs=2)
    plain.run()
    plain.save(tmp_path / "without")
    for rows, folder, num_params in ((resumed, "checkpoint", 0), (added, "without", 1)):
        again = build("ppo", logger=rows, max_epochs=4)
        again.restore(tmp_path / folder)
        again.run()
        assert len(rows.of("params")) == num_params


@pytest.mark.parametrize("names", [("jsonl",), ("csv",), ("tensorboard",), ("csv", "console", "tensorboard", "jsonl")])
def test_resume_from_the_log_of_a_killed_run_doubles_no_row(names: tuple[Any, ...], tmp_path: Path) -> None:
    def made(**fields: Any) -> Any:
        loggers = rl.MultiLogger(*(rl.get_logger(name, tmp_path, training_interval=1) for name in names))
        return build("ppo", logger=loggers, **fields)

    with pytest.raises(KeyboardInterrupt):
        made(save_checkpoint_fn=kill_at_30).run()
    resumed = made(resume_from_log=True)
    assert (resumed.epoch, resumed.env_step, resumed.state.best.score) == (1, 20, 5.0)
    resumed.run()
    every = [10, 20, 30, 40, 50, 60]
    steps = {"training/return": every, "update/loss": every, "epoch/epoch": [20, 40, 60]}
    for logger in resumed.params.logger.loggers:
        if not isinstance(logger, rl.ConsoleLogger):
            assert {tag: [step for step, _ in logged_values(logger, tag)] for tag in steps} == steps, logger


def kill_at_30(epoch: int, env_step: int, gradient_step: int) -> str:
    if env_step == 30:
        raise KeyboardInterrupt
    return ""


def test_resume_from_a_log_that_holds_no_epoch_begins_another(tmp_path: Path) -> None:
    """A run was killed in its first epoch, twice; the third goes on with what the second had reached."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"kind": "test", "step": 0, "test/score": 1.0}\n')
    for epoch in (1, 2):
        assert build("ppo", epoch, rl.JSONLinesLogger(path), resume_from_log=True).run().epoch == epoch
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log-2.jsonl", "log.jsonl"]


def test_rows_are_written_whatever_the_returns() -> None:
    """Sums of infinite returns are NaN, which is no reason to stop."""
    logger = Rows(training_interval=1)
    trainer = on_policy_trainer(logger=logger)
    stats = rl.CollectStats(2, 2, np.array([np.inf, -np.inf]), np.array([1, 1]), 0.0)
    trainer.state.counters.env_step = 1
    trainer._log.collected(trainer.state, stats)
    trainer._log.end_training_step(trainer.state)
    assert repr(logger.of("training")) == "[(1, {'return': nan, 'length': 1.0})]"


def test_the_bar_is_drawn_to_its_end(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")  # tqdm cuts its line at the width of a terminal
    on_policy_trainer(show_progress=True).run()
    last = capfd.readouterr().err.split("\r")[-1]
    assert "40.0/40.0" in last
    assert "score=5, best=5, return=5, length=5, loss=3.5]" in last


def test_the_bar_of_a_resumed_run_begins_where_it_was_saved(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = on_policy_trainer()
    trainer.execute_epoch()
    trainer.save(tmp_path / "saved")
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    resumed = on_policy_trainer(show_progress=True)
    resumed.restore(tmp_path / "saved")
    resumed.run()
    first = capfd.readouterr().err.strip("\r").split("\r")[0]
    assert "20.0/40.0 [00:00<?, ? env steps/s]" in first  # a rate counts the steps of this program


def test_epochs_by_hand_print_their_lines(capfd: pytest.CaptureFixture[str]) -> None:
    trainer = on_policy_trainer(verbose=True, show_progress=True)
    trainer.execute_epoch()
    line = capfd.readouterr().out
    assert line.startswith("epoch 1, score 5, best 5 (epoch 0), 20 env steps, 2 gradient steps in ")
    assert line.endswith(" s, 20 env steps so far, return 5\n")
    trainer.run()
    capfd.readouterr()
    trainer.execute_epoch()  # after the bar was closed
    out, err = capfd.readouterr()
    assert out.startswith("epoch 3, ")
    assert out.endswith("return 5\n")
    assert err == ""


def test_nothing_grows_with_the_run() -> None:
    trainer = off_policy_trainer(
        num_envs=2, logger=Rows(training_interval=10**9, update_interval=10**9), epoch_num_steps=2000,
        collection_step_num_env_steps=2, update_step_num_gradient_steps_per_sample=0.5,
    )  # fmt: skip
    trainer.run()
    state = trainer.params.logger.state_dict()
    assert all(len(parts) < 256 for parts in state["gathered"].values())
    assert [len(trainer.state.log.returns), len(trainer.state.log.lengths)] == [100, 100]
