"""Lines in the terminal; bars in terminals and out of them."""

import io
import re
import sys
import time

import pytest
import torch
import tqdm.std

from rltrainer.loggers import ConsoleLogger
from rltrainer.loggers import terminal as progress
from rltrainer.tools.runs.processes import Bar
from rltrainer.trainers.run_log import ProgressBar
from tests.unit.loggers.rows import PARAMS, PROGRESS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time as a list of one number, which a test moves."""
    now = [1000.0]
    for module in (tqdm.std, time):
        monkeypatch.setattr(module, "time", lambda: now[0])
    return now


def test_a_file_gets_a_line_a_minute(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    bar = ProgressBar(10_000, "env_step", verbose=True)
    for second in range(150):
        clock[0] += 1
        assert bar.wants_values() == (second % 60 == 59)
        bar.show({"loss": second / 7})
        bar.advance_to(10 * second)
        if second == 70:
            bar.say("epoch 1")
    bar.close()
    lines = [re.sub(r"<[\d:]+, [\d.]+ env steps/s", "", line) for line in file.getvalue().splitlines()]
    assert lines == [
        "6%| 590/10.0k [01:00, loss=8.429]",
        "12%| 1.19k/10.0k [02:00, loss=17]",
        "15%| 1.49k/10.0k [02:30, loss=21.29]",
    ]
    assert capsys.readouterr().out == "epoch 1\n"


def test_a_short_run_has_no_line(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    bar = ProgressBar(100, "env_step", verbose=False)
    for second in range(50):
        clock[0] += 1
        bar.advance_to(second)
    bar.close()
    assert file.getvalue() == ""


def test_jobs_get_lines_too(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with Bar("seeds", 4, is_shown=True) as bar:
        clock[0] += 61
        bar.move(0, 0.5, best_score="3")
        clock[0] += 1
        bar.move(1, 0.5)
    assert file.getvalue().splitlines() == [
        "seeds:  12%| 0.50/4 [01:01<07:07, best score=3]",
        "seeds:  25%| 1.00/4 [01:02<03:06, best score=3]",
    ]


@pytest.mark.parametrize("module", [None, "ipykernel"])
def test_a_terminal_and_a_notebook_get_a_bar(module: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Terminal() if module is None else io.StringIO()
    if module is not None:
        monkeypatch.setitem(sys.modules, module, sys)
    # A notebook would break the bar if the lines above it came by another stream.
    monkeypatch.setattr(sys, "stderr" if module is None else "stdout", file)
    bar = ProgressBar(100, "env_step", verbose=False)
    bar.advance_to(100)
    bar.close()
    assert "| 100/100" in file.getvalue()


def test_a_bar_says_that_a_step_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := Terminal())
    bar = ProgressBar(100, "env_step", verbose=False)
    bar.watch_compiler()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    bar.advance_to(100)
    bar.close()
    torch.compile(lambda x: x + 2, backend="eager")(torch.ones(2))
    before, said, after = file.getvalue().partition("compiling, about a minute:   0%|")
    assert said
    assert "compiling" not in before + after
    assert "100/100" in after


def test_without_a_standard_error_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert not progress.is_watched()


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


def test_a_progress_without_a_best_yet() -> None:
    stream = io.StringIO()
    logger = ConsoleLogger(stream)
    logger.log_epoch(PROGRESS | {"best_epoch": None})
    assert stream.getvalue().startswith("epoch     step 20000001: epoch 1, env_step 20000001, ")
    assert stream.getvalue().endswith("best_epoch None, is_stopped 0\n")
    assert logger.read_progress() is None


def test_a_closed_terminal_does_not_end_training() -> None:
    stream = io.StringIO()
    stream.close()
    logger = ConsoleLogger(stream)
    with pytest.warns(RuntimeWarning, match=r"^ConsoleLogger\(\) could not write the test row of step 0"):
        logger.log("test", {"score": 1.0}, 0)
    assert logger.num_dropped == 1


def test_params_are_lines_on_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleLogger().log_params(PARAMS)
    assert capsys.readouterr().out.splitlines()[1] == 'params    algorithm: {"params": "PPOParams"}'
