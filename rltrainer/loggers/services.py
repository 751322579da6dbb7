"""Log to the services Weights & Biases and MLflow, which number runs by ids of their own."""

import importlib.util
import json
import logging
import os
import re
import secrets
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Unpack
from urllib.parse import quote

from rltrainer.errors import ParamsError, importing_extra
from rltrainer.loggers.log_state import LoggerState
from rltrainer.loggers.logger import Kind, Logger, LoggerOptions, Row
from rltrainer.validation.field_rules import AnyPath, AnyText, checked

Mode = Literal["online", "offline", "disabled"]
# MLflow's limit of the characters of a param's value.
MAX_PARAM = 6000
# MLflow's limit of metrics in one request; a tenth of it limits params.
MAX_METRICS = 1000


class ServiceLogger(Logger):
    """Writes rows to a run of a service; a resumed run continues the service's run with the same id.

    `folder` holds the counters for `resume_from_log`; `field` is the argument that names the run's group. An argument
    that breaks its rule is a `ParamsError`, a missing package a `MissingExtraError`.
    """

    # The name of its extra, in the names of files too.
    service: ClassVar[str]

    def __init__(
        self, folder: str | os.PathLike[str], field: str, group: str, name: str | None, **options: Unpack[LoggerOptions]
    ) -> None:
        super().__init__(**options)
        owner = type(self).__name__
        self.folder = Path(checked(owner, "folder", folder, AnyPath))
        self._group = checked(owner, field, group, AnyText)
        self.name = checked(owner, "name", name, AnyText | None)
        self._id: str | None = None

    def _counters_file(self) -> Path:
        return self.folder / f"{self.service}.{quote(self._group, '')}.{quote(self.name or '', '')}.progress.json"

    def _log_name(self) -> str | None:
        return self._id

    def _begin_log(self) -> None:
        self._close()
        self._id = None

    def _continue_files(self, state: LoggerState) -> bool:
        self._close()
        self._id = state.log
        return True


class WandbLogger(ServiceLogger):
    """Writes rows to a run of Weights & Biases, over our steps; its config holds the params. Extra `wandb`.

    A run that is restored, or resumed by `resume_from_log`, continues the same run of the service. Online the service
    reports its last step, and rows that it already has are left out: none is doubled or missing (the row of the last
    step before a kill may be incomplete). Offline each start has a folder of its own under one id; `wandb sync` of all
    folders sends the rows between a checkpoint and a kill twice. Raises as its parent.

    Args:
        folder: of W&B's files, in `<folder>/wandb`, and of the counters for `resume_from_log`; it is made with the
            first row.
        mode: "offline" only writes files, which `wandb sync` sends; None takes W&B's setting (WANDB_MODE), or online.
        init: further arguments of `wandb.init`, such as `{"entity": "lab", "tags": ["sweep"]}`.
    """

    service = "wandb"

    def __init__(
        self,
        folder: str | os.PathLike[str] = "runs",
        project: str = "rltrainer",
        name: str | None = None,
        *,
        mode: Mode | None = None,
        init: Mapping[str, Any] | None = None,
        **options: Unpack[LoggerOptions],
    ) -> None:
        super().__init__(folder, "project", project, name, **options)
        self.project = project
        self.mode = checked("WandbLogger", "mode", mode, Mode | None)
        own = {"dir", "project", "name", "mode", "id", "resume"}
        if not isinstance(init, Mapping | None) or own & set(init or {}):
            rule = f"must be a mapping of arguments of wandb.init without {', '.join(sorted(own))}"
            raise ParamsError.about("WandbLogger", "init", rule, init)
        self._init = dict(init or {})
        with importing_extra("WandbLogger", "wandb"):
            import wandb
        self._wandb = wandb
        self._run: Any = None

    def __repr__(self) -> str:
        return f"WandbLogger({str(self.folder)!r}, {self.project!r}, id={self._id!r})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        run = self._opened()
        # W&B refuses rows of earlier steps than its last one.
        if step >= run.step:  # else the run was killed after its checkpoint, and the service has the row
            run.log({name: value for name, value in values.items() if value is not None}, step=step)

    def _write_params(self, params: Mapping[str, Any]) -> None:
        self._opened().config.update(dict(params), allow_val_change=True)

    def _opened(self) -> Any:
        if self._run is None:
            self._id = self._id or secrets.token_hex(4)
            self.folder.mkdir(parents=True, exist_ok=True)
            quiet = {"settings": self._wandb.Settings(silent=True)}
            self._run = self._wandb.init(
                **(quiet | self._init), dir=str(self.folder), project=self.project, name=self.name, mode=self.mode,
                id=self._id, resume="allow",
            )  # fmt: skip
            place = self._run.dir if self._run.offline else self._run.url
            logging.getLogger("rltrainer").info("WandbLogger: run %s at %s", self._id, place)
        return self._run

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


class MLflowLogger(ServiceLogger):
    """Writes rows as metrics of a run of MLflow, over our steps. Extra `mlflow`. Raises as its parent.

    The params of the run are among MLflow's, one by one, and whole in the artifact `params.json`.

    A run that is restored, or resumed by `resume_from_log`, continues the same run of the service. Nothing can be
    removed there, so values up to a metric's last step are not written again: no value is doubled or missing.

    Args:
        folder: of the counters for `resume_from_log`; without a server also of the database `mlflow.db` and of
            artifacts. `mlflow ui --backend-store-uri sqlite:///<folder>/mlflow.db` shows it.
        tracking_uri: of the server, or a store; None is MLFLOW_TRACKING_URI, or the folder.
    """

    service = "mlflow"

    def __init__(
        self,
        folder: str | os.PathLike[str] = "runs",
        experiment: str = "rltrainer",
        name: str | None = None,
        *,
        tracking_uri: str | None = None,
        **options: Unpack[LoggerOptions],
    ) -> None:
        super().__init__(folder, "experiment", experiment, name, **options)
        self.folder, self.experiment = self.folder.absolute(), experiment
        uri = checked("MLflowLogger", "tracking_uri", tracking_uri, AnyText | None)
        self.tracking_uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.folder}/mlflow.db"
        with importing_extra("MLflowLogger", "mlflow"):
            import mlflow

            if self.tracking_uri.startswith("sqlite:") and importlib.util.find_spec("sqlalchemy") is None:
                raise ImportError("No module named 'sqlalchemy'")
        self._mlflow = mlflow
        self._client: Any = None
        self._continued: dict[str, int] | None = None  # the last steps of the metrics of a run that is continued
        self._at_exit: weakref.finalize[Any, Any] | None = None

    def __repr__(self) -> str:
        return f"MLflowLogger({self.tracking_uri!r}, {self.experiment!r}, id={self._id!r})"

    def _write(self, kind: Kind, values: Row, step: int) -> None:
        run, now = self._opened(), int(time.time() * 1000)
        metrics = []
        # MLflow takes letters, digits and these few signs in names.
        named = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in values.items() if value is not None}
        for name, value in named.items():
            if self._continued is not None and name not in self._continued:
                history = self._client.get_metric_history(run, name)
                self._continued[name] = max((metric.step for metric in history), default=-1)
            if self._continued is None or step > self._continued[name]:
                metrics.append(self._mlflow.entities.Metric(name, float(value), now, step))
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(run, metrics=metrics[start : start + MAX_METRICS])

    def _write_params(self, params: Mapping[str, Any]) -> None:
        run = self._opened()
        self._client.log_dict(run, dict(params), "params.json")
        named = [self._mlflow.entities.Param(name, text[:MAX_PARAM]) for name, text in _flat(params)]
        for start in range(0, len(named), MAX_METRICS // 10):
            self._client.log_batch(run, params=named[start : start + MAX_METRICS // 10])

    def _opened(self) -> str:
        client = self._connected()
        if self._id is None:
            tags = {"mlflow.runName": self.name} if self.name else None
            if (experiment := client.get_experiment_by_name(self.experiment)) is None:
                is_ours = self.tracking_uri.startswith("sqlite:")  # which would put artifacts into the current folder
                artifacts = (self.folder / "artifacts").as_uri() if is_ours else None
                experiment_id = client.create_experiment(self.experiment, artifact_location=artifacts)
            else:
                experiment_id = experiment.experiment_id
            self._id = client.create_run(str(experiment_id), tags=tags).info.run_id
            logging.getLogger("rltrainer").info("MLflowLogger: run %s at %s", self._id, self.tracking_uri)
        if self._at_exit is None:
            client.update_run(self._id, status="RUNNING")
            # Also at the program's end: the service shows an abandoned run as running for ever.
            self._at_exit = weakref.finalize(self, client.set_terminated, self._id)
        return self._id

    def _connected(self) -> Any:
        if self._client is None:
            if self.tracking_uri.endswith(f"{self.folder}/mlflow.db"):
                self.folder.mkdir(parents=True, exist_ok=True)
            # MLflow would announce its new database there: a run prints only its own output.
            log = logging.getLogger("mlflow.store.db.utils")
            before = log.level
            log.setLevel(logging.WARNING)
            try:
                self._client = self._mlflow.MlflowClient(self.tracking_uri)
            finally:
                log.setLevel(before)
        return self._client

    def _close(self) -> None:
        at_exit, self._at_exit = self._at_exit, None
        if at_exit is not None:
            at_exit()

    def _begin_log(self) -> None:
        super()._begin_log()
        self._continued = None

    def _continue_files(self, state: LoggerState) -> bool:
        self._continued = None if state.log is None else {}
        return super()._continue_files(state)


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the params one by one as text, such as `trainer.max_epochs`; JSON if a value is no text."""
    for name, value in params.items():
        if isinstance(value, Mapping) and ("fields" in value or not prefix):
            yield from _flat(value.get("fields", value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)
