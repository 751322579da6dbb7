"""Log to MLflow."""

import importlib.util
import json
import logging
import os
import re
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote

from rltrainer.errors import missing_extra
from rltrainer.loggers.log_state import LoggerState
from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, Row
from rltrainer.types import Load
from rltrainer.validation.field_rules import AnyPath, AnyText, checked

MAX_PARAM = 6000
"""Characters of a param's value; MLflow takes no more."""
MAX_METRICS = 1000
"""Metrics that MLflow takes at once."""


class MLflowLogger(Logger):
    """Write rows as metrics of a run of MLflow, over our steps. Extra `mlflow`.

    What the run was told is among its params, one by one, and whole in the artifact `params.json`.

    A run that is restored, or resumed by `resume_from_log`, continues the same run of the service. Nothing can be
    removed there, so what it has of a metric up to some step is not written again: no value is doubled or missing.

    Args:
        folder: of the counters that `resume_from_log` reads; of the database `mlflow.db`, and of artifacts, where no
            server is named; `mlflow ui --backend-store-uri sqlite:///<folder>/mlflow.db` shows it.
        experiment: to which the run belongs; it is made if there is none.
        name: of the run, as it is shown; None leaves it to MLflow.
        tracking_uri: of the server, or a store; None is MLFLOW_TRACKING_URI, or the folder.
        options: intervals and `strict`, as in `Logger`.

    Raises:
        MissingExtraError: MLflow is not installed, or what it needs for its database.
        ParamsError: an argument breaks its rule.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] = "runs",
        experiment: str = "rltrainer",
        name: str | None = None,
        *,
        tracking_uri: str | None = None,
        **options: Unpack[LoggerOptions],
    ) -> None:
        super().__init__(**options)
        self.folder = Path(os.path.abspath(checked("MLflowLogger", "folder", folder, AnyPath)))
        self.experiment = checked("MLflowLogger", "experiment", experiment, AnyText)
        self.name = checked("MLflowLogger", "name", name, AnyText | None)
        uri = checked("MLflowLogger", "tracking_uri", tracking_uri, AnyText | None)
        self.tracking_uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.folder}/mlflow.db"
        try:
            import mlflow

            if self.tracking_uri.startswith("sqlite:") and importlib.util.find_spec("sqlalchemy") is None:
                raise ImportError("No module named 'sqlalchemy'")
        except ImportError as error:
            raise missing_extra("MLflowLogger", "mlflow", error) from error
        self._mlflow = mlflow
        self._client: Any = None
        self._id: str | None = None
        self._has_begun_before = False
        self._last_steps: dict[str, int] = {}
        self._at_exit: weakref.finalize[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"MLflowLogger({self.tracking_uri!r}, {self.experiment!r}, id={self._id!r})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        run, now = self._opened(), int(time.time() * 1000)
        named = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in values.items() if value is not None}
        metrics = [
            self._mlflow.entities.Metric(name, float(value), now, step)
            for name, value in named.items()
            if step > self._last_step_of(name)
        ]
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(run, metrics=metrics[start : start + MAX_METRICS])

    def _write_params(self, params: Mapping[str, Any]) -> None:
        run = self._opened()
        self._client.log_dict(run, dict(params), "params.json")
        named = [self._mlflow.entities.Param(name, text[:MAX_PARAM]) for name, text in _flat(params)]
        for start in range(0, len(named), 100):
            self._client.log_batch(run, params=named[start : start + 100])

    def _last_step_of(self, name: str) -> int:
        """Return up to which step a run that goes on has a metric; -1 for none."""
        if self._has_begun_before and name not in self._last_steps:
            history = self._client.get_metric_history(self._id, name)
            self._last_steps[name] = max((metric.step for metric in history), default=-1)
        return self._last_steps.get(name, -1)

    def _opened(self) -> str:
        """Return the id of the run, which is made or goes on."""
        client = self._connected()
        if self._id is None:
            tags = {"mlflow.runName": self.name} if self.name else None
            self._id = client.create_run(self._experiment_id(), tags=tags).info.run_id
            logging.getLogger("rltrainer").info("MLflowLogger: run %s at %s", self._id, self.tracking_uri)
        if self._at_exit is None:
            client.update_run(self._id, status="RUNNING")
            self._at_exit = weakref.finalize(self, _terminate, client, self._id)
        return self._id

    def _connected(self) -> Any:
        if self._client is None:
            if self.tracking_uri.endswith(f"{self.folder}/mlflow.db"):
                self.folder.mkdir(parents=True, exist_ok=True)
            with _quiet():
                self._client = self._mlflow.MlflowClient(self.tracking_uri)
        return self._client

    def _experiment_id(self) -> str:
        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment is not None:
            return str(experiment.experiment_id)
        is_ours = self.tracking_uri.startswith("sqlite:")  # which puts artifacts into the current folder else
        artifacts = (self.folder / "artifacts").as_uri() if is_ours else None
        return str(self._client.create_experiment(self.experiment, artifact_location=artifacts))

    def _close(self) -> None:
        at_exit, self._at_exit = self._at_exit, None
        if at_exit is not None:
            at_exit()

    def _counters_file(self) -> Path:
        return self.folder / f"mlflow.{quote(self.experiment, '')}.{quote(self.name or '', '')}.progress.json"

    def _place_name(self) -> str | None:
        return self._id

    def _take_new_place(self) -> None:
        self._move(None)

    def _prepare_files(self, state: LoggerState) -> Load | None:
        return lambda: self._move(state.place)

    def _move(self, run_id: str | None) -> None:
        self._close()
        self._id, self._has_begun_before, self._last_steps = run_id, run_id is not None, {}


def _terminate(client: Any, run_id: str) -> None:
    """Tell MLflow that nobody writes to a run any more; at the end of the program too."""
    client.set_terminated(run_id)


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the params one by one, such as `trainer.max_epochs`, as text; what is no params group as JSON."""
    for name, value in params.items():
        if isinstance(value, Mapping) and "fields" in value:
            yield from _flat(value["fields"], f"{prefix}{name}.")
        elif isinstance(value, Mapping) and not prefix:
            yield from _flat(value, f"{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow from telling that it makes a database; a run prints nothing that nobody asked for."""
    log = logging.getLogger("mlflow.store.db.utils")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)
