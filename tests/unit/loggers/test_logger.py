"""The parent of all loggers: intervals, names, failures, state."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltrainer.errors import ParamsError
from rltrainer.interval import Every
from rltrainer.loggers import ConsoleLogger, CSVLogger, JSONLinesLogger, MultiLogger
from tests.unit.loggers.rows import PROGRESS, ListLogger


def test_training_rows_are_due_when_their_interval_was_crossed() -> None:
    logger = ListLogger(training_interval=np.int64(1000))
    for step in range(0, 3001, 300):
        logger.log("training", {"return": 0.0}, step)
    # The first, then the first behind 1000, 2000 and 3000.
    assert [step for _, step, _ in logger.rows] == [0, 1200, 2100, 3000]
    assert logger.is_due("training", 8)  # of a second run with the same logger


def test_update_rows_are_due_by_update_steps_and_written_at_the_step() -> None:
    logger = ListLogger(update_interval=10)
    for update_step in range(1, 31):
        logger.log("update", {"loss": 0.0}, 2048 * update_step, update_step)
    assert [step for _, step, _ in logger.rows] == [2048, 20480, 40960, 61440]


def test_a_row_of_a_kind_of_ones_own_is_always_written() -> None:
    logger = ListLogger(training_interval=1000)
    for step in (1, 2, 2):
        assert logger.is_due("system", step)
        logger.gather("system", {"memory": float(step)})
        logger.log("system", {"cpu": 0.5}, step)
    assert logger.rows == [
        ("system", step, {"system/cpu": 0.5, "system/memory": float(step)}) for step in (1, 2, 2)
    ]  # fmt: skip
    assert logger.is_due("training", 2)


@pytest.mark.parametrize("kind", ["", "my kind", "a/b", "1st", "params", -1, True, None, ["system"], float("nan")])
def test_a_kind_is_a_name(kind: Any) -> None:
    logger = ListLogger()
    with pytest.raises(ParamsError) as caught:
        logger.log(kind, {"a": 1.0}, 0)
    rule = "must be a name of letters, digits and _ other than 'params'"
    assert str(caught.value) == f"ListLogger.log.kind: {rule}; got {kind!r} ({type(kind).__name__})"
    assert logger.rows == []


def test_due_asks_without_changing_anything() -> None:
    logger = ListLogger(training_interval=100, update_interval=2)
    assert logger.is_due("training", 0)
    assert logger.is_due("training", 0)
    logger.log("training", {}, 0)
    assert [logger.is_due("training", step) for step in (0, 99, 100, 150)] == [False, False, True, True]
    assert logger.is_due("update", 0, 1)
    logger.log("update", {}, 0, 1)
    assert [logger.is_due("update", 0, update_step) for update_step in (1, 2, 3)] == [False, True, True]


def test_numbers_of_any_kind_become_plain_ones() -> None:
    logger = ListLogger()
    logger.log("test", {"a": np.float32(1.5), "b": np.int64(3), "c": float("nan"), "d": 2}, 0)
    values = logger.rows[0][2]
    assert repr(values) == "{'test/a': 1.5, 'test/b': 3, 'test/c': nan, 'test/d': 2}"


@pytest.mark.parametrize("value", [None, "1", True, [1.0], torch.tensor(1.0), np.zeros(1), np.bool_(True)])
def test_what_is_no_number_is_named_and_not_caught(value: Any) -> None:
    logger = ListLogger()
    with pytest.raises(TypeError, match=r"^ListLogger.log\('update'\)\['loss'\]: must be a number; got ") as caught:
        logger.log("update", {"fine": 1.0, "loss": value}, 0, 0)
    assert str(caught.value).endswith(f"({type(value).__name__})")
    assert logger.rows == []
    assert logger.num_dropped == 0


def test_log_epoch_is_always_written_flushes_and_allows_none() -> None:
    logger = ListLogger()
    for epoch, counts in ((1, {}), (2, {}), (3, {"env_step": 0, "gradient_step": 64})):  # the third is an offline one
        logger.log_epoch({**PROGRESS, "epoch": epoch, "best_score": None, **counts})
    assert [row[:2] for row in logger.rows] == [("epoch", step) for step in (PROGRESS["env_step"],) * 2 + (64,)]
    assert logger.rows[1][2]["epoch/epoch"] == 2
    assert logger.rows[1][2]["epoch/best_score"] is None
    assert logger.num_flushes == 3


def test_log_epoch_wants_all_names() -> None:
    with pytest.raises(ValueError, match=r"^ListLogger.log_epoch: progress lacks gradient_step, best_score, "):
        ListLogger().log_epoch({"epoch": 1, "env_step": 1, "update_step": 1})


def test_a_failing_logger_warns_once_counts_and_goes_on() -> None:
    logger = ListLogger()
    logger.failure = OSError(28, "No space left on device")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            logger.log("test", {"score": 1.0}, step)
        logger.log_epoch(PROGRESS)
        logger.log_params({})
        logger.flush()
        logger.close()
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "ListLogger" in text
    assert "could not write the test row of step 0 (OSError: [Errno 28] No space left on device)" in text
    assert logger.num_dropped == 5
    logger.failure = None
    logger.log("test", {"score": 1.0}, 7)
    assert [row[1] for row in logger.rows] == [7]


def test_a_strict_logger_raises_and_interrupts_are_not_swallowed() -> None:
    logger = ListLogger(strict=True)
    logger.failure = OSError("disk full")
    for fails in (lambda: logger.log("test", {}, 0), lambda: logger.log_params({}), logger.flush):
        with pytest.raises(OSError, match="disk full"):
            fails()
    lenient = ListLogger()
    lenient.failure = KeyboardInterrupt()  # type: ignore[assignment]  # no Exception, as is the point
    with pytest.raises(KeyboardInterrupt):
        lenient.log("test", {}, 0)


def test_state_continues_the_intervals_and_what_is_gathered() -> None:
    logger, again = (ListLogger(training_interval=100, update_interval=10) for _ in range(2))
    logger.log("training", {}, 150)
    logger.log("update", {}, 150, 15)
    logger.gather("update", {"loss": 1.0})
    state = logger.state_dict()
    logger.log("training", {}, 5000)  # a state is a copy
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert [again.is_due("training", step) for step in (199, 200)] == [False, True]
    again.gather("update", {"loss": 4.0})
    for update_step in (19, 20):
        again.log("update", {}, update_step, update_step)
    assert again.rows == [("update", 20, {"update/loss": 2.5})]


def test_another_class_of_logger_continues_only_the_intervals(tmp_path: Any) -> None:
    before = CSVLogger(tmp_path / "log.csv", training_interval=100)
    before.log("training", {"return": 1.0}, 150)
    after = JSONLinesLogger(tmp_path / "log.jsonl", training_interval=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        after.load_state_dict(before.state_dict())
        after.load_state_dict(MultiLogger(before).state_dict())
    assert not after.is_due("training", 199)
    assert after.is_due("training", 200)


def test_a_row_holds_the_means_of_all_since_the_last() -> None:
    logger = ListLogger()
    logger.begin_run(Every(4, "gradient_step"))
    for step in range(1, 10):
        logger.gather("update", {"loss": torch.tensor(float(step)), "actor": 10.0 * step}, 1)
        logger.log("update", {"lr": 0.5}, 100 + step, step, step)
    # The first; then 2 to 4 and 5 to 8.
    assert logger.rows == [
        ("update", 101, {"update/lr": 0.5, "update/loss": 1.0, "update/actor": 10.0}),
        ("update", 104, {"update/lr": 0.5, "update/loss": 3.0, "update/actor": 30.0}),
        ("update", 108, {"update/lr": 0.5, "update/loss": 6.5, "update/actor": 65.0}),
    ]


def test_each_kind_gathers_for_itself() -> None:
    logger = ListLogger(training_interval=10)
    logger.gather("training", {"speed": 4.0}, 3)
    logger.gather("update", {"loss": 1.0})
    logger.log("test", {"score": 1.0}, 1)
    logger.gather("training", {"speed": 8.0}, 1)
    logger.log("training", {"return": 2.0}, 1)
    assert [row[2] for row in logger.rows] == [{"test/score": 1.0}, {"training/return": 2.0, "training/speed": 5.0}]


def test_without_an_interval_of_the_users_the_trainers_holds() -> None:
    default, own = ListLogger(), ListLogger(update_interval=3)
    both = MultiLogger(default, own)
    assert [both.is_due("update", 0, 1), both.is_due("update", 0, 2)] == [True, True]
    for interval in (Every(1, "update_step"), Every(1000, "gradient_step")):
        both.begin_run(interval)
        for update_step in range(1, 8):
            both.log("update", {}, update_step, update_step, 500 * update_step)
    assert [row[1] for row in default.rows] == [1, 2, 3, 4, 5, 6, 7, 1, 2, 4, 6]
    assert [row[1] for row in own.rows] == [1, 3, 6, 1, 3, 6]


def test_what_is_left_at_the_end_of_a_run_is_a_row_whatever_the_interval() -> None:
    default, own = ListLogger(), ListLogger(update_interval=1000)
    both = MultiLogger(default, own)
    both.begin_run(Every(1000, "gradient_step"))
    for step in (1, 2, 3):
        both.gather("update", {"loss": float(step)})
        both.log("update", {}, step, step, step)
    for _ in range(2):
        both.log_rest("update", {"lr": 0.1}, 3, 3, 3)
    rows = [("update", 1, {"update/loss": 1.0}), ("update", 3, {"update/lr": 0.1, "update/loss": 2.5})]
    assert (default.rows, own.rows) == (rows, rows)


def test_what_is_left_after_the_last_row_does_not_repeat_it() -> None:
    logger = ListLogger()
    logger.log_rest("training", {"return": 1.0}, 3, 1, 1)  # no row yet: of a finished run that was resumed from a log
    logger.log("training", {"return": 1.0}, 3)
    logger.log_rest("training", {"return": 1.0}, 3, 1, 1)
    logger.gather("training", {"mine": 7.0})
    logger.log_rest("training", {"return": 1.0}, 3, 1, 1)
    logger.log_rest("training", {"return": 2.0}, 5, 1, 1)  # nothing was gathered, but steps were made
    rows = [(3, {"training/return": 1.0}), (3, {"training/mine": 7.0}), (5, {"training/return": 2.0})]
    assert [row[1:] for row in logger.rows] == rows


def test_a_new_run_forgets_what_was_gathered_and_where_rows_were() -> None:
    logger = ListLogger(update_interval=1000, training_interval=1000)
    logger.log("training", {}, 10)
    logger.gather("update", {"old": 1.0})
    logger.gather("training", {"old": 1.0})
    logger.begin_run(Every(1, "update_step"))
    logger.log("training", {}, 20)
    logger.log("update", {}, 20, 1, 1)
    assert logger.rows[1:] == [("training", 20, {}), ("update", 20, {})]


def test_progress_is_read_from_the_first_that_has_one(tmp_path: Path) -> None:
    CSVLogger(tmp_path / "b").log_epoch(PROGRESS)
    logger = MultiLogger(ConsoleLogger(), CSVLogger(tmp_path / "a"), CSVLogger(tmp_path / "b"))
    assert logger.read_progress() == PROGRESS
    assert MultiLogger(ConsoleLogger()).read_progress() is None


def test_one_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken, fine = CSVLogger(tmp_path / "file" / "a"), CSVLogger(tmp_path / "b")
    logger = MultiLogger(broken, fine)
    with pytest.warns(RuntimeWarning, match="could not write"):
        logger.log("test", {"score": 1.0}, 0)
    logger.log("test", {"score": 2.0}, 1)
    assert logger.num_dropped == broken.num_dropped == 2
    assert fine.num_dropped == 0
    assert (tmp_path / "b").read_text().count("test/score") == 2


def test_state_goes_to_the_same_place_and_class(tmp_path: Path) -> None:
    def make() -> MultiLogger:
        return MultiLogger(CSVLogger(tmp_path / "a"), JSONLinesLogger(tmp_path / "b"))

    logger = make()
    logger.log("test", {"score": 1.0}, 0)
    before = [(tmp_path / name).read_bytes() for name in "ab"]
    state = json.loads(json.dumps(logger.state_dict()))
    logger.log("test", {"score": 2.0}, 1)
    again = make()
    again.load_state_dict(state)
    assert [(tmp_path / name).read_bytes() for name in "ab"] == before
    assert again.state_dict() == state


def test_other_loggers_than_before_start_anew(tmp_path: Path) -> None:
    logger = MultiLogger(CSVLogger(tmp_path / "a"), ConsoleLogger())
    logger.log("test", {"score": 1.0}, 0)
    other = MultiLogger(JSONLinesLogger(tmp_path / "b"))
    fresh = other.state_dict()
    other.load_state_dict(logger.state_dict())
    other.load_state_dict(CSVLogger(tmp_path / "a").state_dict())
    assert other.state_dict() == fresh
