"""JSON lines, the log that is read back."""

import json
import warnings
from pathlib import Path

import pytest

from rltrainer.errors import CheckpointError
from rltrainer.loggers import JSONLinesLogger
from tests.unit.loggers.rows import PARAMS, PROGRESS, run, write


def test_a_row_is_one_object(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "log.jsonl"
    logger = JSONLinesLogger(path)
    logger.log("training", {"return": 23.5, "length": 7}, 2048)
    logger.log("test", {"score": float("nan")}, 2048)
    assert path.read_text() == (
        '{"kind": "training", "step": 2048, "training/return": 23.5, "training/length": 7}\n'
        '{"kind": "test", "step": 2048, "test/score": NaN}\n'
    )


def test_params_are_the_first_row(tmp_path: Path) -> None:
    logger = JSONLinesLogger(tmp_path / "log.jsonl")
    run(logger)
    first, *others = [json.loads(line) for line in logger.path.read_text().splitlines()]
    assert first == {"kind": "params", "step": 0, **PARAMS}
    assert [row["kind"] for row in others] == ["test", "epoch"]


def test_every_cut_in_the_last_row_is_skipped_in_reading(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logger = JSONLinesLogger(path)
    write(logger, 1)
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


@pytest.mark.parametrize(
    "line",
    [
        "{]", "3", "[]", '{"step": 3}', '{"kind": "epoch"}', '{"kind": "epoch", "epoch/epoch": "code"}', "[" * 10**5,
        "\udcff", '{"kind": "test", "step": 1, "step": 2}', f'{{"kind": "test", "step": {2**70}}}',
        f'{{"kind": "test", "step": 1, "x": {10**400}}}',
    ],
)  # fmt: skip
def test_damaged_lines_are_errors(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logger = JSONLinesLogger(path)
    write(logger, 1)
    logger.close()
    with open(path, "ab") as file:
        file.write(line.encode(errors="surrogateescape") + b"\n")
    with pytest.raises(CheckpointError, match=r"log.jsonl, line 5: (expected a row|epoch.env_step: missing in the)"):
        logger.read_progress()
