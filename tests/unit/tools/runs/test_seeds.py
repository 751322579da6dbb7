"""Seeds in processes: results in order, failures that are named, an end for all."""

import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError, RLTrainerError
from rltrainer.loggers import terminal as progress
from tests.unit.tools.refusals import refuses
from tests.unit.tools.runs.seed_programs import describe_process, die_or_return, make_trainer

ROOT = Path(__file__).parents[4]
run_quietly = functools.partial(rl.run_seeds, show_progress=False)


def test_results_are_those_of_runs_one_by_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = run_quietly(functools.partial(make_trainer, folder=tmp_path), seeds=[3, 1, 2])
    assert capfd.readouterr() == ("", "")
    assert [run.seed for run in runs] == [3, 1, 2]
    assert [run.error for run in runs] == [None] * 3
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run in runs:
            assert run.result is not None
            rl.seed(run.seed)
            alone = make_trainer(run.seed)
            alone.params.__dict__.update(verbose=False, show_progress=False)
            expected = alone.run()
            found = [stats.update.metrics["loss"] for stats in run.result.epochs]
            assert found == [stats.update.metrics["loss"] for stats in expected.epochs]
            assert run.result.best_score == expected.best_score
            opened = rl.open_run(tmp_path / str(run.seed))
            assert (opened.stop_reason, opened.trainer["seed"]) == ("max_epochs", run.seed)
            assert opened.command == shlex.join(sys.orig_argv)  # the user's, not that of its process
    finally:
        torch.set_num_threads(threads)


def test_each_has_a_process_of_one_thread_and_is_seeded() -> None:
    runs = run_quietly(describe_process, seeds=(4, 5), num_processes=1)
    (first, threads, *numbers), (second, _, *others) = [run.result for run in runs if run.result is not None]
    assert (len({first, second, os.getpid()}), threads, numbers != others) == (3, 1, True)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        assert numbers == [float(torch.rand(())), float(torch.rand(()))]


def test_a_failing_seed_leaves_the_others_alone(capfd: pytest.CaptureFixture[str]) -> None:
    runs = run_quietly(functools.partial(make_trainer, failing=1), seeds=range(3))
    assert [run.result is None for run in runs] == [False, True, False]
    error = runs[1].error
    assert error is not None
    assert error.startswith("Traceback (most recent call last):")
    assert error.endswith("ValueError: seed 1 is bad\n")
    assert capfd.readouterr().err == f"run_seeds: seed 1 failed:\n{error}\n"
    text = r"(?s)^run_seeds: all 1 seeds failed; seed 1:\nTraceback.*seed 1 is bad"
    refuses(RLTrainerError, text, run_quietly, functools.partial(make_trainer, failing=1), seeds=[1])


def test_who_dies_or_returns_what_cannot_travel_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    runs = run_quietly(die_or_return, seeds=range(3))
    assert [run.result for run in runs] == [0, None, None]
    assert re.fullmatch(r"seed 1 \(pid \d+\) exited with code 7 during its run", runs[1].error or "")
    assert runs[2].error is not None
    assert "Can't pickle local object" in runs[2].error or "Can't get local object" in runs[2].error


def test_one_bar_for_all(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    rl.run_seeds(functools.partial(make_trainer, max_epochs=10, pause=0.1), seeds=range(2))
    shown = capfd.readouterr().err
    last = shown.split("\r")[-1].strip()
    assert re.fullmatch(r"seeds: 100%\|.*\| 2.00/2 \[.*, mean best score=5\]", last), last
    assert any(0 < float(share) < 2 for share in re.findall(r"\| (\d\.\d\d)/2", shown))


def test_what_cannot_travel_or_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = r"^run_seeds.make: must travel to another process; got <function test_what_cannot_travel_.*<locals>.*"
    refuses(ParamsError, f"{text}Define it at the top level of a module or script", run_quietly, lambda seed: seed)
    module = types.ModuleType("only_here")
    exec("def make(seed): return seed", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    text = r"(?s)^run_seeds.make: must travel to another process; the process of seed 0"
    refuses(ParamsError, text, run_quietly, vars(module)["make"], seeds=[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_parent_ends_and_saves_all(number: int, tmp_path: Path) -> None:
    """As Ctrl-C in a terminal, which reaches all processes of the parent's group; or whatever kills it alone."""
    command = [sys.executable, "-m", "tests.unit.tools.runs.seed_programs", str(tmp_path)]
    parent = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True)
    logs = [tmp_path / str(seed) / "logs" / "log.jsonl" for seed in range(2)]
    try:
        wait_for(lambda: all(path.exists() and b'{"kind": "update"' in path.read_bytes() for path in logs))
        os.killpg(parent.pid, number) if number == signal.SIGINT else parent.kill()
        assert parent.wait(60) == -number
    finally:
        parent.kill()
        assert parent.stderr is not None
        parent.stderr.close()
    sizes: list[int] = []

    def has_ended() -> bool:
        sizes.append(sum(path.stat().st_size for path in logs))
        return sizes[-1:] * 5 == sizes[-5:]

    wait_for(has_ended)
    assert not (tmp_path / "2").exists()
    for seed in range(2):
        run = rl.open_run(tmp_path / str(seed))
        assert run.newest_checkpoint is not None
        last = run.rows("update")["step"][-1]
        assert int(run.newest_checkpoint.name.removeprefix("checkpoint-")) == last  # saved where it ended


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_program_without_a_guard_is_told_of_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import rltrainer as rl\ndef make(seed): return seed\nrl.run_seeds(make, [1])\n")
    run = subprocess.run([sys.executable, program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert run.returncode == 1
    assert 'Call it under `if __name__ == "__main__":`' in run.stderr
