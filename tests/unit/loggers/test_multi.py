"""Several loggers at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from rltrainer.errors import ParamsError
from rltrainer.loggers import ConsoleLogger, CSVLogger, JSONLinesLogger, MultiLogger
from tests.unit.loggers.rows import PROGRESS


def test_each_logger_keeps_its_own_interval(tmp_path: Path) -> None:
    often, seldom = CSVLogger(tmp_path / "a", training_interval=10), CSVLogger(tmp_path / "b", training_interval=1000)
    logger = MultiLogger(often, seldom)
    for step in (0, 10, 20):
        assert logger.is_due("training", step)
        logger.log("training", {"return": 1.0}, step)
    assert not logger.is_due("training", 29)
    assert (tmp_path / "a").read_text().count("training/return") == 3
    assert (tmp_path / "b").read_text().count("training/return") == 1


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


@pytest.mark.parametrize("loggers", [(), (None,), ("runs",), (ConsoleLogger(), 3)])
def test_what_is_no_logger(loggers: Any) -> None:
    with pytest.raises(ParamsError, match=r"^MultiLogger.loggers: must be one Logger or more; got \("):
        MultiLogger(*loggers)
