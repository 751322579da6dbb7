"""CSV and JSON lines logs: contents, continuing after a kill, damage, reading progress."""

import csv
import json
import math
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.interval import Every
from rltrainer.loggers import CSVLogger, JSONLinesLogger
from tests.unit.loggers.rows import PROGRESS

FileLogger = CSVLogger | JSONLinesLogger
both = pytest.mark.parametrize("make", [CSVLogger, JSONLinesLogger])


def run(logger: FileLogger, *epochs: int) -> None:
    """Log what one epoch of 100 steps logs, for each epoch."""
    for epoch in epochs:
        logger.log("training", {"return": 10.0 * epoch}, 100 * epoch - 50)
        logger.log("update", {"loss": 0.5 / epoch}, 100 * epoch - 50, epoch)
        logger.log("test", {"score": float(epoch)}, 100 * epoch)
        logger.log_epoch({**PROGRESS, "epoch": epoch, "env_step": 100 * epoch})


def test_csv_has_one_line_per_number(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.csv"
    logger = CSVLogger(path)
    logger.log("training", {"return": 23.5, "length": 7}, 2048)
    logger.log("test", {"score": float("nan")}, 2048)
    logger.log("update", {"later": 1e-300}, 2048, 1)
    assert path.read_text() == (
        "step,name,value\n"
        "2048,training/return,23.5\n"
        "2048,training/length,7\n"
        "2048,test/score,nan\n"
        "2048,update/later,1e-300\n"
    )


def test_csv_names_with_commas_quotes_and_line_breaks_stay_one_field(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    CSVLogger(path).log("test", {'a,b "c"\nd': 1.0}, 0)
    with open(path, newline="") as file:
        assert list(csv.reader(file))[1:] == [["0", 'test/a,b "c" d', "1.0"]]


def test_json_lines_has_one_object_per_row(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.jsonl"
    logger = JSONLinesLogger(path)
    logger.log("training", {"return": 23.5, "length": 7}, 2048)
    logger.log("test", {"score": float("nan")}, 2048)
    assert path.read_text() == (
        '{"kind": "training", "step": 2048, "training/return": 23.5, "training/length": 7}\n'
        '{"kind": "test", "step": 2048, "test/score": NaN}\n'
    )


@both
def test_rows_are_on_disk_without_closing(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    logger = make(tmp_path / "log")
    run(logger, 1)
    assert "training/return" in (tmp_path / "log").read_text()
    assert make(tmp_path / "log").read_progress() is not None


@both
def test_progress_comes_back_exactly(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    logger = make(tmp_path / "log")
    assert logger.read_progress() is None
    logger.log("test", {"score": 1.0}, 0)
    assert logger.read_progress() is None
    run(logger, 1)
    last = {**PROGRESS, "epoch": 2}
    logger.log_epoch(last)
    found = make(tmp_path / "log").read_progress()
    assert found == last
    assert [type(value) for value in found.values()] == [type(value) for value in last.values()]


@both
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"best_score": math.nan}, "best_score: expected a finite number, found nan (float)"),
        ({"best_return": math.inf}, "best_return: expected a finite number, found inf (float)"),
        ({"best_return_std": -1.0}, "best_return_std: expected a non-negative finite number, found -1.0 (float)"),
        ({"best_epoch": 1.5}, "best_epoch: expected an integer, found 1.5 (float)"),
        ({"best_epoch": 7}, "best_epoch: expected one up to 1, found 7"),
        ({"is_stopped": 2}, "is_stopped: expected 0 or 1, found 2 (int)"),
        ({"update_step": -1}, "update_step: expected a count, found -1 (int)"),
        ({"gradient_step": 2**53}, f"gradient_step: expected a count, found {2**53} (int)"),
        ({"epoch": 3.0}, "epoch: expected an integer, found 3.0 (float)"),
        ({"env_step": None, "gradient_step": 1}, "env_step: expected an integer, found None (NoneType)"),
    ],
)
def test_what_no_run_goes_on_from_is_an_error(
    make: Callable[..., FileLogger], change: dict[str, Any], text: str, tmp_path: Path
) -> None:
    logger = make(tmp_path / "log")
    run(logger, 1)
    logger.log_epoch({**PROGRESS, **change})
    with pytest.raises(CheckpointError) as error:
        make(tmp_path / "log").read_progress()
    where, hint = re.split(rf"[.:] ?{re.escape(text)}\. ", str(error.value))
    assert where in (f"{tmp_path}/log.progress.json.progress", f"{tmp_path}/log, line 5: epoch")
    assert hint == "Remove it, or log the run elsewhere."


@both
def test_an_existing_log_is_continued(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    run(make(tmp_path / "twice"), 1)
    run(make(tmp_path / "twice"), 2)
    logger = make(tmp_path / "once", training_interval=1, update_interval=1)
    run(logger, 1, 2)
    assert (tmp_path / "twice").read_text() == (tmp_path / "once").read_text()


@both
def test_a_resumed_log_has_no_doubled_and_no_missing_rows(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    options = {"training_interval": 10, "update_interval": 1}
    run(make(tmp_path / "one run", **options), 1, 2, 3)

    killed = make(tmp_path / "log", **options)
    run(killed, 1)
    state = json.loads(json.dumps(killed.state_dict()))
    run(killed, 2)  # written after the checkpoint, then the kill
    resumed = make(tmp_path / "log", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.load_state_dict(state)
    run(resumed, 2, 3)
    assert (tmp_path / "log").read_bytes() == (tmp_path / "one run").read_bytes()


@both
def test_a_logger_in_use_is_cut_back_too(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    logger = make(tmp_path / "log")
    run(logger, 1)
    before, state = (tmp_path / "log").read_bytes(), logger.state_dict()
    run(logger, 2)
    logger.load_state_dict(state)
    assert (tmp_path / "log").read_bytes() == before
    run(logger, 2)
    assert logger.read_progress() == {**PROGRESS, "epoch": 2, "env_step": 200}


@both
def test_a_state_taken_before_the_first_row_empties_the_log(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    logger = make(tmp_path / "log")
    state = logger.state_dict()
    run(logger, 1)
    logger.load_state_dict(state)
    run(logger, 1)
    run(make(tmp_path / "other"), 1)
    assert (tmp_path / "log").read_bytes() == (tmp_path / "other").read_bytes()


@both
def test_a_missing_log_warns_and_goes_on(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    logger = make(tmp_path / "log")
    run(logger, 1)
    size = (tmp_path / "log").stat().st_size
    missing = make(tmp_path / "missing")
    with pytest.warns(RuntimeWarning, match=rf"missing: the log is missing, at the checkpoint it had {size} bytes\."):
        missing.load_state_dict(logger.state_dict())
    run(missing, 2)
    assert missing.read_progress() is not None
    assert missing.num_dropped == 0


def other_log(make: Callable[..., FileLogger], path: Path, kind: str) -> Callable[..., FileLogger]:
    """Write a log that is not the one of `run(logger, 1)`, and return what makes its logger."""
    other = make(path)
    if kind == "shorter":
        other.log("test", {"score": 1.0}, 0)
    elif kind == "longer":
        run(other, 5, 6, 7, 8)
    else:
        run(other, 1, 2)
        data = path.read_bytes()
        changed = b"10.0" if kind == "one digit" else b"0.5"  # at the beginning, and at the end of the first epoch
        path.write_bytes(data.replace(changed, b"10.1" if kind == "one digit" else b"0.6", 1))
    return make


@both
@pytest.mark.parametrize("kind", ["shorter", "longer", "one digit", "another digit"])
def test_another_log_is_left_alone_and_the_run_takes_a_new_number(
    kind: str, make: Callable[..., FileLogger], tmp_path: Path
) -> None:
    logger, path = make(tmp_path / "log.txt"), tmp_path / "other.txt"
    run(logger, 1)
    resumed = other_log(make, path, kind)(path)
    before = path.read_bytes()
    with pytest.warns(RuntimeWarning, match=r"other.txt: is not the log that the checkpoint knows, and is left as it"):
        resumed.load_state_dict(logger.state_dict())
    resumed.begin_run(Every(1, "update_step"), is_new=False)
    run(resumed, 2)
    assert path.read_bytes() == before
    assert resumed.path == tmp_path / "other-2.txt"
    assert "200" in resumed.path.read_text()


@both
def test_a_log_that_goes_on_in_a_copy_of_the_file(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    logger = make(tmp_path / "log")
    run(logger, 1)
    state, begin = logger.state_dict(), (tmp_path / "log").read_bytes()
    run(logger, 2)
    (tmp_path / "copy").write_bytes((tmp_path / "log").read_bytes())
    moved = make(tmp_path / "copy")
    moved.load_state_dict(state)
    assert (tmp_path / "copy").read_bytes() == begin


@both
def test_a_state_of_an_empty_log_empties_no_other(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    state = make(tmp_path / "log").state_dict()
    other = make(tmp_path / "other")
    run(other, 1)
    before = (tmp_path / "other").read_bytes()
    with pytest.warns(RuntimeWarning, match="other: is not the log that the checkpoint knows"):
        make(tmp_path / "other").load_state_dict(state)
    assert (tmp_path / "other").read_bytes() == before


@both
def test_a_long_log_is_compared_at_both_ends(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    path = tmp_path / "log"
    logger = make(path)
    for step in range(8000):
        logger.log("test", {"score": float(step)}, step)
    state, size = logger.state_dict(), path.stat().st_size
    assert size > 2 * (1 << 16)
    run(logger, 100)
    whole = path.read_bytes()
    for position in (30, size - 2):
        path.write_bytes(whole[:position] + b"#" + whole[position + 1 :])
        with pytest.warns(RuntimeWarning, match="is not the log that the checkpoint knows"):
            make(path).load_state_dict(state)
        assert path.stat().st_size == len(whole)
    path.write_bytes(whole)
    make(path).load_state_dict(state)
    assert path.read_bytes() == whole[:size]


@both
def test_a_line_cut_short_is_no_part_of_a_state(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    path = tmp_path / "log"
    run(make(path), 1)
    whole = path.read_bytes()
    path.write_bytes(whole + b"200,test/sco")
    logger = make(path)
    state = logger.state_dict()
    run(logger, 2)
    make(path).load_state_dict(state)
    assert path.read_bytes() == whole


@both
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"last_step": "3"}, "logger.last_step: expected an integer, found '3' (str)"),
        ({"num_dropped": -1}, "logger.num_dropped: expected a non-negative integer, found -1 (int)"),
        ({"last": [1]}, "logger.last: expected a mapping, found [1] (list)"),
        ({"files": {"log": "all"}}, "logger.files.log: expected a mapping, found 'all' (str)"),
        ({"gathered": {"update": [3]}}, "logger.gathered.update.0: expected a mapping, found 3 (int)"),
        ({"log": 3}, "logger.log: expected text, found 3 (int)"),
        ({"more": 3}, "logger.more: expected no field of LoggerState, found 3 (int)"),
    ],
)
def test_what_is_no_state_changes_nothing(
    make: Callable[..., FileLogger], change: dict[str, object], text: str, tmp_path: Path
) -> None:
    logger = make(tmp_path / "log")
    run(logger, 1)
    before = (logger.state_dict(), (tmp_path / "log").read_bytes())
    with pytest.raises(CheckpointError) as caught:
        logger.load_state_dict(logger.state_dict() | change)
    assert str(caught.value) == text
    assert (logger.state_dict(), (tmp_path / "log").read_bytes()) == before


def test_every_cut_in_the_last_row_is_skipped_in_reading(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logger = JSONLinesLogger(path)
    run(logger, 1)
    first = logger.read_progress()
    size = path.stat().st_size
    logger.log_epoch({**PROGRESS, "epoch": 2})
    data = path.read_bytes()
    for end in range(size + 1, len(data)):
        path.write_bytes(data[:end])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert JSONLinesLogger(path).read_progress() == first
        assert [str(each.message) for each in caught] == [f"{path}: the last line is truncated and was skipped"]


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_kill_before_the_counters_are_written_leaves_those_of_the_epoch_before(part: float, tmp_path: Path) -> None:
    path, counters = tmp_path / "log", tmp_path / "log.progress.json"
    logger = CSVLogger(path)
    run(logger, 1)
    whole, kept, first = path.read_bytes(), counters.read_bytes(), logger.read_progress()
    run(logger, 2)
    data = path.read_bytes()
    path.write_bytes(data[: len(whole) + int(part * (len(data) - len(whole)))])
    counters.write_bytes(kept)
    resumed = CSVLogger(path)
    assert resumed.read_progress() == first
    resumed.continue_log(100)
    run(resumed, 2)
    assert path.read_bytes() == data


@both
def test_a_line_cut_short_is_dropped_before_the_next_one(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    path = tmp_path / "log"
    run(make(path), 1)
    whole = path.read_bytes()
    last_line = whole[:-1].rfind(b"\n") + 1
    path.write_bytes(whole[:-2])
    make(path).log("test", {"score": 7.0}, 300)
    data = path.read_bytes()
    assert data.startswith(whole[:last_line])
    assert data.count(b"\n") == whole.count(b"\n")
    assert b"7.0" in data[last_line:]


def test_a_header_cut_short_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,na")
    CSVLogger(path).log("test", {"score": 7.0}, 300)
    assert path.read_text() == "step,name,value\n300,test/score,7.0\n"


def test_long_lines_are_found_back(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = json.dumps({"kind": "test", "step": 1, "test/" + "x" * 9000: 1.0}) + "\n"
    path.write_text(whole + '{"kind": "test", "y": "' + "y" * 9000)
    JSONLinesLogger(path).log("test", {"score": 1.0}, 2)
    assert path.read_text() == whole + '{"kind": "test", "step": 2, "test/score": 1.0}\n'


@pytest.mark.parametrize(
    "line",
    [
        "{]",
        "3",
        "[]",
        '{"step": 3}',
        '{"kind": "epoch"}',
        '{"kind": "epoch", "epoch/epoch": "code"}',
        "[" * 10**5,
        "\udcff",
        '{"kind": "test", "step": 1, "step": 2}',
    ],
)
def test_damaged_json_lines_are_errors(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logger = JSONLinesLogger(path)
    run(logger, 1)
    logger.close()
    with open(path, "ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(CheckpointError, match=r"log.jsonl, line 5: (expected a row|epoch.env_step: missing in the)"):
        logger.read_progress()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (('"env_step": 200', '"env_step": "2x0"'), "progress.env_step: expected an integer, found '2x0' (str)"),
        (('"env_step": 200,', ""), "progress.env_step: missing in the saved state"),
        (('"env_step": 200', '"epoch": 2'), "expected the counters of a run, as JSON (names 'epoch' twice)"),
        (('"progress"', '"profess"'), "profess: expected no field of LoggedEpoch"),
        (('"size": ', '"size": -'), "state.files.log.size: expected a non-negative integer, found -"),
        (("{", ""), "expected the counters of a run, as JSON (Extra data"),
        (("{", "[" * 10**5), "expected the counters of a run, as JSON (is nested deeper than 100)"),
    ],
)
def test_damaged_counters_are_errors(change: tuple[str, str], text: str, tmp_path: Path) -> None:
    path, counters = tmp_path / "log.csv", tmp_path / "log.csv.progress.json"
    logger = CSVLogger(path)
    run(logger, 1, 2)
    assert change[0] in counters.read_text()
    counters.write_text(counters.read_text().replace(*change, 1))
    with pytest.raises(CheckpointError, match=rf"log\.csv\.progress\.json[.:] ?{re.escape(text)}"):
        logger.read_progress()


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_the_counters_is_refused_at_once(tmp_path: Path) -> None:
    run(CSVLogger(tmp_path / "log.csv"), 1)
    (tmp_path / "log.csv.progress.json").unlink()
    os.mkfifo(tmp_path / "log.csv.progress.json")
    with pytest.raises(CheckpointError, match=r"log.csv.progress.json: is a pipe, no regular file"):
        CSVLogger(tmp_path / "log.csv").read_progress()


@both
def test_a_pipe_is_refused_at_once(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ParamsError, match=rf"^{make.__name__}.path: must be a file, not a pipe; got "):
        make(tmp_path / "pipe")


@both
@pytest.mark.parametrize("path", ["", None, 3, True])
def test_what_is_no_path(make: Callable[..., FileLogger], path: object) -> None:
    with pytest.raises(ParamsError, match=rf"^{make.__name__}.path: must be the path of a file; got "):
        make(path)


@both
def test_a_folder_or_a_foreign_file_is_refused_and_left_alone(make: Callable[..., FileLogger], tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match=rf"^{make.__name__}.path: must be a file, not a folder; got "):
        make(tmp_path)
    foreign = tmp_path / "policy.safetensors"
    foreign.write_bytes(b"weights that took a week")
    with pytest.raises(
        ParamsError, match=r"path: must be a new file or a log of this kind; got .*It would be damaged\."
    ):
        make(foreign)
    assert foreign.read_bytes() == b"weights that took a week"


@both
def test_a_full_disk_warns_and_training_goes_on(make: Callable[..., FileLogger]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    logger = make("/dev/full")
    with pytest.warns(RuntimeWarning, match=rf"^{make.__name__}\('/dev/full'\) could not write the training row"):
        run(logger, 1)
    assert logger.num_dropped == 4
    strict = make("/dev/full", strict=True)
    with pytest.raises(OSError, match="No space left"):
        run(strict, 1)


@both
def test_a_short_write_leaves_whole_lines(
    make: Callable[..., FileLogger], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = make(tmp_path / "log")
    run(logger, 1)
    before = (tmp_path / "log").read_bytes()
    file = logger._file
    assert file is not None

    class Nearly:
        """The last bytes of the disk: five of them can still be written."""

        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

        def write(self, data: bytes) -> int:
            return file.write(data[:5])

    monkeypatch.setattr(logger, "_file", Nearly())
    with pytest.warns(RuntimeWarning, match=r"only 5 of \d+ bytes could be written"):
        logger.log("test", {"score": 1.0}, 300)
    assert (tmp_path / "log").read_bytes() == before
