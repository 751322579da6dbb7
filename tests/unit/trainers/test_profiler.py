"""The profiler: which training steps it records, what it writes, and that it changes nothing."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.profiler

import rltrainer as rl
from tests.resume.runs import build


def profiled(name: str, folder: Path, max_epochs: int = 3, training_fn: Any = None, **fields: Any) -> Any:
    runtime = rl.RuntimeParams(profiler=rl.ProfilerParams(folder=str(folder), **fields))
    return build(name, max_epochs, runtime=runtime, training_fn=training_fn)


def steps_in(folder: Path) -> list[str]:
    """Return the training steps that a trace holds, in order of time."""
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    steps = [each for each in events if each["name"].startswith("ProfilerStep#")]
    return [each["name"] for each in sorted(steps, key=lambda each: each["ts"]) if each.get("cat") == "user_annotation"]


def num_calls(folder: Path, operator: str) -> int:
    (row,) = [line for line in (folder / "operators.txt").read_text().splitlines() if line.split()[:1] == [operator]]
    return int(row.split()[-1])


def test_a_trace_and_a_table_of_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    """An epoch has four training steps; the third and the fourth are recorded."""
    folder = tmp_path / "new" / "profile"
    trainer = profiled("offline_bc", folder, wait=1, warmup=1, active=2)
    trainer.run()
    assert steps_in(folder) == ["ProfilerStep#1", "ProfilerStep#2"]
    assert "Self CPU time total" in (folder / "operators.txt").read_text()
    assert sorted(file.name for file in folder.iterdir()) == ["operators.txt", "trace.json"]
    one = tmp_path / "one"
    profiled("offline_bc", one, wait=1, warmup=1, active=1).run()
    assert num_calls(folder, "aten::addmm") == 2 * num_calls(one, "aten::addmm") > 0


def test_pytorch_has_nothing_to_warn_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2.11 warns at each recording, unless it is asked to keep its events."""
    asked, profile = [], torch.profiler.profile

    def noted(**options: Any) -> Any:
        asked.append(options["acc_events"])
        return profile(**options)

    monkeypatch.setattr(torch.profiler, "profile", noted)
    profiled("offline_bc", tmp_path / "profile", max_epochs=1, wait=0, warmup=1, active=1).run()
    assert asked == [True]
    assert steps_in(tmp_path / "profile") == ["ProfilerStep#1"]


def test_no_test_step_is_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An epoch of two training steps ends first: what was recorded until then is written."""
    profiled("ppo", tmp_path / "long", wait=0, warmup=1, active=10**6).run()
    profiled("ppo", tmp_path / "short", wait=0, warmup=1, active=1).run()
    assert num_calls(tmp_path / "long", "aten::addmm") == num_calls(tmp_path / "short", "aten::addmm")
    with caplog.at_level(logging.WARNING, "rltrainer"):
        profiled("ppo", tmp_path / "none", max_epochs=2, wait=0, warmup=2, active=1).run()
    text = (
        "RuntimeParams.profiler: the epoch ended within the 2 training steps of warm-up; they begin again with the next"
    )
    assert caplog.messages == [text, text]
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("wait", [1, 2])
def test_waiting_goes_on_over_epochs(wait: int, tmp_path: Path) -> None:
    """The second training step is the last of its epoch: a warm-up in it begins anew."""
    trainer = profiled("ppo", tmp_path / "profile", wait=wait, warmup=1, active=1)
    trainer.execute_epoch()
    assert not (tmp_path / "profile").exists()
    trainer.execute_epoch()
    assert steps_in(tmp_path / "profile") == ["ProfilerStep#1"]


def test_each_run_is_recorded_once_and_replaces_nothing(tmp_path: Path) -> None:
    trainer = profiled("ppo", tmp_path / "profile", wait=0, active=1)
    trainer.run()
    first = (tmp_path / "profile" / "trace.json").read_bytes()
    trainer.run()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["profile", "profile-2"]
    assert (tmp_path / "profile" / "trace.json").read_bytes() == first


def test_a_run_that_fails_writes_what_it_has_and_stops_recording(tmp_path: Path) -> None:
    calls = iter([False, False, True])

    def fail(epoch: int, env_step: int) -> None:
        if next(calls):
            raise KeyError("from a callback")

    trainer = profiled("offline_bc", tmp_path / "profile", training_fn=fail, wait=0, warmup=1, active=10)
    with pytest.raises(KeyError, match="from a callback"):
        trainer.run()
    assert steps_in(tmp_path / "profile") == ["ProfilerStep#1", "ProfilerStep#2"]  # the one that failed too
    profiled("ppo", tmp_path / "profile", wait=0, active=1).run()  # no other is running


def test_a_full_disk_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.warns(RuntimeWarning, match=r"^RuntimeParams.profiler: could not write \(\[Errno 28\] No space left"):
        assert profiled("ppo", tmp_path / "profile", wait=0, active=1).run().epoch == 3
