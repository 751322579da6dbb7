"""Lines in the terminal."""

import io

import pytest

from rltrainer.loggers import ConsoleLogger


def test_a_line_per_row() -> None:
    stream = io.StringIO()
    logger = ConsoleLogger(stream)
    logger.log("training", {"return": 23.456789, "length": 7}, 2048)
    logger.log("test", {"score": float("nan")}, 2048)
    logger.log("update", {"loss": 1.5e-7}, 2048, 1)
    assert stream.getvalue() == (
        "training  step 2048: return 23.46, length 7\n"
        "test      step 2048: score nan\n"
        "update    step 2048: loss 1.5e-07\n"
    )


def test_prints_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleLogger().log("test", {"score": 1.0}, 0)
    assert capsys.readouterr() == ("test      step 0: score 1\n", "")


def test_a_progress_without_a_best_yet() -> None:
    stream = io.StringIO()
    logger = ConsoleLogger(stream)
    counts = {"epoch": 1, "env_step": 8, "update_step": 1, "gradient_step": 4}
    best = {"best_score": None, "best_return": None, "best_return_std": None, "best_epoch": None}
    logger.log_epoch({**counts, **best, "is_stopped": 0})
    assert stream.getvalue().startswith("epoch     step 8: epoch 1, env_step 8, ")
    assert stream.getvalue().endswith("best_epoch None, is_stopped 0\n")
    assert logger.read_progress() is None


def test_a_closed_terminal_does_not_end_training() -> None:
    stream = io.StringIO()
    stream.close()
    logger = ConsoleLogger(stream)
    with pytest.warns(RuntimeWarning, match=r"^ConsoleLogger\(\) could not write the test row of step 0"):
        logger.log("test", {"score": 1.0}, 0)
    assert logger.num_dropped == 1
