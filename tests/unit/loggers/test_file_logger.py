"""Loggers of files: a log for each run at a path, continued after a restore or a kill, never mixed or damaged."""

import errno
import json
import logging
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.loggers import CSVLogger, JSONLinesLogger, MultiLogger, TensorBoardLogger
from rltrainer.loggers.file_logger import NumberedPath
from tests.unit.loggers.rows import EACH, PARAMS, PROGRESS, epoch_of, run, values, write


@dataclass
class Log:
    """A class of loggers, and the paths that the first three runs at one path take."""

    make: Callable[..., Any]
    paths: tuple[Path, Path, Path]

    def __call__(self, number: int = 0, **options: Any) -> Any:
        return self.make(self.paths[number], **options)


@pytest.fixture(
    params=[
        (CSVLogger, "log.csv", "log-2.csv", "log-3.csv"),
        (JSONLinesLogger, "log.jsonl", "log-2.jsonl", "log-3.jsonl"),
        (CSVLogger, "log", "log-2", "log-3"),
        (TensorBoardLogger, "cartpole.v1", "cartpole.v1-2", "cartpole.v1-3"),
    ],
    ids=["csv", "jsonl", "no suffix", "tensorboard"],
)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    make, *names = request.param
    first, second, third = (tmp_path / "runs" / name for name in names)
    return Log(make, (first, second, third))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads files in the order of their names, which begin with the second of their making."""
    seconds = iter(range(1_700_000_000, 1_800_000_000))
    monkeypatch.setattr("rltrainer.loggers.tensorboard.time.time", lambda: next(seconds))


lines = pytest.mark.parametrize("make", [CSVLogger, JSONLinesLogger])


class TestPaths:
    """Each run takes the first path that no other run has used."""

    def test_each_run_takes_the_next_number(self, log: Log, caplog: pytest.LogCaptureFixture) -> None:
        logger, again = log(), log()
        with caplog.at_level(logging.INFO, "rltrainer"):
            run(logger)
            assert (logger.path, caplog.messages) == (log.paths[0], [])
            run(logger, 2)  # the same logger
            assert again.path == log.paths[0]  # nothing is chosen before it runs
            run(again, 3)  # another program
        assert (logger.path, again.path) == log.paths[1:]
        text = f"{log.make.__name__}: {log.paths[0]} holds the log of another run; this one is logged at "
        assert caplog.messages == [text + str(path) for path in log.paths[1:]]
        assert [epoch_of(log(number)) for number in (1, 2)] == [2, 3]
        assert repr(again) == f"{log.make.__name__}({str(again.path)!r})"

    def test_an_unused_path_is_taken_as_it_is(self, log: Log) -> None:
        run(log(1), 2)
        logger = log()
        for epoch, path in ((7, log.paths[0]), (8, log.paths[2])):
            run(logger, epoch)
            assert logger.path == path
            assert epoch_of(log()) == epoch  # the newest run, whatever its number is

    def test_threads_that_begin_at_once_have_logs_of_their_own(self, log: Log) -> None:
        loggers = [log() for _ in range(32)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda logger: logger.begin_run(EACH), loggers))
        assert len({logger.path for logger in loggers}) == 32
        for epoch, logger in enumerate(loggers, start=1):  # rows come later: a trainer looks at envs and programs first
            logger.log_epoch({**PROGRESS, "epoch": epoch})
        assert [epoch_of(logger) for logger in loggers] == list(range(1, 33))

    def test_a_path_that_cannot_be_claimed_is_tried_again(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        """The given path may hold another run's log, to which no row of this run belongs."""

        def fail(*args: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        run(log())
        logger = log()
        with monkeypatch.context() as patched:
            patched.setattr(log.make, "_claim", fail)
            with pytest.warns(RuntimeWarning, match="could not begin a log .*No space left"):
                logger.begin_run(EACH)
            logger.log_params(PARAMS)
            logger.log("test", {"score": 1.0}, 1)
        assert logger.num_dropped == 2
        logger.log_epoch({**PROGRESS, "epoch": 5})
        assert (logger.path, epoch_of(logger), epoch_of(log(1))) == (log.paths[1], 5, 5)

    def test_a_run_that_begins_twice_has_one_log(self, log: Log) -> None:
        logger = log()
        for _ in range(2):
            logger.begin_run(EACH)
            logger.log_params(PARAMS)
            logger.gather("update", {"loss": 7.0})
            logger.log("test", {"score": 1.0}, 0)
        assert logger.path == log.paths[0]
        again = log()
        again.load_state_dict(logger.state_dict())  # a checkpoint of this moment
        for path in log.paths[:2]:
            run(again)
            assert again.path == path

    def test_the_newest_run_is_found_behind_one_that_was_deleted(self, log: Log) -> None:
        for epoch, path in enumerate(log.paths, start=1):
            run(log(), epoch)
            for file in path.iterdir() if path.is_dir() else [path]:
                os.utime(file, (epoch, epoch))
        delete(log.paths[1])
        assert epoch_of(log()) == 3

    def test_a_logger_that_joins_a_resumed_run_has_a_log_of_its_own(self, log: Log) -> None:
        run(log(), 1)
        joins = log()
        run(joins, 2, is_new=False)
        assert joins.path == log.paths[1]

    @pytest.mark.parametrize("other", ["log-x.jsonl", "log-03.jsonl", "my-log-3.jsonl", "log-3.csv"])
    def test_other_names_are_no_runs_of_a_path(self, other: str, tmp_path: Path) -> None:
        run(JSONLinesLogger(tmp_path / "log.jsonl"), 1)
        text = (tmp_path / "log.jsonl").read_text()
        (tmp_path / other).write_text(text.replace('"epoch/epoch": 1', '"epoch/epoch": 2'))
        os.utime(tmp_path / "log.jsonl", (0, 0))
        assert epoch_of(JSONLinesLogger(tmp_path / "log.jsonl")) == 1

    @pytest.mark.parametrize(
        "name", ["../log-2.csv", "log-2.csv/..", "/etc/passwd", "log-.csv", "log-٢.csv", "", None]
    )  # fmt: skip
    def test_a_name_from_a_checkpoint_is_not_trusted(self, name: str | None, tmp_path: Path) -> None:
        runs = NumberedPath(tmp_path / "log.csv", ".csv")
        assert runs.named(name) == tmp_path / "log.csv"
        assert runs.named("log-12.csv") == tmp_path / "log-12.csv"

    def test_foreign_files_keep_their_names(self, tmp_path: Path) -> None:
        run(CSVLogger(tmp_path / "log.csv"))
        foreign = tmp_path / "log-2.csv", tmp_path / "log-3.csv.params.json"
        for path in foreign:
            path.write_text("name,weight\nme,70\n")
        logger = CSVLogger(tmp_path / "log.csv")
        assert epoch_of(logger) == 1
        run(logger)
        assert logger.path == tmp_path / "log-4.csv"
        assert {path.read_text() for path in foreign} == {"name,weight\nme,70\n"}

    def test_a_folder_of_other_files_is_not_used_yet(self, tmp_path: Path) -> None:
        (tmp_path / "best.safetensors").write_bytes(b"weights")
        logger = TensorBoardLogger(tmp_path)
        run(logger)
        assert logger.path == tmp_path

    def test_numbers_of_the_current_folder_lie_in_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for expected in (".", "2", "3"):
            logger = TensorBoardLogger(".")
            run(logger)
            assert logger.path == Path(expected)
        assert epoch_of(TensorBoardLogger(".")) == 1

    def test_a_device_is_written_to_as_it_is(self) -> None:
        logger = CSVLogger(os.devnull)
        logger.begin_run(EACH)
        logger.log_epoch(PROGRESS)
        assert (logger.path, logger.num_dropped) == (Path(os.devnull), 0)
        assert not Path(f"{os.devnull}.progress.json").exists()


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


class TestContinuing:
    """A log that continues after a restore or a kill has no doubled and no missing row."""

    def test_a_resumed_log_is_that_of_one_run(self, log: Log, tmp_path: Path) -> None:
        options = {"training_interval": 10, "update_interval": 1, "strict": True}
        whole, killed, resumed = log.make(tmp_path / "whole", **options), log(**options), log(**options)
        write(whole, 1, 2, 3)
        write(killed, 1)
        state = json.loads(json.dumps(killed.state_dict()))
        write(killed, 2)  # written after the checkpoint, then the kill
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            resumed.load_state_dict(state)
        write(resumed, 2, 3)
        for tag in ("training/return", "update/loss", "test/score", "epoch/epoch"):
            assert values(resumed, tag) == values(whole, tag), tag
        if log.make is not TensorBoardLogger:
            assert resumed.path.read_bytes() == whole.path.read_bytes()

    def test_a_logger_in_use_is_cut_back_too(self, log: Log) -> None:
        logger = log()
        empty = logger.state_dict()
        write(logger, 1)
        state, before = logger.state_dict(), values(logger)
        write(logger, 2)
        logger.load_state_dict(state)
        assert values(logger) == before
        write(logger, 2)
        assert logger.read_progress() == {**PROGRESS, "epoch": 2, "env_step": 200}
        if log.make is not TensorBoardLogger:  # whose files are not known before the first row
            logger.load_state_dict(empty)
            assert logger.path.read_bytes() == b""

    def test_a_state_leads_back_to_its_own_run(self, log: Log) -> None:
        run(log(), 1)
        saved, resumed, by_its_name = log(), log(), log(1)
        run(saved, 2)
        state = json.loads(json.dumps(saved.state_dict()))
        run(log(), 3)  # the newest
        resumed.load_state_dict(state)
        run(resumed, 4, is_new=False)
        assert resumed.path == log.paths[1]
        assert [epoch_of(log(1)), epoch_of(log(2))] == [4, 3]
        by_its_name.load_state_dict(state)
        assert by_its_name.path == log.paths[1]

    def test_a_missing_log_warns_and_the_run_continues(self, log: Log) -> None:
        logger, missing = log(), log(1)
        write(logger, 1)
        with pytest.warns(RuntimeWarning, match=r"the log is missing, at the checkpoint it had \d+ bytes\. The run"):
            missing.load_state_dict(logger.state_dict())
        write(missing, 2)
        assert (values(missing), missing.num_dropped) == ([(200, 2.0)], 0)

    def test_rows_after_the_last_epoch_are_not_doubled(self, log: Log) -> None:
        """A run was killed in its third epoch: its rows come again."""
        killed = log()
        run(killed, 1)
        run(killed, 2, is_new=False)
        for step in (201, 202, 203):
            killed.log("test", {"score": -1.0}, step)
        killed.close()
        logger = log()
        assert epoch_of(logger) == 2
        logger.continue_log(200)
        assert (203, -1.0) in values(logger)  # nothing is removed before the run writes
        logger.begin_run(EACH, is_new=False)
        for step in (201, 202):
            logger.log("test", {"score": 3.0}, step)
        assert values(logger) == [(100, 1.0), (200, 2.0), (201, 3.0), (202, 3.0)]
        logger.close()
        logger.log("test", {"score": 3.0}, 203)
        assert values(logger)[-2:] == [(202, 3.0), (203, 3.0)]

    def test_a_log_that_ends_an_epoch_before_the_run_resumes_is_not_cut(self, log: Log) -> None:
        """A run was killed when another of its loggers had ended the epoch."""
        logger, continued = log(), log()
        run(logger)
        sizes = {name: file["size"] for name, file in logger.state_dict()["files"].items()}
        logger.log("test", {"score": 3.0}, 200)
        logger.close()
        continued.continue_log(100)
        assert {name: file["size"] for name, file in continued.state_dict()["files"].items()} == sizes
        continued.continue_log(200)
        continued.begin_run(EACH, is_new=False)
        continued.log("test", {"score": 4.0}, 300)
        assert values(continued) == [(100, 1.0), (200, 3.0), (300, 4.0)]

    def test_a_log_that_is_ahead_of_one_that_failed_is_not_cut(self, log: Log, tmp_path: Path) -> None:
        """The first logger could not write the second epoch: the run resumes where the other one is."""
        first, second = CSVLogger(tmp_path / "first.csv"), log()
        run(MultiLogger(first, second), 1)
        run(second, 2, is_new=False)
        for logger in (first, second):
            logger.close()
        both = MultiLogger(CSVLogger(tmp_path / "first.csv"), log())
        assert epoch_of(both) == 2
        both.continue_log(200)
        run(both, 3, is_new=False)
        assert [values(each) for each in both.loggers] == [[(100, 1.0), (300, 3.0)], [(i * 100, i) for i in (1, 2, 3)]]

    def test_rows_of_other_runs_in_one_file_are_not_removed(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        JSONLinesLogger(path).log("test", {"score": 1.0}, 500)  # by hand, before the run
        JSONLinesLogger(path).log_epoch({**PROGRESS, "env_step": 10})
        whole = path.read_text()
        path.write_text(whole + '{"kind": "test"')
        JSONLinesLogger(path).log("test", {"score": 3.0}, 30)
        logger = JSONLinesLogger(path)
        logger.continue_log(10)
        logger.log("test", {"score": 4.0}, 30)
        assert path.read_text() == whole + '{"kind": "test", "step": 30, "test/score": 4.0}\n'

    def test_params_are_written_once_and_not_on_a_resume(self, tmp_path: Path) -> None:
        logger, resumed, continued = (JSONLinesLogger(tmp_path / "log.jsonl") for _ in range(3))
        run(logger)
        logger.log_params(PARAMS)
        resumed.load_state_dict(logger.state_dict())
        run(resumed, 2, is_new=False)
        continued.continue_log(200)
        run(continued, 3, is_new=False)
        assert logger.path.read_text().count('"params"') == 3  # the kind, and two classes in its row
        assert logger.path.read_text().count("\n") == 1 + 3 * 2

    @lines
    @pytest.mark.parametrize("kind", ["empty", "shorter", "longer", "one digit", "another digit"])
    def test_another_log_is_left_alone(self, kind: str, make: Callable[..., Any], tmp_path: Path) -> None:
        logger, path = make(tmp_path / "log.txt"), tmp_path / "other.txt"
        if kind != "empty":  # else the state is of a log without rows, and the other one is not emptied
            write(logger, 1)
        other = make(path)
        if kind == "shorter":
            other.log("test", {"score": 1.0}, 0)
        else:
            write(other, *((5, 6, 7, 8) if kind == "longer" else (1, 2)))
        if "digit" in kind:  # at the beginning, and at the end of the first epoch
            changes = (b"10.0", b"10.1") if kind == "one digit" else (b"0.5", b"0.6")
            path.write_bytes(path.read_bytes().replace(*changes, 1))
        before, resumed = path.read_bytes(), make(path)
        with pytest.warns(RuntimeWarning, match=r"other.txt: is not the log that the checkpoint knows, and is left as"):
            resumed.load_state_dict(logger.state_dict())
        resumed.begin_run(EACH, is_new=False)
        write(resumed, 2)
        assert (path.read_bytes(), resumed.path) == (before, tmp_path / "other-2.txt")
        assert "200" in resumed.path.read_text()

    @lines
    def test_a_copy_of_the_file_is_continued(self, make: Callable[..., Any], tmp_path: Path) -> None:
        logger = make(tmp_path / "log")
        write(logger, 1)
        state, begin = logger.state_dict(), (tmp_path / "log").read_bytes()
        write(logger, 2)
        (tmp_path / "copy").write_bytes((tmp_path / "log").read_bytes())
        make(tmp_path / "copy").load_state_dict(state)
        assert (tmp_path / "copy").read_bytes() == begin

    @lines
    def test_a_long_log_is_compared_at_both_ends(self, make: Callable[..., Any], tmp_path: Path) -> None:
        path = tmp_path / "log"
        logger = make(path)
        for step in range(8000):
            logger.log("test", {"score": float(step)}, step)
        state, size = logger.state_dict(), path.stat().st_size
        assert size > 2 * (1 << 16)
        write(logger, 100)
        whole = path.read_bytes()
        for position in (30, size - 2):
            path.write_bytes(whole[:position] + b"#" + whole[position + 1 :])
            with pytest.warns(RuntimeWarning, match="is not the log that the checkpoint knows"):
                make(path).load_state_dict(state)
            assert path.stat().st_size == len(whole)
        path.write_bytes(whole)
        make(path).load_state_dict(state)
        assert path.read_bytes() == whole[:size]

    @lines
    @pytest.mark.parametrize(("change", "text"), [
        ({"last_step": "3"}, "logger.last_step: expected an integer, found '3' (str)"),
        ({"num_dropped": -1}, "logger.num_dropped: expected a non-negative integer, found -1 (int)"),
        ({"last": [1]}, "logger.last: expected a mapping, found [1] (list)"),
        ({"files": {"log": "all"}}, "logger.files.log: expected a mapping, found 'all' (str)"),
        ({"gathered": {"update": [3]}}, "logger.gathered.update.0: expected a mapping, found 3 (int)"),
        ({"log": 3}, "logger.log: expected text, found 3 (int)"),
        ({"more": 3}, "logger.more: expected no field of LoggerState, found 3 (int)"),
    ])  # fmt: skip
    def test_a_damaged_state_changes_nothing(
        self, make: Callable[..., Any], change: dict[str, object], text: str, tmp_path: Path
    ) -> None:
        logger = make(tmp_path / "log")
        write(logger, 1)
        before = (logger.state_dict(), (tmp_path / "log").read_bytes())
        with pytest.raises(CheckpointError) as caught:
            logger.load_state_dict(logger.state_dict() | change)
        assert str(caught.value) == text
        assert (logger.state_dict(), (tmp_path / "log").read_bytes()) == before


class TestCounters:
    """The counters of the last whole epoch come back exactly, or not at all."""

    def test_progress_comes_back_exactly(self, log: Log) -> None:
        logger = log()
        assert logger.read_progress() is None
        logger.log("test", {"score": 1.0}, 0)
        assert logger.read_progress() is None
        write(logger, 1)
        logger.log_epoch({**PROGRESS, "epoch": 2})
        assert repr(log().read_progress()) == repr({**PROGRESS, "epoch": 2})  # types, too

    @lines
    @pytest.mark.parametrize(("change", "text"), [
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
    ])  # fmt: skip
    def test_values_that_no_run_resumes_from(
        self, make: Callable[..., Any], change: dict[str, Any], text: str, tmp_path: Path
    ) -> None:
        logger = make(tmp_path / "log")
        write(logger, 1)
        logger.log_epoch({**PROGRESS, **change})
        with pytest.raises(CheckpointError) as error:
            make(tmp_path / "log").read_progress()
        where, hint = re.split(rf"[.:] ?{re.escape(text)}\. ", str(error.value))
        assert where in (f"{tmp_path}/log.progress.json.progress", f"{tmp_path}/log, line 5: epoch")
        assert hint == "Remove it, or log the run elsewhere."

    @pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
    def test_a_kill_before_the_counters_are_written_leaves_those_before(self, part: float, tmp_path: Path) -> None:
        path, counters = tmp_path / "log", tmp_path / "log.progress.json"
        logger, resumed = CSVLogger(path), CSVLogger(path)
        write(logger, 1)
        whole, kept, first = path.read_bytes(), counters.read_bytes(), logger.read_progress()
        write(logger, 2)
        data = path.read_bytes()
        path.write_bytes(data[: len(whole) + int(part * (len(data) - len(whole)))])
        counters.write_bytes(kept)
        assert resumed.read_progress() == first
        resumed.continue_log(100)
        write(resumed, 2)
        assert path.read_bytes() == data

    @pytest.mark.parametrize(("change", "text"), [
        (('"env_step": 200', '"env_step": "2x0"'), "progress.env_step: expected an integer, found '2x0' (str)"),
        (('"env_step": 200,', ""), "progress.env_step: missing in the saved state"),
        (('"env_step": 200', '"epoch": 2'), "expected the counters of a run, as JSON (names 'epoch' twice)"),
        (('"progress"', '"profess"'), "profess: expected no field of LoggedEpoch"),
        (('"size": ', '"size": -'), "state.files.log.size: expected a non-negative integer, found -"),
        (("{", ""), "expected the counters of a run, as JSON (Extra data"),
        (("{", "[" * 10**5), "expected the counters of a run, as JSON (is nested deeper than 100)"),
    ])  # fmt: skip
    def test_damaged_counters_are_errors(self, change: tuple[str, str], text: str, tmp_path: Path) -> None:
        path, counters = tmp_path / "log.csv", tmp_path / "log.csv.progress.json"
        logger = CSVLogger(path)
        write(logger, 1, 2)
        assert change[0] in counters.read_text()
        counters.write_text(counters.read_text().replace(*change, 1))
        with pytest.raises(CheckpointError, match=rf"log\.csv\.progress\.json[.:] ?{re.escape(text)}"):
            logger.read_progress()

    def test_counters_lie_beside_every_log_but_json_lines(self, tmp_path: Path) -> None:
        loggers = MultiLogger(CSVLogger(tmp_path / "log.csv"), JSONLinesLogger(tmp_path / "log.jsonl"))
        for _ in range(2):
            run(loggers)
        run(TensorBoardLogger(tmp_path / "board"))
        assert sorted(file.name for file in tmp_path.iterdir()) == [
            "board", "log-2.csv", "log-2.csv.params.json", "log-2.csv.progress.json", "log-2.jsonl", "log.csv",
            "log.csv.params.json", "log.csv.progress.json", "log.jsonl",
        ]  # fmt: skip
        board = [file.name for file in (tmp_path / "board").iterdir() if "tfevents" not in file.name]
        assert board == ["tensorboard.progress.json"]
        assert json.loads((tmp_path / "log-2.csv.params.json").read_text()) == PARAMS

    @pytest.mark.parametrize("make", [CSVLogger, TensorBoardLogger])
    def test_a_log_without_its_counters_is_not_read(self, make: Callable[..., Any], tmp_path: Path) -> None:
        run(make(tmp_path / "log"))
        (counters,) = tmp_path.rglob("*.progress.json")
        counters.unlink()
        logger = make(tmp_path / "log")
        assert logger.read_progress() is None
        logger.continue_log(10)
        run(logger, is_new=False)
        assert logger.path == tmp_path / "log-2"

    def test_counters_of_a_log_that_was_deleted_keep_its_number(self, tmp_path: Path) -> None:
        run(CSVLogger(tmp_path / "log.csv"), 7)
        for name in ("log.csv", "log.csv.params.json"):
            (tmp_path / name).unlink()
        logger = CSVLogger(tmp_path / "log.csv")
        assert logger.read_progress() is None
        run(logger)
        assert logger.path == tmp_path / "log-2.csv"

    def test_counters_that_cannot_be_written_warn(self, tmp_path: Path) -> None:
        (tmp_path / "log.csv.progress.json").mkdir()
        logger = CSVLogger(tmp_path / "log.csv")
        with pytest.warns(RuntimeWarning, match=r"could not write its counters \(OSError: .* is no regular file"):
            logger.log_epoch(PROGRESS)
        assert logger.num_dropped == 0
        with pytest.raises(CheckpointError, match=r"log.csv.progress.json: is a folder, no (regular )?file"):
            logger.read_progress()


class TestFailures:
    """A failure to write leaves whole rows, and training continues."""

    def test_rows_of_a_log_that_is_deleted_during_the_run_are_counted(self, log: Log) -> None:
        logger = log()
        run(logger)
        delete(logger.path)
        with pytest.warns(RuntimeWarning, match="the log was deleted during the run"):
            logger.log("test", {"score": 1.0}, 101)
        for step in (102, 103):
            logger.log("test", {"score": 1.0}, step)  # a second warning would be an error
        assert (logger.num_dropped, logger.path.exists()) == (3, False)

    def test_a_log_that_is_moved_during_the_run_keeps_its_rows(self, tmp_path: Path) -> None:
        logger = CSVLogger(tmp_path / "log.csv")
        run(logger)
        logger.path.rename(tmp_path / "moved.csv")
        logger.log("test", {"score": 1.0}, 101)
        assert (tmp_path / "moved.csv").read_text().endswith("101,test/score,1.0\n")
        assert logger.num_dropped == 0

    def test_a_short_write_leaves_whole_rows(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        logger = log()
        write(logger, 1)
        (path, *_) = [logger.path] if logger.path.is_file() else logger.path.glob("*tfevents*")
        before, file = path.read_bytes(), logger._file

        class Nearly:
            """The last bytes of the disk: five of them can still be written."""

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def write(self, data: bytes) -> int:
                return int(file.write(data[:5]))

        with monkeypatch.context() as patch:
            patch.setattr(logger, "_file", Nearly())
            with pytest.warns(RuntimeWarning, match=r"only 5 of \d+ bytes could be written"):
                logger.log("test", {"score": 2.0}, 200)
        assert path.read_bytes() == before
        logger.log("test", {"score": 3.0}, 300)
        assert values(logger) == [(100, 1.0), (300, 3.0)]

    @lines
    def test_a_line_cut_short_is_dropped_before_the_next_one(self, make: Callable[..., Any], tmp_path: Path) -> None:
        path = tmp_path / "log"
        write(make(path), 1)
        whole = path.read_bytes()
        path.write_bytes(whole + b"200,test/sco")
        logger = make(path)
        state = logger.state_dict()
        write(logger, 2)
        make(path).load_state_dict(state)
        assert path.read_bytes() == whole
        last_line = whole[:-1].rfind(b"\n") + 1
        path.write_bytes(whole[:-2])
        make(path).log("test", {"score": 7.0}, 300)
        data = path.read_bytes()
        assert (data[:last_line], data.count(b"\n")) == (whole[:last_line], whole.count(b"\n"))
        assert b"7.0" in data[last_line:]

    def test_a_header_cut_short_is_written_again(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_text("step,na")
        CSVLogger(path).log("test", {"score": 7.0}, 300)
        assert path.read_text() == "step,name,value\n300,test/score,7.0\n"

    @lines
    def test_paths_of_other_kinds_are_refused_and_left_alone(self, make: Callable[..., Any], tmp_path: Path) -> None:
        foreign = tmp_path / "policy.safetensors"
        foreign.write_bytes(b"weights that took a week")
        os.mkfifo(tmp_path / "pipe")
        rules = {
            "": "must be the path of a file", None: "must be the path of a file", 3: "must be the path of a file",
            tmp_path: "must be a file, not a folder", tmp_path / "pipe": "must be a file, not a pipe",
            foreign: r"must be a new file or a log of this kind; got .*It would be damaged\.",
        }  # fmt: skip
        for path, rule in rules.items():
            with pytest.raises(ParamsError, match=rf"^{make.__name__}\.path: {rule}"):
                make(path)
        assert foreign.read_bytes() == b"weights that took a week"


def test_csv_has_one_line_per_number(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.csv"
    logger = CSVLogger(path)
    logger.log("training", {"return": 23.5, "length": 7}, 2048)
    logger.log("test", {"score": float("nan")}, 2048)
    logger.log("update", {"later": 1e-300, 'a,b "c"\nd': 1.0}, 2048, 1)
    assert path.read_text() == (
        "step,name,value\n"
        "2048,training/return,23.5\n"
        "2048,training/length,7\n"
        "2048,test/score,nan\n"
        "2048,update/later,1e-300\n"
        '2048,"update/a,b ""c"" d",1.0\n'
    )
