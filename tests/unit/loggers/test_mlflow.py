"""MLflow, really run, with its store of files and with its database: what it tells is what was logged."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.loggers.services import MLflowLogger
from tests.resume.runs import build, digest
from tests.resume.test_resume import cut_at
from tests.unit.loggers.rows import rows_in_lines
from tests.unit.trainers.test_run_log import kill_at_30


@pytest.fixture(autouse=True)
def _mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def logger(store: Path, name: str = "cartpole", **options: Any) -> MLflowLogger:
    store.mkdir(exist_ok=True)
    options = {"strict": True, "training_interval": 1} | options
    return MLflowLogger(store, "experiment", name, tracking_uri=store.as_uri(), **options)


def runs(log: MLflowLogger) -> list[Any]:
    """Return the runs of an experiment, the first first."""
    client = log._connected()
    experiment = client.get_experiment_by_name("experiment")
    return sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.start_time)


def values(log: MLflowLogger, run: Any) -> dict[str, list[tuple[int, float]]]:
    """Return what MLflow has of each metric."""
    client = log._connected()
    return {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
        if "per_second" not in name
    }


def values_of(name: str, path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the same of a run that logs to a file of JSON lines."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows_in_lines(name, path):
        for key, value in row.items():
            if key not in ("kind", "step") and "per_second" not in key and value is not None:
                found.setdefault(key, []).append((row["step"], value))
    return found


@pytest.mark.parametrize("name", ["ppo", "sac", "offline_iql"])
def test_a_run_is_in_its_store(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer, plain = build(name, logger=(log := logger(tmp_path / "store"))), build(name)
    trainer.run()
    (run,) = runs(log)
    assert (run.info.status, run.info.run_name) == ("RUNNING", "cartpole")
    log.close()
    assert capfd.readouterr() == ("", "")
    plain.run()
    assert digest(trainer) == digest(plain)
    assert values(log, run) == values_of(name, tmp_path / "log.jsonl")
    assert runs(log)[0].info.status == "FINISHED"
    told = run.data.params
    assert (told["trainer.max_epochs"], told["versions.rltrainer"]) == ("3", rl.__version__)
    assert json.loads(told["algorithm.lr"]) == json.loads(trainer.algorithm.params.to_json())["fields"]["lr"]
    assert told["command"] == shlex.join(sys.orig_argv)
    (file,) = (tmp_path / "store").rglob("params.json")
    assert json.loads(file.read_text())["trainer"] == json.loads(trainer.params.to_json())


def test_the_database_in_the_folder_is_what_it_takes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    log = MLflowLogger("runs/cartpole", "experiment", strict=True, training_interval=1)
    assert log.tracking_uri == f"sqlite:///{tmp_path}/runs/cartpole/mlflow.db"
    build("ppo", logger=log).run()
    log.close()
    assert capfd.readouterr() == ("", "")
    (run,) = runs(log)
    assert values(log, run) == values_of("ppo", tmp_path / "log.jsonl")
    (file,) = tmp_path.rglob("params.json")
    assert file.is_relative_to(tmp_path / "runs" / "cartpole" / "artifacts")
    assert [path.name for path in tmp_path.iterdir() if path.name != "log.jsonl"] == ["runs"]


def test_a_second_run_is_one_of_its_own(tmp_path: Path) -> None:
    log = logger(tmp_path / "store")
    trainer = build("ppo", logger=log)
    trainer.run()
    trainer.run()
    first, second = runs(log)
    assert [run.info.status for run in (first, second)] == ["FINISHED", "RUNNING"]
    assert len(values(log, first)["update/loss"]) == len(values(log, second)["update/loss"]) == 6
    assert repr(log) == f"MLflowLogger({(tmp_path / 'store').as_uri()!r}, 'experiment', id={second.info.run_id!r})"


@pytest.mark.parametrize("name", ["ppo", "offline_iql"])
def test_a_run_that_was_killed_behind_its_checkpoint_doubles_and_misses_no_value(name: str, tmp_path: Path) -> None:
    whole = values_of(name, tmp_path / "log.jsonl")
    cut_at(build(name, logger=logger(tmp_path / "store")), tmp_path / "checkpoint", 3)
    killed = build(name, logger=logger(tmp_path / "store"))
    killed.restore(tmp_path / "checkpoint")
    killed.execute_epoch()  # further than the checkpoint
    log = logger(tmp_path / "store")
    resumed = build(name, logger=log)
    resumed.restore(tmp_path / "checkpoint")
    resumed.run()
    log.log("new", {"metric": 1.0}, 0)  # of which a run that goes on has nothing yet
    (run,) = runs(log)
    assert values(log, run) == whole | {"new/metric": [(0, 1.0)]}


def test_resume_from_the_log_of_a_killed_run(tmp_path: Path) -> None:
    def made(max_epochs: int, **fields: Any) -> Any:
        return build("ppo", max_epochs, logger(tmp_path / "store"), **fields)

    build("ppo", 1, logger(tmp_path / "store", "another")).run()
    with pytest.raises(KeyboardInterrupt):
        made(3, save_checkpoint_fn=kill_at_30).run()
    trainer = made(3, resume_from_log=True)
    assert (trainer.epoch, trainer.env_step, trainer.state.best.score) == (1, 20, 5.0)
    trainer.run()
    log = trainer.params.logger
    found = values(log, runs(log)[1])
    assert [step for step, _ in found["update/loss"]] == [10, 20, 30, 40, 50, 60]
    assert found["epoch/epoch"] == [(20, 1.0), (40, 2.0), (60, 3.0)]
    assert len(runs(log)) == 2
    assert made(4, resume_from_log=True).epoch == 3


def test_counters_lie_in_the_folder(tmp_path: Path) -> None:
    log = logger(tmp_path / "store", "a/b")
    assert log.read_progress() is None
    log.log("test", {"score": 1.0}, 0)
    assert log.read_progress() is None
    build("ppo", logger=log).run()
    (file,) = (tmp_path / "store").glob("*.progress.json")
    assert file.name == "mlflow.experiment.a%2Fb.progress.json"
    file.write_text("{")
    with pytest.raises(CheckpointError, match=r"a%2Fb.progress.json: expected the counters of a run, as JSON "):
        logger(tmp_path / "store", "a/b").read_progress()


def test_names_and_numbers_that_mlflow_does_not_take(tmp_path: Path) -> None:
    log = logger(tmp_path / "store")
    log.log("mine", {"a (b), 100%": 1, "nan": float("nan"), "inf": float("inf")}, 2**40)
    log.log_params({"long": "x" * 10_000, "nothing": None, "own": {"a": {"b": 1}}})
    (run,) = runs(log)
    found = {name: history[0] for name, history in values(log, run).items()}
    assert repr(sorted(found.items())) == (
        f"[('mine/a _b__ 100_', ({2**40}, 1.0)), ('mine/inf', ({2**40}, inf)), ('mine/nan', ({2**40}, nan))]"
    )
    assert run.data.params == {"long": "x" * 6000, "nothing": "null", "own.a": '{"b": 1}'}


def test_a_program_that_ends_ends_its_run(tmp_path: Path) -> None:
    log = logger(tmp_path / "store")
    program = (
        "import sys; from pathlib import Path; from tests.unit.loggers.test_mlflow import logger\n"
        "log = logger(Path(sys.argv[1])); log.log('test', {'score': 1.0}, 0)\n"
        "print(log._connected().get_run(log._id).info.status)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("RUNNING\n", "")
    assert [run.info.status for run in runs(log)] == ["FINISHED"]
