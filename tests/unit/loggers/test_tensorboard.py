"""TensorBoard logs, read with TensorBoard's own reader."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rltrainer.loggers import TensorBoardLogger
from rltrainer.loggers.file_logger import AppendedFile
from rltrainer.loggers.log_state import LogPosition
from rltrainer.state.codec import to_state
from tests.unit.loggers.rows import PARAMS, run, scalars, write


def event_files(path: Path) -> list[Path]:
    return sorted(path.glob("events.out.tfevents.*"))


def test_params_are_texts(tmp_path: Path) -> None:
    run(TensorBoardLogger(tmp_path))
    log = EventAccumulator(str(tmp_path))
    log.Reload()
    (event,) = log.Tensors("params/algorithm/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert json.loads(text.removeprefix("```\n").removesuffix("\n```")) == PARAMS["algorithm"]
    assert log.SummaryMetadata("params/trainer/text_summary").plugin_data.plugin_name == "text"


def make(path: Path) -> TensorBoardLogger:
    return TensorBoardLogger(path, training_interval=1, update_interval=1, strict=True)


def test_nan_is_written_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logger = make(tmp_path)
    logger.log("test", {"score": float("nan")}, 0)
    logger.close()
    assert repr(scalars(tmp_path, "test/score")) == "[(0, nan)]"
    assert capfd.readouterr() == ("", "")


def test_rows_at_the_checkpoints_own_step_are_not_doubled(tmp_path: Path) -> None:
    # Saved after the update at step 100; the test at step 100 comes after it, and again after the resume.
    logger = make(tmp_path)
    logger.log("update", {"loss": 0.5}, 100, 1)
    state = logger.state_dict()
    logger.log("test", {"score": 1.0}, 100)
    logger.load_state_dict(state)
    logger.log("test", {"score": 1.0}, 100)
    logger.close()
    assert scalars(tmp_path, "update/loss") == [(100, 0.5)]
    assert scalars(tmp_path, "test/score") == [(100, 1.0)]


def test_event_files_begun_after_the_checkpoint_are_purged_by_step(tmp_path: Path) -> None:
    first = make(tmp_path)
    write(first, 1)
    state = first.state_dict()
    first.close()
    second = make(tmp_path)
    second.load_state_dict(state)
    write(second, 2, 3)
    second.close()
    third = make(tmp_path)
    third.load_state_dict(state)
    third.log("test", {"score": -2.0}, 200)
    third.close()
    # TensorBoard reads the files of one second in the order of their names, so read the last one by itself.
    newest = max(event_files(tmp_path), key=lambda file: int(file.name.rsplit(".", 1)[-1]))
    log = EventAccumulator(str(newest))
    log.Reload()
    assert [(event.step, event.value) for event in log.Scalars("test/score")] == [(200, -2.0)]
    starts = [event.step for event in _events(newest) if event.HasField("session_log")]
    assert starts == [101]


def _events(path: Path) -> list[Any]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return list(EventFileLoader(str(path)).Load())


def test_a_name_in_a_state_reaches_event_files_of_the_folder_only(tmp_path: Path) -> None:
    board = tmp_path / "board"
    board.mkdir()
    victims = [tmp_path / "events.out.tfevents.1", board / "best.safetensors"]
    for victim in victims:
        victim.write_text("precious")
    logger = TensorBoardLogger(board)
    state = logger.state_dict()
    names = ("../events.out.tfevents.1", str(victims[0]), "best.safetensors", "..")
    state["files"] = {name: to_state(LogPosition.of(victims[0], 1)) for name in names}
    with pytest.warns(RuntimeWarning, match="the log is missing, at the checkpoint it had 1 bytes"):
        logger.load_state_dict(state)
    assert [victim.read_text() for victim in victims] == ["precious", "precious"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TensorBoardLogger, "_open", lambda self: AppendedFile(Path("/dev/full")))
    logger = TensorBoardLogger(tmp_path, training_interval=1, update_interval=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write(logger, *range(1, 50))
        logger.flush()
        logger.close()
    assert len(caught) == 1
    assert "could not write the training row of step 50 (OSError: [Errno 28] No space left" in str(caught[0].message)
    assert logger.num_dropped == 4 * 49
    assert capfd.readouterr() == ("", "")
