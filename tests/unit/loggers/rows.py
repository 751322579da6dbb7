"""What the tests of loggers write, and how they read it."""

import json
from pathlib import Path
from typing import Any

from rltrainer.interval import Every
from rltrainer.loggers import CSVLogger, JSONLinesLogger, Logger, TensorBoardLogger
from rltrainer.loggers.logger import Kind, Row
from tests.resume.runs import build

EACH = Every(1, "update_step")
PROGRESS = {
    "epoch": 1, "env_step": 20_000_001, "update_step": 2, "gradient_step": 32,  # env steps beyond float32
    "best_score": 0.1 + 0.2, "best_return": 21.5, "best_return_std": None, "best_epoch": 0, "is_stopped": 0,
}  # fmt: skip
PARAMS = {"trainer": {"params": "TrainerParams", "fields": {"seed": 1}}, "algorithm": {"params": "PPOParams"}}


class ListLogger(Logger):
    """Keep rows in a list; raise `failure` instead while there is one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows: list[tuple[str, int, dict[str, Any]]] = []
        self.failure: Exception | None = None
        self.num_flushes = 0

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        if self.failure is not None:
            raise self.failure
        self.rows.append((kind, step, dict(values)))

    def _write_params(self, params: Any) -> None:
        self._write("params", params, 0)

    def _flush(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.num_flushes += 1

    def of(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Return step and numbers of the rows of a kind, without the kind in their names."""
        found = [(step, values) for each, step, values in self.rows if each == kind]
        return [
            (step, {name.removeprefix(f"{kind}/"): value for name, value in values.items()}) for step, values in found
        ]


def write(logger: Logger, *epochs: int) -> None:
    """Log the rows of epochs of 100 steps."""
    for epoch in epochs:
        logger.log("training", {"return": 10.0 * epoch}, 100 * epoch - 50)
        logger.log("update", {"loss": 0.5 / epoch}, 100 * epoch - 50, epoch)
        logger.log("test", {"score": float(epoch)}, 100 * epoch)
        logger.log_epoch({**PROGRESS, "epoch": epoch, "env_step": 100 * epoch})


def run(logger: Logger, epoch: int = 1, is_new: bool = True) -> None:
    """Begin or continue a run, and log the rows of one epoch."""
    logger.begin_run(EACH, is_new=is_new)
    logger.log_params(PARAMS)
    logger.log("test", {"score": float(epoch)}, 100 * epoch)
    logger.log_epoch({**PROGRESS, "epoch": epoch, "env_step": 100 * epoch})


def epoch_of(logger: Logger) -> Any:
    progress = logger.read_progress()
    return None if progress is None else progress["epoch"]


def scalars(path: Path, tag: str) -> list[tuple[int, float]]:
    """Return the (step, value) of a tag as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = EventAccumulator(str(path))
    log.Reload()
    return [(event.step, event.value) for event in log.Scalars(tag)]


def values(logger: Any, tag: str = "test/score") -> list[tuple[int, float]]:
    """Return the (step, value) of a tag in the log of a logger, in their order."""
    if isinstance(logger, TensorBoardLogger):
        return scalars(logger.path, tag)
    lines = logger.path.read_text().splitlines()
    if isinstance(logger, CSVLogger):
        cells = [line.split(",") for line in lines]
        return [(int(step), float(value)) for step, name, value in cells if name == tag]
    return [(row["step"], row[tag]) for row in map(json.loads, lines) if tag in row]


def rows_in_lines(name: str, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a small run that logs to a file of JSON lines, without that of its params."""
    build(name, logger=JSONLinesLogger(path, training_interval=1)).run()
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]
