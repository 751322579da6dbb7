"""Trainings under torchrun of which one rank fails: the other one says why, and what was saved is resumed."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.checkpoint.folder import open_checkpoint
from tests.faults.torchrun import end, start
from tests.faults.training_ranks import Faults, digests, make_trainer
from tests.resume.test_rows import rows

PROGRAM = Path(__file__).with_name("training_ranks.py")
GONE = r"rank 1 of 2 \(pid \d+ on host \S+\) is gone"
TRACEBACK = r"rank {} of 2: Traceback \(most recent call last\):\n.*\n{}\n.*"
WORKERS = {"backend": "workers", "num_workers": 2}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="torchrun ends processes by POSIX signals"),
]


class Training:
    """A training that is over; its text is that of standard error, `ends` has that of each start of each rank."""

    def __init__(self, folder: Path, max_restarts: int = 0, **plan: Any) -> None:
        self.folder = folder
        run = start(PROGRAM, str(folder), "ppo", json.dumps(plan), max_restarts=max_restarts)
        self.text, self.code = end(run, str(folder)), run.returncode
        self.ends = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
        assert [it["num_open"] for it in self.ends.values() if "error" in it] == [0] * self.num_errors

    @property
    def num_errors(self) -> int:
        return sum("error" in it for it in self.ends.values())

    def seconds(self, rank: int) -> float:
        """Return the time from the last fault to the end of a rank."""
        return float(self.ends[f"{rank}-0"]["time"] - (self.folder / "fault").stat().st_mtime)

    def saved(self) -> list[int]:
        """Return the steps of the checkpoints, all of which are intact."""
        paths = sorted((self.folder / "checkpoints").glob("checkpoint-*"))
        return [open_checkpoint(path).manifest.step for path in paths]


def train_alone(folder: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Train in this process, on from the newest checkpoint; return the digests of both shards, and the log."""
    trainer = make_trainer(folder, "ppo", Faults(folder, []), rl.ParallelParams(num_shards=2, exact=True), {})
    trainer.run()
    return digests(trainer), rows(folder / "log.jsonl")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the outcome of a run as one process has it that nothing befalls."""
    return train_alone(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize(
    ("plan", "rank", "cause", "own", "is_in_a_step"),
    [
        # torchrun ends the other one, which waits for nothing.
        ({"faults": [["SIGKILL", 1, 0, 47], ["hang", 0, 0, 45]], "signals": False}, 1, GONE, None, True),
        ({"faults": [["SIGKILL", 1, 0, 47], ["hang", 0, 0, 45]], "envs": WORKERS}, 1, GONE, None, True),
        ({"faults": [["raise", 1, 0, 46]], "envs": WORKERS}, 1, TRACEBACK.format(1, "ValueError: the wheel is off"),
         r"EnvError: env \d failed during step \d+: ValueError: the wheel is off.*", True),
        ({"faults": [["hang", 1, 0, 45]], "timeout": 3.0}, 1,
         r"rank 1 of 2 \(pid \d+ on host \S+\) did not come to a collective operation within 3 s",
         r".*rank 1 of 2 .* within 3 s", True),
        ({"callback": "save_best_fn", "rank": 0}, 0, TRACEBACK.format(0, "ValueError: the callback's"),
         "ValueError: the callback's", False),
    ],
    ids=["killed, busy, no signals", "killed, busy, workers", "raises, workers", "hangs", "save_best_fn"],
)  # fmt: skip
def test_the_other_rank_names_the_one_that_failed(
    plan: dict[str, Any], rank: int, cause: str, own: str | None, is_in_a_step: bool, tmp_path: Path
) -> None:
    run = Training(tmp_path, **plan)
    assert run.code == 1
    its = run.ends[f"{1 - rank}-0"]
    assert re.fullmatch(f"(.*: RankLostError: )?{cause}", its["text"], re.DOTALL), its
    assert its["text"].splitlines()[-1] in run.text
    if own is None:
        assert len(run.ends) == 1
    else:
        failed = run.ends[f"{rank}-0"]
        assert re.fullmatch(own, f"{failed['error']}: {failed['text']}", re.DOTALL), failed
        assert failed["text"].splitlines()[0] in run.text
    if is_in_a_step:
        assert run.seconds(1 - rank) < 25  # on a busy machine too; a step that hangs takes 60
        assert run.saved() == [60]


@pytest.mark.parametrize(
    ("signal", "error", "text"),
    [("SIGTERM", "SystemExit", "143"), ("SIGINT", "KeyboardInterrupt", ""), ("SIGTERM to all", "SystemExit", "143")],
)
def test_all_ranks_save_when_one_is_to_stop(
    signal: str, error: str, text: str, undisturbed: Any, tmp_path: Path
) -> None:
    run = Training(tmp_path, faults=[[signal, 1, 0, 45]])
    assert [(it["error"], it["text"], it["step"]) for it in run.ends.values()] == [(error, text, 5)] * 2
    if signal == "SIGTERM":
        assert re.findall(r"exitcode +: (\S+)", run.text) == ["143", "143"]
    assert "RankLostError" not in run.text
    assert run.saved() == [60, 100]
    assert train_alone(tmp_path) == undisturbed


@pytest.mark.parametrize(("on_save_error", "code", "saved"), [("raise", 1, [60]), ("warn", 0, [60, 180, 240])])
def test_a_full_disk_of_one_rank(
    on_save_error: str, code: int, saved: list[int], undisturbed: Any, tmp_path: Path
) -> None:
    run = Training(tmp_path, on_save_error=on_save_error, faults=[["full disk", 1, 0, 40], ["space again", 1, 0, 65]])
    folder = tmp_path / "checkpoints"
    why = r"rank 1 of 2: OSError: \[Errno 28\] No space left on device"
    newest = f"The newest one is {folder}/checkpoint-0*60"
    assert run.code == code
    assert run.saved() == saved
    for its in run.ends.values():
        if on_save_error == "raise":
            assert its["error"] == "CheckpointError"
            assert re.fullmatch(rf"{folder}: step 120 could not be saved \({why}\)\. {newest}\.", its["text"])
        else:
            assert [[it] for it in undisturbed[0]] == [it["digests"] for it in run.ends.values()]
    assert len(re.findall(rf"RuntimeWarning: .*{why}", run.text)) == (2 if on_save_error == "warn" else 0)


def test_a_training_that_is_killed_ends_as_if_not(undisturbed: Any, tmp_path: Path) -> None:
    run = Training(tmp_path, max_restarts=2, faults=[["SIGKILL", 1, 0, 75], ["SIGKILL", 0, 1, 25]])
    assert run.code == 0
    assert {it: found.get("error") for it, found in run.ends.items()} == {
        "0-0": "RankLostError", "0-2": None, "1-1": "RankLostError", "1-2": None
    }  # fmt: skip
    found, log = undisturbed
    assert [run.ends[f"{rank}-2"]["digests"] for rank in range(2)] == [[it] for it in found]
    assert rows(tmp_path / "log.jsonl") == log
