"""Sweeps: what varies, what is pruned, what fails, what is left after a kill, and what is said of mistakes."""

import errno
import functools
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint.folder_lock import FolderLock
from rltrainer.errors import CheckpointError, ParamsError, RLTrainerError
from rltrainer.loggers import terminal as progress
from rltrainer.tools.runs.processes import Processes
from rltrainer.tools.sweeps.search_space import SearchSpace
from rltrainer.tools.sweeps.study import read_trials
from rltrainer.tools.sweeps.sweep import DEFAULT_RANGES, default_ranges
from rltrainer.tools.sweeps.trial_process import DiskRefusal, TrialJob
from tests.unit.tools.refusals import error_text, refuses
from tests.unit.tools.runs.test_seeds import wait_for
from tests.unit.tools.sweeps.sweep_programs import FAILS_LATE, make_trainer, score, sweep

optuna = pytest.importorskip("optuna")
ROOT = Path(__file__).parents[4]
sweep_quietly = functools.partial(rl.sweep, show_progress=False, num_processes=1)
Capture, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch


def study_in(folder: Path) -> Any:
    """Return a sweep's study as Optuna's own users open it."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.log"))
    return optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))


def test_worse_trials_are_pruned_and_the_best_is_returned(tmp_path: Path, capfd: Capture) -> None:
    result = sweep_quietly(make_trainer, lambda trial: {"height": -trial.number}, folder=tmp_path, num_trials=7)
    assert capfd.readouterr() == ("", "")
    assert [trial.state for trial in result.trials] == ["complete"] * 5 + ["pruned"] * 2
    assert [dict(trial.fields) for trial in result.trials] == [{"height": -number} for number in range(7)]
    assert [trial.score for trial in result.trials] == [6, 5, 4, 3, 2, -3, -4]
    assert result.trials[1].scores == {epoch: epoch - 1 for epoch in range(1, 7)}
    assert result.trials[5].scores == {1: -4, 2: -3}  # a third of the run is waited for
    assert (result.best.number, result.best.score, result.folder) == (0, 6.0, tmp_path)
    for trial, reason in ((result.trials[0], "max_epochs"), (result.trials[5], None)):  # a hook's is in checkpoints
        [folder] = trial.folders.values()
        assert folder.path == tmp_path / f"trial-00{trial.number}" / "seed-0"
        run = rl.open_run(folder.path)
        assert run.stop_reason == reason
        assert not folder.checkpoints.exists()
        assert run.rows("test")["score"][1:].tolist() == list(trial.scores.values())
        assert type(run.load_best()) is rl.PPO
    assert [line for line in (tmp_path / "study.log").read_text().splitlines() if not json.loads(line)] == []
    assert study_in(tmp_path).best_trial.number == 0


def test_the_mean_over_seeds_counts(tmp_path: Path) -> None:
    space = {"height": rl.Uniform(0.0, 1.0)}
    make = functools.partial(make_trainer, max_epochs=2)
    run = functools.partial(sweep_quietly, make, space, folder=tmp_path, num_trials=1, num_seeds=2, seed=4)
    result = run()
    [trial] = result.trials
    height = trial.fields["height"]
    assert trial.score == pytest.approx(height + 4.5 + 2)
    expected = {1: height + 4 + 1, 2: height + 4 + 2, 3: height + (4 + 2 + 5 + 1) / 2, 4: height + 4.5 + 2}
    assert trial.scores == pytest.approx(expected)
    assert {seed: rl.open_run(folder.path).trainer["seed"] for seed, folder in trial.folders.items()} == {4: 4, 5: 5}
    assert run() == result  # at once: nothing is left


def test_a_recipe_takes_fields_wherever_they_belong(tmp_path: Path, capfd: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    recipe = rl.recipes.get("ppo/CartPole-v1").with_fields(num_env_steps=512, max_epochs=2, test_step_num_episodes=2)
    space = {"lr": rl.LogUniform(1e-5, 1e-2), "batch_size": [32, 64], "hidden_sizes": [(8,), (16, 16)],
             "num_envs": range(2, 9, 2)}  # fmt: skip
    result = rl.sweep(recipe, space, folder=tmp_path, num_trials=2, num_processes=2)
    fields = dict(result.best.fields)
    best = result.recipe
    assert 1e-5 <= fields["lr"] <= 1e-2
    assert (best.params.lr, best.trainer["batch_size"]) == (fields["lr"], fields["batch_size"])  # type: ignore[attr-defined]
    assert (best.policy["hidden_sizes"], best.num_envs) == (fields["hidden_sizes"], fields["num_envs"])
    assert best.num_envs in (2, 4, 6, 8)
    assert rl.recipes.recipe_of(result.best.folders[0]) == best
    shown = capfd.readouterr()
    assert re.search(r"trials: 100%\|.*\| 2.00/2 \[.*, best score=[\d.]+\]", shown.err)
    assert re.search(r"^trial 0: complete, score [\d.]+ \(lr=\S+, batch_size=\d+, hidden_sizes=\(", shown.out, re.M)


def test_trials_that_fail_leave_the_others_alone(tmp_path: Path, capfd: Capture) -> None:
    result = sweep_quietly(score, lambda trial: {"height": float(trial.number)}, folder=tmp_path, num_trials=6, seed=1)
    assert [trial.state for trial in result.trials] == ["complete", *["failed"] * 4, "complete"]
    assert [trial.score for trial in result.trials] == [1, None, None, None, None, 6]
    errors = [trial.error or "" for trial in result.trials]
    assert errors[1].endswith("ValueError: 1.0 is too high\n")
    assert errors[2].endswith("exited with code 7 during its run")
    assert errors[3].endswith("ParamsError: sweep.make: must return a trainer, or a score; got 'three' (str)\n")
    assert errors[4].endswith("ParamsError: sweep: the score is nan\n")
    shown = capfd.readouterr().err
    assert all(f"sweep: trial {number} failed (height={number}):\n{errors[number]}" in shown for number in range(1, 5))
    assert sweep_quietly(score, lambda trial: {"height": 9}, folder=tmp_path, num_trials=6, seed=1).best.number == 5


def test_scores_without_a_trainer_are_pruned_between_seeds(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path, "num_trials": 6, "num_seeds": 3, "seed": 1}
    result = sweep_quietly(score, lambda trial: {"height": 100.0 - trial.number}, **options)
    assert [trial.state for trial in result.trials] == ["complete"] * 5 + ["pruned"]
    assert result.trials[0].scores == {1: 101, 2: 101.5}
    assert (result.trials[0].score, result.trials[5].scores) == (102, {1: 96})


@pytest.mark.parametrize(("make", "height", "text"), [
    (score, 1, "ValueError: 1 is too high"),
    (functools.partial(make_trainer, has_tests=False), 0, "make: must make trainers that make test steps; got"),
    (functools.partial(make_trainer, run_folder=rl.RunFolder(Path("a"))), 0, "make trainers without a run_folder"),
])  # fmt: skip
def test_it_is_an_error_if_no_trial_comes_to_its_end(
    make: Any, height: float, text: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"folder": tmp_path / "sweep", "num_trials": 1}
    said = error_text(RLTrainerError, sweep_quietly, make, lambda trial: {"height": height}, **options)
    assert said.startswith("sweep: none of 1 trials came to its end; trial 0:\nTraceback (most recent")
    assert text in said


@pytest.mark.parametrize("victims", ["parent", "all"])
def test_a_sweep_that_is_killed_goes_on_to_the_same_end(victims: str, tmp_path: Path) -> None:
    """Killed in the middle of a trial's second seed: its first is over, and its second goes on from a checkpoint."""
    expected = sweep(tmp_path / "expected", num_seeds=2)
    path, notes = tmp_path / "killed", tmp_path / "killed.notes"
    command = [sys.executable, "-m", "tests.unit.tools.sweeps.sweep_programs", str(path)]
    parent = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        checkpoints = path / "trial-002" / "seed-1" / "checkpoints"
        wait_for(lambda: len(list(checkpoints.glob("checkpoint-*"))) > 2)
    finally:
        parent.kill()
        assert parent.wait(60) == -signal.SIGKILL
    if victims == "all":
        os.kill(int(notes.read_text().splitlines()[-1].split()[0]), signal.SIGKILL)
    found = sweep(path, num_seeds=2)
    for trial, other in zip(found.trials, expected.trials, strict=True):
        assert (trial.state, trial.fields, trial.scores) == (other.state, other.fields, other.scores)
        for seed, folder in trial.folders.items():
            if other.folders[seed].path.exists():
                mine, theirs = (rl.open_run(each.path).rows("update")["loss"] for each in (folder, other.folders[seed]))
                assert mine.tolist() == theirs.tolist()
    assert list(path.rglob("checkpoint-*")) == []
    height = f" {found.trials[2].fields['height']} "
    steps = [line.split()[2] for line in notes.read_text().splitlines() if height in line]
    assert steps.count("0") == 2  # neither seed began anew
    assert len({line.split()[0] for line in notes.read_text().splitlines() if height in line}) == 2


def test_checkpoints_stay_of_trials_that_failed_and_those_of_others_are_removed_after_a_kill(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Killed when the trial was noted as complete, before anything was removed, and in the middle of that."""

    def run() -> rl.SweepResult:
        return sweep_quietly(
            make_trainer, lambda trial: {"height": 5.0 if trial.number else FAILS_LATE}, folder=tmp_path, num_trials=2,
        )  # fmt: skip

    def kill(path: Path) -> None:
        raise SystemExit

    monkeypatch.setattr(sys.modules["rltrainer.tools.sweeps.sweep"], "remove", kill)
    with pytest.raises(SystemExit):
        run()
    failed, complete = rl.open_sweep(tmp_path).trials
    newest = rl.open_run(complete.folders[0].path).newest_checkpoint
    assert newest is not None
    (newest / "trainer.safetensors").unlink()
    monkeypatch.undo()
    result = run()
    assert [trial.state for trial in result.trials] == ["failed", "complete"]
    assert rl.open_run(failed.folders[0].path).newest_checkpoint is not None
    assert not complete.folders[0].checkpoints.exists()
    assert type(rl.load(result.best.folders[0].best)) is rl.PPO


def test_a_seed_decides_what_one_process_tries(tmp_path: Path) -> None:
    def fields(path: str, seed: int) -> list[Any]:
        result = sweep_quietly(score, {"height": rl.Uniform(5.0, 9.0)}, folder=tmp_path / path, seed=seed, num_trials=3)
        return [trial.fields for trial in result.trials]

    first = fields("a", 1)
    assert len({each["height"] for each in first}) == 3
    assert fields("b", 1) == first != fields("c", 2)


def test_more_trials_go_on_and_another_sweep_needs_another_folder(tmp_path: Path) -> None:
    space: dict[str, Any] = {"height": rl.Uniform(5.0, 9.0)}
    run = functools.partial(sweep_quietly, score, folder=tmp_path, num_trials=1)
    first = run(space)
    with open(tmp_path / "study.log", "a") as file:
        file.write('{"op_code": 4, "stu')  # what a kill has left of a line
    assert run(space, num_trials=2).trials[:1] == first.trials
    there = f"{tmp_path / 'sweep.json'}: "
    for arguments, text in (
        ({"space": {"height": rl.Uniform(5.0, 8.0)}},
         "space.height.Uniform: the folder's sweep has [5.0, 9.0], this one"),
        ({"space": {"height": [5, 6]}},
         "space.height: the folder's sweep has {'Uniform': [5.0, 9.0]}, this one [5, 6]"),
        ({"seed": 3}, "seed: the folder's sweep has 0, this one 3. Another sweep needs another folder."),
        ({"num_seeds": 2}, "num_seeds: the folder's sweep has 1, this one 2"),
        ({"make": "ppo/CartPole-v1", "space": {"lr": [1, 2]}},
         "make.live: the folder's sweep has 'score', this one 'nothing'"),
    ):  # fmt: skip
        given: dict[str, Any] = {"make": score, "space": space, "folder": tmp_path, **arguments}
        refuses(CheckpointError, re.escape(there + text), rl.sweep, **given)


def test_trials_that_optuna_was_told_to_try_are_tried(tmp_path: Path) -> None:
    run = functools.partial(sweep_quietly, score, {"height": rl.Uniform(5.0, 9.0)}, folder=tmp_path)
    run(num_trials=1)
    for height in (6.0, 7.0):
        study_in(tmp_path).enqueue_trial({"height": height})
    assert [trial.score for trial in run(num_trials=4).trials[1:3]] == [6.0, 7.0]


class Silent:
    """A parent that nobody hears."""

    def ask(self, question: Any) -> None:
        return None


def fail(seed: int, error: Exception) -> float:
    raise error


def chained(error: Exception, cause: Exception, is_context: bool = False) -> Exception:
    setattr(error, "__context__" if is_context else "__cause__", cause)
    return error


FULL, NOT_ALLOWED = OSError(errno.ENOSPC, "No space left on device", "a"), OSError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize(("error", "is_of_the_disk"), [
    *((OSError(number, "x"), True) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)),
    (chained(CheckpointError("a: could not be written"), FULL), True),
    (chained(ValueError("while it was handled"), chained(KeyError("x"), FULL), is_context=True), True),
    (NOT_ALLOWED, False),
    (chained(CheckpointError("a: could not be written"), NOT_ALLOWED), False),
    (ValueError("1 is too high"), False),
])  # fmt: skip
def test_a_trial_tells_the_disks_errors_from_its_own(error: Exception, is_of_the_disk: bool, tmp_path: Path) -> None:
    job = TrialJob(functools.partial(fail, error=error), {}, {1: tmp_path / "trial" / "seed-1"})
    if not is_of_the_disk:
        with pytest.raises(type(error)):
            job(cast(Any, Silent()))
        return
    found = job(cast(Any, Silent()))
    assert isinstance(found, DiskRefusal)
    assert "in fail\n    raise error" in found.traceback


def in_this_process(self: Any, jobs: Any) -> None:
    """Run the jobs of `Processes`, one after the other."""
    for number, job in jobs:
        self._listener.ended(number, job(Silent()), None)


def fill_the_disk_once(seed: int, height: float, mark: Path) -> float:
    if not mark.exists():
        mark.touch()
        raise FULL
    return height


def test_a_trial_that_the_disk_ended_is_taken_up_again(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Processes, "run", in_this_process)
    make, space = functools.partial(fill_the_disk_once, mark=tmp_path / "mark"), {"height": [2.0, 3.0]}
    sweep_once = functools.partial(sweep_quietly, make, space, folder=tmp_path / "sweep", num_trials=2)
    text = rf"^{tmp_path / 'sweep'}: the disk ended trial 0 \(\[Errno 28\] No space left on device: 'a'\)\. The same "
    refuses(CheckpointError, text, sweep_once)
    assert [trial.state.name for trial in read_trials(tmp_path / "sweep" / "study.log")] == ["RUNNING"]
    assert [(trial.number, trial.state) for trial in sweep_once().trials] == [(0, "complete"), (1, "complete")]


@pytest.mark.parametrize("num_writes", range(8))
def test_a_study_that_cannot_be_written_is_named(num_writes: int, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Processes, "run", in_this_process)
    backend, path = optuna.storages.journal.JournalFileBackend, tmp_path / "sweep"
    append, writes = backend.append_logs, itertools.count()

    def append_until_full(self: Any, logs: Any) -> None:
        if next(writes) >= num_writes:
            raise FULL
        append(self, logs)

    run = functools.partial(sweep_quietly, score, {"height": [5.0, 6.0]}, folder=path, num_trials=3)
    with monkeypatch.context() as patched:
        patched.setattr(backend, "append_logs", append_until_full)
        refuses(CheckpointError, rf"^{path / 'study.log'}: could not be written \(\[Errno 28\] No space", run)
    assert [trial.state for trial in run().trials] == ["complete"] * 3


def test_folders_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch: Patch) -> None:
    """A file, a full disk, a folder that another process writes, a study that is damaged, and one that is a pipe."""
    path = tmp_path / "sweep"

    def check(text: str) -> None:
        refuses(CheckpointError, text, sweep_quietly, score, {"height": [5.0, 6.0]}, folder=path, num_trials=1)

    path.write_text("")
    check(rf"^{path}: could not be written \(")
    path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", lambda *args, **options: fail(0, FULL))
        check(rf"^{path}: could not be written \(")
    path.mkdir()
    lock = FolderLock(path)
    lock.acquire()
    check(re.escape(f"{path}: is written by process {os.getpid()} on "))
    lock.release()
    (path / "study.log").write_text('{"op_code": 4, "study_id": []}\n{"op_code": 0}\n')
    check(re.escape(f"{path / 'study.log'}: expected a study of Optuna's; read"))
    (path / "study.log").unlink()
    os.mkfifo(path / "study.log")
    check("study.log: is a pipe, no regular file")


def test_no_sampler_that_unpickles_reads_the_study(tmp_path: Path) -> None:
    class Cma(optuna.samplers.CmaEsSampler):  # type: ignore[misc]  # which needs a package of its own
        def __init__(self, seed: int | None = None) -> None:
            pass

    class Within(optuna.samplers.RandomSampler):  # type: ignore[misc]  # optuna may not be there
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self._base_sampler = Cma()

    options: dict[str, Any] = {"space": {"height": [5, 6]}, "folder": tmp_path, "num_trials": 1}
    for sampler in (Cma, Within):
        text = "^sweep.sampler: must be none that reads pickles from the study's file"
        refuses(ParamsError, text, sweep_quietly, score, sampler=sampler, **options)


def test_usual_ranges_fit_every_recipe() -> None:
    recipes = [rl.recipes.get(name) for name in rl.recipes.names()]
    assert {recipe.algorithm for recipe in recipes} == set(DEFAULT_RANGES)
    for recipe in recipes:
        SearchSpace(recipe, default_ranges(recipe))


class Reached(Exception):
    """Ends a sweep where its trials would begin."""


def test_a_device(tmp_path: Path, monkeypatch: Patch) -> None:
    lr = {"lr": [1e-3, 1e-2]}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    absent = rl.recipes.get("ppo/CartPole-v1").with_fields(device="cuda:2")
    for made, device in ((absent, None), ("ppo/CartPole-v1", "cuda:2")):  # before a trial fails, and counts
        text = error_text(ParamsError, sweep_quietly, made, lr, folder=tmp_path / "absent", device=device)
        assert text.startswith("sweep.device: must be a device that PyTorch can use here; got 'cuda:2' (str)")
    assert not (tmp_path / "absent").exists()
    seen: list[str] = []

    def run(self: Processes, jobs: Any) -> None:
        seen.append(next(jobs)[1].make.device)
        raise Reached

    monkeypatch.setattr(Processes, "run", run)
    for device in (None, "cuda:1", "cpu"):  # a later call may be on another machine
        with pytest.raises(Reached):
            sweep_quietly("ppo/CartPole-v1", lr, folder=tmp_path, device=device)
    assert seen == ["auto", "cuda:1", "cpu"]
    assert "device" not in json.loads((tmp_path / "sweep.json").read_text())["make"]
