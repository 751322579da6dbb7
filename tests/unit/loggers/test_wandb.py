"""Weights & Biases, really run, in its offline mode: what is in its files is what was logged."""

import json
import shlex
import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.interval import Every
from rltrainer.loggers.services import WandbLogger
from tests.resume.runs import build, digest
from tests.resume.test_resume import cut_at
from tests.unit.loggers.rows import rows_in_lines


@pytest.fixture(autouse=True)
def _wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "settings"))


def parts(folder: Path) -> list[Path]:
    """Return W&B's folders of runs, those of one run in order of time."""
    return sorted(folder.glob("wandb/offline-run-*"))


def records(part: Path) -> list[Any]:
    """Return what W&B wrote for a run that was closed; its process may still be writing."""
    (file,) = part.glob("run-*.wandb")
    for _ in range(100):
        found = parsed(file.read_bytes())
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(0.1)
    raise AssertionError(f"{file} does not end")


def parsed(data: bytes) -> list[Any]:
    """Return the records of a file: a header of 7 bytes, then records in blocks of 32 KiB, as LevelDB's logs have."""
    from wandb.proto.wandb_internal_pb2 import Record

    position, found, piece = 7, [], b""
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        piece += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole one, or the last piece of one
            record = Record()
            record.ParseFromString(piece)
            found.append(record)
            piece = b""
    return found


def history(part: Path) -> dict[int, dict[str, Any]]:
    """Return the rows that W&B has, by its own step."""
    rows: dict[int, dict[str, Any]] = {}
    for record in records(part):
        if record.WhichOneof("record_type") == "history":
            values = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
            }
            assert record.history.step.num not in rows
            rows[record.history.step.num] = {name: value for name, value in values.items() if name[0] != "_"}
    return rows


def config(part: Path) -> dict[str, Any]:
    """Return what W&B shows of how the run was made."""
    found: dict[str, Any] = {}
    for record in records(part):
        sent = record.run.config if record.WhichOneof("record_type") == "run" else record.config
        found |= {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in sent.update}
    return found


def logger(folder: Path, **options: Any) -> WandbLogger:
    return WandbLogger(folder, "project", "cartpole", mode="offline", strict=True, training_interval=1, **options)


def rows_of(name: str, path: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of a run that logs to a file of JSON lines, by their step."""
    rows: dict[int, dict[str, Any]] = {}
    for row in rows_in_lines(name, path):
        values = {key: value for key, value in row.items() if key not in ("kind", "step") and value is not None}
        rows[row["step"]] = rows.get(row["step"], {}) | values
    return rows


def without_speed(rows: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {step: {n: v for n, v in row.items() if "per_second" not in n} for step, row in rows.items()}


@pytest.mark.parametrize("name", ["ppo", "sac", "offline_iql"])
def test_a_run_is_in_its_files(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer, plain = build(name, logger=(log := logger(tmp_path / "runs"))), build(name)
    trainer.run()
    log.close()
    assert capfd.readouterr() == ("", "")
    plain.run()
    assert digest(trainer) == digest(plain)
    (part,) = parts(tmp_path / "runs")
    assert without_speed(history(part)) == without_speed(rows_of(name, tmp_path / "log.jsonl"))
    told = config(part)
    assert told["trainer"]["fields"]["max_epochs"] == 3
    assert told["algorithm"]["params"] == type(trainer.algorithm.params).__name__
    assert told["versions"]["rltrainer"] == rl.__version__
    assert told["command"] == shlex.join(sys.orig_argv)
    assert (log.num_dropped, log.state_dict()["last_step"] > 0) == (0, True)


def test_a_restored_run_goes_on_under_its_id(tmp_path: Path) -> None:
    """Offline, each start has a folder; the second begins where the checkpoint was."""
    whole = without_speed(rows_of("ppo", tmp_path / "log.jsonl"))
    first = logger(tmp_path / "runs")
    cut_at(build("ppo", logger=first), tmp_path / "checkpoint", 3)
    first.close()
    second = logger(tmp_path / "runs")
    resumed = build("ppo", logger=second)
    resumed.restore(tmp_path / "checkpoint")
    resumed.run()
    second.close()
    one, two = parts(tmp_path / "runs")
    assert [next(part.glob("run-*")).stem for part in (one, two)] == [f"run-{second.state_dict()['log']}"] * 2
    assert without_speed(history(one)) | without_speed(history(two)) == whole
    assert min(history(two)) == 40
    assert config(two) == {} or "trainer" not in config(two)


def test_a_run_is_resumed_from_its_counters_under_its_id(tmp_path: Path) -> None:
    first, second = logger(tmp_path / "runs"), logger(tmp_path / "runs")
    build("ppo", max_epochs=2, logger=first).run()
    first.close()
    resumed = build("ppo", logger=second, resume_from_log=True)
    assert (resumed.epoch, resumed.env_step) == (2, 40)
    resumed.run()
    second.close()
    assert first.state_dict()["log"] == second.state_dict()["log"]
    assert min(history(parts(tmp_path / "runs")[1])) > 40
    assert [path.name for path in (tmp_path / "runs").glob("*.json")] == ["wandb.project.cartpole.progress.json"]


def test_rows_that_the_service_has_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in plays the service of a run that was killed behind its checkpoint: it has all up to step 20."""
    rows: list[tuple[int, dict[str, Any]]] = []

    class Run:
        step, offline, url, dir = 21, False, "https://wandb.example/run", ""

        def log(self, values: dict[str, Any], step: int) -> None:
            self.step = step
            rows.append((step, values))

        def finish(self) -> None:
            pass

    log = logger(tmp_path)
    given: dict[str, Any] = {}
    monkeypatch.setattr(log._wandb, "init", lambda **options: given.update(options) or Run())
    log.load_state_dict({**log.state_dict(), "log": "0a1b2c3d", "last_step": 10, "has_log": True})
    log.begin_run(Every(1, "update_step"), is_new=False)
    for step in (10, 20, 30, 30, 40):
        log.log("update", {"loss": float(step)}, step, step)
        log.log("test", {"score": float(step)}, step)
    assert [step for step, _ in rows] == [30, 30, 40, 40]
    assert (given["id"], given["resume"], given["name"]) == ("0a1b2c3d", "allow", "cartpole")


def test_arguments_of_its_own_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WandbLogger(tmp_path, mode="disabled", init={"tags": ["sweep"], "group": "g"})
    given: dict[str, Any] = {}
    init = log._wandb.init
    monkeypatch.setattr(log._wandb, "init", lambda **options: given.update(options) or init(**options))
    log.log("test", {"score": 1.0}, 0)
    log.close()
    assert (given["tags"], given["group"], given["project"], given["mode"]) == (["sweep"], "g", "rltrainer", "disabled")


def test_a_service_that_fails_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WandbLogger(tmp_path, mode="offline")

    def fail(**options: Any) -> None:
        raise log._wandb.errors.CommError("no network")

    monkeypatch.setattr(log._wandb, "init", fail)
    with pytest.warns(RuntimeWarning, match=r"WandbLogger\(.*\) could not write the params \(CommError: no network\)"):
        assert build("ppo", logger=log).run().epoch == 3
    assert log.num_dropped > 3
