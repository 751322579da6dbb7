"""A run through ten random faults, slow; and that what breaks a promise is seen: the whole is `make chaos`."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.checkpoints import DAMAGES, checkpoints_in, damage, newest_intact, repair
from benchmarks.faults.conductor import Run, Tally
from benchmarks.faults.fault import Fault, failed, stopped
from benchmarks.faults.kinds import KINDS
from benchmarks.faults.process import Life

WAY = {1: ["0", "a"], 2: ["20", "b"], 3: ["40", "c"], 0: ["end", "rows"]}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")


@pytest.mark.slow  # when a fault strikes depends on time
def test_ten_faults() -> None:
    legs = ["--leg", "off-policy, workers", "--leg", "offline"]
    command = [sys.executable, "-m", "benchmarks.chaos", "--faults", "10", "--epochs", "6", *legs]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    pattern = r"^10 faults: (\d+) ended as promised, (\d+) came too late .*, 0 did not"
    found = re.search(pattern, run.stdout, re.MULTILINE)
    assert found is not None, run.stdout
    assert int(found[1]) >= 5
    for leg in ("off-policy, workers", "offline"):
        (row,) = re.findall(rf"^\| {leg} \|(.*)\|$", run.stdout, re.MULTILINE)
        *_, num_finished, num_equal, _ = map(int, row.split("|"))
        assert 1 <= num_finished == num_equal


def write_checkpoint(folder: Path, serial: int, rows: bytes) -> Path:
    """Write what has the format of a checkpoint, with rows that others may share."""
    path, name = folder / f"checkpoint-{serial:012d}", f"buffer-0-{serial}.safetensors"
    members = {"a.safetensors": b"first", "b.safetensors": b"another one"}
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    path.mkdir()
    for file, content in members.items():
        (path / file).write_bytes(content)
    (folder / "rows" / name).write_bytes(rows)
    manifest = {"files": entries(members), "rows": {"b": entries({name: rows})}, "serial": serial, "step": 20 * serial}
    checksum = sha256(json.dumps(manifest).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest | {"checksum": checksum}))
    return path


def entries(contents: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    return {name: {"size": len(found), "sha256": sha256(found).hexdigest()} for name, found in contents.items()}


def newest_path(folder: Path) -> Path | None:
    newest = newest_intact(checkpoints_in(folder))
    return None if newest is None else newest.path


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_damage_is_seen_and_repaired(kind: str, tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / str(seed)
        older, newer = (write_checkpoint(folder, serial, b"of the buffer%d" % serial) for serial in (1, 2))
        assert [each.path for each in checkpoints_in(folder)] == [newer, older]
        assert newest_path(folder) == newer
        contents = damage(kind, checkpoints_in(folder)[0], random.Random(seed))
        assert newest_path(folder) == older
        repair(contents)
        assert newest_path(folder) == newer


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run with a checkpoint of its first training step."""
    run = Run("on-policy", tmp_path / "run", tmp_path / "saved", 1, WAY, Tally())
    write_checkpoint(run.saved, 1, b"of the buffer")
    run.note_damage()
    run.at_start = run.checkpoints()
    return run


def life_of(run: Run, notes: list[str], stderr: str = "", status: int = 143) -> Life:
    """Return a life that is over."""
    life = Life(lambda: None, run.folder / "journal-1", run.folder / "stderr-1", pid=2**30, status=status)
    life.journal.write_text("".join(f"{note}\n" for note in notes))
    life.errors.write_text(stderr)
    return life


def problems(run: Run, notes: list[str], stderr: str = "", status: int = 143) -> list[str]:
    return list(run._problems(life_of(run, notes, stderr, status), Fault(random.Random(1), run.leg)))


GOOD = ["step 2 20 b", "stop 0"]


@pytest.mark.parametrize(("notes", "stderr", "expected"), [
    (["step 2 20 x"], "", "training step 2 is not that of the undisturbed run"),
    (["step 1 0 a"], "", "checkpoint-000000000001 is the newest that is whole, but the run went on from step 0"),
    ([*GOOD, "step 3 40 c", "done end other 0 0"], "", "the end is not that of the undisturbed run"),
    ([*GOOD, "step 3 40 c", "done end rows 0 7"], "", "['7'] transitions in the buffer are not what the env does"),
    (GOOD, "x.py:3: UserWarning: envs [0] start a new episode\n", "a warning that nothing explains: envs [0]"),
    (GOOD, "Exception ignored in: <function>\n", "an exception had nowhere to go"),
    (GOOD, "Traceback (most recent call last):\n", "a traceback of nothing that ended the run"),
    (GOOD, "Timeout (0:00:40)!\n", "the life did not end"),
])  # fmt: skip
def test_what_a_life_may_not_do_is_seen(notes: list[str], stderr: str, expected: str, run: Run) -> None:
    write_checkpoint(run.saved, 2, b"of the buffer")
    found = problems(run, notes, stderr)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(("do", "expected"), [
    (lambda saved: (saved / ".checkpoint-7.new").mkdir(), ["['.checkpoint-7.new'] were left behind"]),
    (lambda saved: (saved / "checkpoint-000000000001" / "a.safetensors").write_bytes(b"FIRST"),
     ["a.safetensors is damaged, and nobody has damaged it", "was changed after it was written"]),
    (lambda saved: [write_checkpoint(saved, serial, b"of the buffer") for serial in range(3, 7)],
     ["6 checkpoints, of which the newest 3 and the best were to stay"]),
])  # fmt: skip
def test_what_a_life_may_not_leave_is_seen(do: Callable[[Path], None], expected: list[str], run: Run) -> None:
    assert problems(run, GOOD) == ["1 training steps are lost, expected at most 0"]
    write_checkpoint(run.saved, 2, b"of the buffer")
    assert problems(run, GOOD) == []
    assert problems(run, [*GOOD, "step 3 40 c", "done end rows 0 0"], status=0) == []
    assert (run.tally.finished, run.tally.equal) == (1, 1)
    do(run.saved)
    found = problems(run, GOOD)
    assert [text in problem for problem, text in zip(found, expected, strict=True)] == [True] * len(expected)


def test_processes_that_stay_are_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.faults.conductor.GRACE", 0.3)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as orphan:
        run.watch(Life(lambda: None, run.folder / "journal-1", run.folder / "stderr-1", pid=orphan.pid))
        assert list(run.orphans()) == []
        time.sleep(0.5)
        assert list(run.orphans(waits=True)) == [f"processes [{orphan.pid}] of a life that is over are still there"]
        os.kill(orphan.pid, signal.SIGKILL)


def test_wrong_ends_are_seen(run: Run) -> None:
    error = "Traceback:\nrltrainer.errors.EnvError: env 1 failed\n"
    assert list(failed(life_of(run, GOOD, error, 1), "EnvError: env 1")) == []
    assert list(failed(life_of(run, GOOD, error, 143), "EnvError: env 1")) != []
    assert list(failed(life_of(run, GOOD, error, 1), "EnvError: env 2")) != []
    assert list(stopped(life_of(run, GOOD, "", 143))) == []
    assert list(stopped(life_of(run, ["done end rows 0 0"], "", 143))) != []
    (problem,) = stopped(life_of(run, GOOD, error, 1))
    assert problem == "expected exit status 143, found 1: 'EnvError: env 1 failed'"


def test_kinds_have_names_of_their_own_and_are_counted() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert f"500 random faults of {len(KINDS)} kinds" in (Path(__file__).parents[2] / "docs/guarantees.md").read_text()
