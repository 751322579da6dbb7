"""Several runs at one path: each has a log of its own, and its params."""

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rltrainer.loggers import ConsoleLogger, CSVLogger, JSONLinesLogger, Logger, MultiLogger, TensorBoardLogger
from rltrainer.loggers.file_logger import NumberedPath
from tests.unit.loggers.rows import EACH, PROGRESS

PARAMS = {"trainer": {"params": "TrainerParams", "fields": {"seed": 1}}, "algorithm": {"params": "PPOParams"}}
every_file_logger = pytest.mark.parametrize(
    ("make", "name", "second", "third"),
    [
        (CSVLogger, "log.csv", "log-2.csv", "log-3.csv"),
        (JSONLinesLogger, "log.jsonl", "log-2.jsonl", "log-3.jsonl"),
        (CSVLogger, "log", "log-2", "log-3"),
        (TensorBoardLogger, "cartpole.v1", "cartpole.v1-2", "cartpole.v1-3"),
    ],
)


def run(logger: Logger, epoch: int = 1, is_new: bool = True) -> None:
    logger.begin_run(EACH, is_new=is_new)
    logger.log_params(PARAMS)
    logger.log("test", {"score": float(epoch)}, 10 * epoch)
    logger.log_epoch({**PROGRESS, "epoch": epoch, "env_step": 10 * epoch})


def epoch_of(logger: Logger) -> Any:
    progress = logger.read_progress()
    return None if progress is None else progress["epoch"]


@every_file_logger
def test_each_run_takes_the_next_number(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = make(tmp_path / "runs" / name)
    with caplog.at_level(logging.INFO, "rltrainer"):
        run(logger)
        assert (logger.path, caplog.messages) == (tmp_path / "runs" / name, [])
        run(logger, 2)  # the same logger
        assert logger.path == tmp_path / "runs" / second
        again = make(tmp_path / "runs" / name)  # another program
        assert again.path == tmp_path / "runs" / name  # nothing is chosen before it runs
        run(again, 3)
    assert again.path == tmp_path / "runs" / third
    given = tmp_path / "runs" / name
    text = f"{make.__name__}: {given} holds the log of another run; this one is logged at "
    assert caplog.messages == [text + str(tmp_path / "runs" / second), text + str(again.path)]
    assert [epoch_of(make(tmp_path / "runs" / each)) for each in (second, third)] == [2, 3]
    assert repr(again) == f"{make.__name__}({str(again.path)!r})"


@every_file_logger
def test_an_unused_path_is_taken_as_it_is(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    run(make(tmp_path / second))
    logger = make(tmp_path / name)
    run(logger)
    assert logger.path == tmp_path / name
    run(logger)
    assert logger.path == tmp_path / third


@every_file_logger
def test_the_newest_run_is_read_and_continued(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    for epoch in (1, 2):
        run(make(tmp_path / name), epoch)
    logger = make(tmp_path / name)
    assert epoch_of(logger) == 2
    logger.continue_log(20)
    run(logger, 3, is_new=False)
    assert logger.path == tmp_path / second
    assert not (tmp_path / third).exists()
    assert epoch_of(make(tmp_path / second)) == 3
    assert epoch_of(logger) == 3


@every_file_logger
def test_runs_that_begin_together_have_logs_of_their_own(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    loggers = [make(tmp_path / name) for _ in range(3)]
    for logger in loggers:  # a row comes later: before it, a trainer looks at envs and programs
        logger.begin_run(EACH)
    for epoch, logger in enumerate(loggers, start=1):
        logger.log_params(PARAMS)
        logger.log_epoch({**PROGRESS, "epoch": epoch})
    assert [logger.path.name for logger in loggers] == [name, second, third]
    assert [epoch_of(make(tmp_path / each)) for each in (second, third)] == [2, 3]
    assert epoch_of(loggers[0]) == 1


@every_file_logger
def test_threads_that_begin_at_once_have_logs_of_their_own(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    loggers = [make(tmp_path / name) for _ in range(32)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda logger: logger.begin_run(EACH), loggers))
    assert len({logger.path for logger in loggers}) == 32


@every_file_logger
def test_a_path_that_cannot_be_claimed_is_asked_for_again_before_a_row_is_written(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The given path may hold another run's log, to which no row of this run belongs."""
    run(make(tmp_path / name))
    logger = make(tmp_path / name)
    with monkeypatch.context() as patched:
        patched.setattr(make, "_claim", fail_as_a_full_disk)
        with pytest.warns(RuntimeWarning, match="could not begin a log .*No space left"):
            logger.begin_run(EACH)
        logger.log_params(PARAMS)
        logger.log("test", {"score": 1.0}, 1)
    assert logger.num_dropped == 2
    logger.log_epoch({**PROGRESS, "epoch": 5})
    assert (logger.path.name, epoch_of(logger)) == (second, 5)
    assert epoch_of(make(tmp_path / second)) == 5


def fail_as_a_full_disk(*args: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@every_file_logger
def test_rows_of_a_log_that_is_deleted_during_the_run_are_counted(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    logger = make(tmp_path / name)
    run(logger)
    shutil.rmtree(logger.path) if logger.path.is_dir() else logger.path.unlink()
    with pytest.warns(RuntimeWarning, match=f"{name}: the log was deleted during the run"):
        logger.log("test", {"score": 1.0}, 11)
    for step in (12, 13):
        logger.log("test", {"score": 1.0}, step)  # a second warning would be an error
    assert (logger.num_dropped, logger.path.exists()) == (3, False)


def test_a_log_that_is_moved_during_the_run_keeps_its_rows(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "log.csv")
    run(logger)
    logger.path.rename(tmp_path / "moved.csv")
    logger.log("test", {"score": 1.0}, 11)
    assert (tmp_path / "moved.csv").read_text().endswith("11,test/score,1.0\n")
    assert logger.num_dropped == 0


@every_file_logger
def test_the_newest_run_is_found_behind_one_that_was_deleted(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    for epoch, each in enumerate((name, second, third), start=1):
        run(make(tmp_path / name), epoch)
        set_last_change(tmp_path / each, epoch)
    shutil.rmtree(tmp_path / second) if (tmp_path / second).is_dir() else (tmp_path / second).unlink()
    assert epoch_of(make(tmp_path / name)) == 3


def set_last_change(path: Path, second: int) -> None:
    for file in path.iterdir() if path.is_dir() else [path]:
        os.utime(file, (second, second))


@pytest.mark.parametrize("other", ["log-x.jsonl", "log-03.jsonl", "my-log-3.jsonl", "log-3.csv"])
def test_other_names_are_no_runs_of_a_path(other: str, tmp_path: Path) -> None:
    run(JSONLinesLogger(tmp_path / "log.jsonl"), 1)
    text = (tmp_path / "log.jsonl").read_text()
    (tmp_path / other).write_text(text.replace('"epoch/epoch": 1', '"epoch/epoch": 2'))
    os.utime(tmp_path / "log.jsonl", (0, 0))
    assert epoch_of(JSONLinesLogger(tmp_path / "log.jsonl")) == 1


def test_a_device_is_written_to_as_it_is() -> None:
    logger = CSVLogger(os.devnull)
    logger.begin_run(EACH)
    logger.log_epoch(PROGRESS)
    assert (logger.path, logger.num_dropped) == (Path(os.devnull), 0)
    assert not Path(f"{os.devnull}.progress.json").exists()


@every_file_logger
def test_a_run_that_was_deleted_is_not_looked_for_behind(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    """The user starts anew by deleting the first run: what continues is that new one, not the old second."""
    run(make(tmp_path / second), 2)
    run(make(tmp_path / name), 7)
    assert epoch_of(make(tmp_path / name)) == 7


@every_file_logger
def test_a_state_leads_back_to_its_own_run(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    run(make(tmp_path / name), 1)
    saved = make(tmp_path / name)
    run(saved, 2)
    state = json.loads(json.dumps(saved.state_dict()))
    run(make(tmp_path / name), 3)  # the newest
    resumed = make(tmp_path / name)
    resumed.load_state_dict(state)
    run(resumed, 4, is_new=False)
    assert resumed.path == tmp_path / second
    assert [epoch_of(make(tmp_path / each)) for each in (second, third)] == [4, 3]
    by_its_name = make(tmp_path / second)
    by_its_name.load_state_dict(state)
    assert by_its_name.path == tmp_path / second


@every_file_logger
def test_a_logger_that_joins_a_resumed_run_has_a_log_of_its_own(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    run(make(tmp_path / name), 1)
    joins = make(tmp_path / name)
    run(joins, 2, is_new=False)
    assert joins.path == tmp_path / second


@every_file_logger
def test_who_logs_by_hand_continues_the_log(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    run(make(tmp_path / name), 1)
    by_hand = make(tmp_path / name)
    by_hand.log_epoch({**PROGRESS, "epoch": 2})
    assert by_hand.path == tmp_path / name
    assert epoch_of(by_hand) == 2


@pytest.mark.parametrize("name", ["../log-2.csv", "log-2.csv/..", "/etc/passwd", "log-.csv", "log-٢.csv", "", None])
def test_a_name_from_a_checkpoint_is_not_trusted(name: str | None, tmp_path: Path) -> None:
    runs = NumberedPath(tmp_path / "log.csv", ".csv")
    assert runs.named(name) == tmp_path / "log.csv"
    assert runs.named("log-12.csv") == tmp_path / "log-12.csv"


def test_a_foreign_file_keeps_its_number(tmp_path: Path) -> None:
    run(CSVLogger(tmp_path / "log.csv"))
    (tmp_path / "log-2.csv").write_text("name,weight\nme,70\n")
    logger = CSVLogger(tmp_path / "log.csv")
    assert epoch_of(logger) == 1
    run(logger)
    assert logger.path == tmp_path / "log-3.csv"
    assert (tmp_path / "log-2.csv").read_text() == "name,weight\nme,70\n"


def test_a_folder_of_other_files_is_not_used_yet(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "best.safetensors").write_bytes(b"weights")
    logger = TensorBoardLogger(tmp_path / "runs")
    run(logger)
    assert logger.path == tmp_path / "runs"


def test_numbers_of_the_current_folder_lie_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in (".", "2", "3"):
        logger = TensorBoardLogger(".")
        run(logger)
        assert logger.path == Path(expected)
    assert epoch_of(TensorBoardLogger(".")) == 1


@every_file_logger
def test_a_run_that_begins_twice_has_one_log(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    logger = make(tmp_path / name)
    for _ in range(2):
        logger.begin_run(EACH)
        logger.log_params(PARAMS)
        logger.gather("update", {"loss": 7.0})
        logger.log("test", {"score": 1.0}, 0)
    assert logger.path == tmp_path / name
    again = make(tmp_path / name)
    again.load_state_dict(logger.state_dict())  # a checkpoint of this moment
    run(again)
    assert again.path == tmp_path / name
    run(again)
    assert again.path == tmp_path / second


def test_several_loggers_come_to_numbers_of_their_own(tmp_path: Path) -> None:
    run(CSVLogger(tmp_path / "log.csv"))
    csv, board = CSVLogger(tmp_path / "log.csv"), TensorBoardLogger(tmp_path / "board")
    run(MultiLogger(csv, board, ConsoleLogger()))
    assert (csv.path, board.path) == (tmp_path / "log-2.csv", tmp_path / "board")


def by_step(logger: Any) -> list[tuple[int, float]]:
    """Return the (step, score) of all test rows."""
    if isinstance(logger, TensorBoardLogger):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        log = EventAccumulator(str(logger.path))
        log.Reload()
        return [(event.step, event.value) for event in log.Scalars("test/score")]
    lines = logger.path.read_text().splitlines()
    if isinstance(logger, CSVLogger):
        return [(int(line.split(",")[0]), float(line.split(",")[2])) for line in lines if "test/score" in line]
    rows = map(json.loads, lines)
    return [(row["step"], row["test/score"]) for row in rows if row["kind"] == "test"]


@every_file_logger
def test_rows_after_the_last_epoch_are_not_doubled(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was killed in its third epoch: its rows come again."""
    # TensorBoard reads files in the order of their names, which begin with the second of their making.
    clock = iter(range(1_700_000_000, 1_800_000_000))
    monkeypatch.setattr("rltrainer.loggers.tensorboard.time.time", lambda: next(clock))
    killed = make(tmp_path / name)
    run(killed, 1)
    run(killed, 2, is_new=False)
    for step in (21, 22, 23):
        killed.log("test", {"score": -1.0}, step)
    killed.close()
    logger = make(tmp_path / name)
    assert epoch_of(logger) == 2
    logger.continue_log(20)
    assert (23, -1.0) in by_step(logger)  # nothing is removed before the run writes
    logger.begin_run(EACH, is_new=False)
    for step in (21, 22):
        logger.log("test", {"score": 3.0}, step)
    assert by_step(logger) == [(10, 1.0), (20, 2.0), (21, 3.0), (22, 3.0)]
    logger.close()
    logger.log("test", {"score": 3.0}, 23)
    assert by_step(logger)[-2:] == [(22, 3.0), (23, 3.0)]


def test_rows_of_other_runs_in_one_file_are_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for score, step in ((1.0, 500), (2.0, 5)):  # by hand, into one file
        JSONLinesLogger(path).log("test", {"score": score}, step)
    run(JSONLinesLogger(path), is_new=False)
    before = (tmp_path / "log-2.jsonl").rename(path)
    path.write_text('{"kind": "test", "step": 500, "test/score": 1.0}\n' + before.read_text() + '{"kind": "test"')
    whole = path.read_text().removesuffix('{"kind": "test"')
    JSONLinesLogger(path).log("test", {"score": 3.0}, 30)
    logger = JSONLinesLogger(path)
    logger.continue_log(10)
    logger.log("test", {"score": 4.0}, 30)
    assert path.read_text() == whole + '{"kind": "test", "step": 30, "test/score": 4.0}\n'


@every_file_logger
def test_a_state_between_counts_what_will_stay(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    logger = make(tmp_path / name)
    run(logger)
    sizes = {each: file["size"] for each, file in logger.state_dict()["files"].items()}
    logger.log("test", {"score": 3.0}, 30)
    continued = make(tmp_path / name)
    continued.continue_log(10)
    assert {each: file["size"] for each, file in continued.state_dict()["files"].items()} == sizes


@every_file_logger
def test_a_log_that_ends_an_epoch_before_the_run_resumes_is_not_cut(
    make: Callable[..., Any], name: str, second: str, third: str, tmp_path: Path
) -> None:
    """A run was killed when another of its loggers had ended the epoch."""
    logger = make(tmp_path / name)
    run(logger)
    logger.log("test", {"score": 3.0}, 20)
    logger.close()
    continued = make(tmp_path / name)
    continued.continue_log(20)
    continued.begin_run(EACH, is_new=False)
    continued.log("test", {"score": 4.0}, 30)
    assert by_step(continued) == [(10, 1.0), (20, 3.0), (30, 4.0)]


def test_counters_lie_beside_the_log_but_for_json_lines(tmp_path: Path) -> None:
    loggers = MultiLogger(CSVLogger(tmp_path / "log.csv"), JSONLinesLogger(tmp_path / "log.jsonl"))
    for _ in range(2):
        run(loggers)
    run(TensorBoardLogger(tmp_path / "board"))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "board", "log-2.csv", "log-2.csv.params.json", "log-2.csv.progress.json", "log-2.jsonl", "log.csv",
        "log.csv.params.json", "log.csv.progress.json", "log.jsonl",
    ]  # fmt: skip
    assert [file.name for file in (tmp_path / "board").iterdir() if "tfevents" not in file.name] == [
        "tensorboard.progress.json"
    ]


@pytest.mark.parametrize("make", [CSVLogger, TensorBoardLogger])
def test_a_log_without_its_counters_is_not_read(make: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "log"
    run(make(path))
    (counters,) = tmp_path.rglob("*.progress.json")
    counters.unlink()
    logger = make(path)
    assert logger.read_progress() is None
    logger.continue_log(10)
    run(logger, is_new=False)
    assert logger.path == tmp_path / "log-2"


def test_counters_of_a_log_that_was_deleted_keep_its_number(tmp_path: Path) -> None:
    run(CSVLogger(tmp_path / "log.csv"), 7)
    for name in ("log.csv", "log.csv.params.json"):
        (tmp_path / name).unlink()
    logger = CSVLogger(tmp_path / "log.csv")
    assert logger.read_progress() is None
    run(logger)
    assert logger.path == tmp_path / "log-2.csv"


def test_counters_that_cannot_be_written_warn_and_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "log.csv.progress.json").mkdir()
    logger = CSVLogger(tmp_path / "log.csv")
    with pytest.warns(RuntimeWarning, match=r"could not write its counters \(OSError: .* is no regular file"):
        logger.log_epoch(PROGRESS)
    assert logger.num_dropped == 0


def test_params_in_json_lines_are_the_first_row(tmp_path: Path) -> None:
    logger = JSONLinesLogger(tmp_path / "log.jsonl")
    run(logger)
    first, *others = [json.loads(line) for line in logger.path.read_text().splitlines()]
    assert first == {"kind": "params", "step": 0, **PARAMS}
    assert [row["kind"] for row in others] == ["test", "epoch"]


def test_params_of_a_csv_log_lie_beside_it(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "log.csv")
    run(logger)
    run(logger)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "log-2.csv", "log-2.csv.params.json", "log-2.csv.progress.json", "log.csv", "log.csv.params.json",
        "log.csv.progress.json",
    ]  # fmt: skip
    assert json.loads((tmp_path / "log-2.csv.params.json").read_text()) == PARAMS
    assert "params" not in logger.path.read_text()


def test_logs_that_differ_in_their_suffix_have_params_of_their_own(tmp_path: Path) -> None:
    loggers = [CSVLogger(tmp_path / name) for name in ("log", "log.csv", "log.txt")]
    run(MultiLogger(*loggers))
    assert [logger.path.name for logger in loggers] == ["log", "log.csv", "log.txt"]


def test_a_file_in_the_place_of_the_params_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log.csv.params.json").write_text("mine")
    logger = CSVLogger(tmp_path / "log.csv")
    run(logger)
    assert logger.path == tmp_path / "log-2.csv"
    assert (tmp_path / "log.csv.params.json").read_text() == "mine"


def test_params_in_tensorboard_are_texts(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(TensorBoardLogger(tmp_path))
    log = EventAccumulator(str(tmp_path))
    log.Reload()
    (event,) = log.Tensors("params/algorithm/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert json.loads(text.removeprefix("```\n").removesuffix("\n```")) == PARAMS["algorithm"]
    assert log.SummaryMetadata("params/trainer/text_summary").plugin_data.plugin_name == "text"


def test_params_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleLogger().log_params(PARAMS)
    assert capsys.readouterr().out.splitlines()[1] == 'params    algorithm: {"params": "PPOParams"}'


def test_params_are_written_once_and_not_on_a_resume(tmp_path: Path) -> None:
    logger = JSONLinesLogger(tmp_path / "log.jsonl")
    run(logger)
    logger.log_params(PARAMS)
    resumed = JSONLinesLogger(tmp_path / "log.jsonl")
    resumed.load_state_dict(logger.state_dict())
    run(resumed, 2, is_new=False)
    continued = JSONLinesLogger(tmp_path / "log.jsonl")
    continued.continue_log(20)
    run(continued, 3, is_new=False)
    assert logger.path.read_text().count('"params"') == 3  # the kind, and two classes in its row
    assert logger.path.read_text().count("\n") == 1 + 3 * 2


def test_a_logger_of_a_users_own_needs_none_of_this() -> None:
    class Mine(Logger):
        def __init__(self, path: str) -> None:
            super().__init__()
            self.path, self.rows = path, 0

        def _write(self, kind: Any, values: Any, step: int) -> None:
            self.rows += 1

    logger = Mine("anywhere")
    run(logger)
    assert logger.rows == 2
    logger.load_state_dict(logger.state_dict())


def test_a_folder_is_claimed_by_one(tmp_path: Path) -> None:
    path = NumberedPath(tmp_path / "runs" / "cartpole", "")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "cartpole-2").write_text("a file takes a name too")
    assert [path.claim().name for _ in range(3)] == ["cartpole", "cartpole-3", "cartpole-4"]


def test_threads_that_claim_at_once_get_names_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        names = list(threads.map(lambda _: NumberedPath(tmp_path / "run", "").claim().name, range(64)))
    assert sorted(names) == sorted(["run", *(f"run-{number}" for number in range(2, 65))])
