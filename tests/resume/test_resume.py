"""N steps in one run equal k steps, save, restore, N - k steps: bit for bit, at every training step."""

import dataclasses
import functools
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint import read_checkpoint, write_checkpoint
from rltrainer.errors import CheckpointError
from tests.resume.runs import RUNS, build, digest


class Cut(Exception):
    """Ends a run in the middle, as a kill would."""


def cut_at(trainer: Any, path: Path, num_training_steps: int) -> None:
    """Run until this many training steps are done, save there, and go no further."""
    done = 0

    def save(epoch: int, env_step: int, gradient_step: int) -> str:
        nonlocal done
        done += 1
        if done == num_training_steps:
            trainer.save(path)
            raise Cut
        return str(path)

    object.__setattr__(trainer.params, "save_checkpoint_fn", save)
    with pytest.raises(Cut):
        trainer.run()


@functools.cache
def finished(name: str) -> Any:
    """Return the trainer of a whole run. Tests share it: they may save it, and must not change it."""
    trainer = build(name)
    trainer.run()
    return trainer


WITH_FIELDS = ("ppo_binary", "ppo_binary_midway", "ppo_adaptive", "recurrent_ppo_adaptive", "ppo_symmetric")


@pytest.mark.parametrize(("num_training_steps", "name"), [
    *itertools.product([1, 2], ["ppo", "recurrent_ppo", "sac", "dqn_prioritized"]),
    *itertools.product([5], [*RUNS, *WITH_FIELDS]),
])  # fmt: skip
def test_resume_in_process(num_training_steps: int, name: str, tmp_path: Path) -> None:
    """Cut in the middle of the last epoch; one of each kind also in the first one, and at its end.

    `test_mid_episode` breaks off all runs in the first half, too.
    """
    if name == "ppo_episodes" and num_training_steps == 5:
        num_training_steps = 6
    whole = finished(name)
    cut_at(build(name), tmp_path / "checkpoint", num_training_steps)
    resumed = build(name)
    resumed.restore(tmp_path / "checkpoint")
    result = resumed.run()
    assert digest(resumed) == digest(whole)
    assert len(result.epochs) == 3


@pytest.mark.parametrize("name", ["ppo_episodes", "dqn", "offline_iql"])
def test_resume_in_a_new_process(name: str, tmp_path: Path) -> None:
    cut_at(build(name), tmp_path / "checkpoint", 3)
    command = [sys.executable, "-m", "tests.resume.runs", name, str(tmp_path / "checkpoint")]
    root = Path(__file__).parents[2]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    assert output.strip() == digest(finished(name))


@pytest.mark.parametrize("name", ["ppo", "dqn", "offline_bc"])
def test_a_finished_run_returns_at_once_and_continues_if_there_are_more_epochs(name: str, tmp_path: Path) -> None:
    whole = finished(name)
    whole.save(tmp_path / "checkpoint")
    restored = build(name)
    restored.restore(tmp_path / "checkpoint")
    before = digest(restored)
    result = restored.run()
    assert (result.epoch, result.stop_reason, len(result.epochs)) == (3, "max_epochs", 3)
    assert digest(restored) == before == digest(whole)
    longer = build(name, max_epochs=5)
    longer.restore(tmp_path / "checkpoint")
    assert longer.run().epoch == 5


def with_smaller_buffer(trainer: Any) -> Any:
    buffer = trainer.params.buffer
    smaller = rl.ReplayBuffer(80, buffer.observation_space, buffer.action_space, num_envs=2)
    smaller.extend(buffer)
    return rl.OfflineTrainer(trainer.algorithm, dataclasses.replace(trainer.params, buffer=smaller))


REFUSED: list[tuple[str, str, Callable[[Any], Any], str]] = [
    ("ppo", "ppo", lambda t: object.__setattr__(t.params, "batch_size", 8),
     r"OnPolicyTrainerParams.batch_size was 4 when it was saved and is 8 now"),
    ("dqn", "dqn", lambda t: object.__setattr__(t.algorithm.params, "lr", rl.LinearSchedule(0.5)),
     r"DQNParams.lr was 'LinearSchedule\(start=0.01.*and is 'LinearSchedule\(start=0.5"),
    ("offline_iql", "offline_iql", lambda t: t.algorithm.policy.actor.add_module("more", torch.nn.Linear(1, 1)),
     r"more.weight: missing in the saved state"),
    ("ppo", "dqn", lambda t: None, r"expected the parts .*buffer.*, found"),
    ("offline_bc", "offline_bc", with_smaller_buffer,
     r"OfflineTrainerParams.buffer: held 100 transitions when it was saved, holds 80"),
]  # fmt: skip


@pytest.mark.parametrize(("saved", "name", "change", "text"), REFUSED)
def test_a_run_that_differs_is_refused_by_name_and_nothing_changes(
    saved: str, name: str, change: Callable[[Any], Any], text: str, tmp_path: Path
) -> None:
    finished(saved).save(tmp_path / "checkpoint")
    other = build(name)
    other = change(other) or other
    before = digest(other)
    with pytest.raises(CheckpointError, match=text):
        other.restore(tmp_path / "checkpoint")
    assert digest(other) == before


@pytest.mark.parametrize("file", ["algorithm.safetensors", "buffer.safetensors", "manifest.json"])
def test_a_damaged_file_is_named_and_nothing_changes(file: str, tmp_path: Path) -> None:
    finished("dqn").save(tmp_path / "checkpoint")
    path = tmp_path / "checkpoint" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))
    trainer = build("dqn")
    before = digest(trainer)
    with pytest.raises(CheckpointError, match=file.replace(".", r"\.")):
        trainer.restore(tmp_path / "checkpoint")
    assert digest(trainer) == before


def forget_what_led_there(trainer: Any, path: Path) -> None:
    """Write a checkpoint as earlier releases did, without what brings envs to the middle of an episode."""
    trainer.save(path)
    parts = read_checkpoint(path)
    collector = parts["training_collector"]
    collector["adapter"] = {name: collector["adapter"][name] for name in ("is_started", "clock")}
    del collector["episodes"], collector["is_stored"]
    write_checkpoint(path, parts, overwrite=True)


def test_the_best_survives_a_resume(tmp_path: Path) -> None:
    trainer = build("offline_bc")
    trainer.execute_epoch()
    trainer.state.best.score = 1000.0
    trainer.save(tmp_path / "checkpoint")
    saved = []
    other = build("offline_bc")
    object.__setattr__(other.params, "save_best_fn", lambda algorithm: saved.append(1))
    other.restore(tmp_path / "checkpoint")
    assert other.run().best_score == 1000.0
    assert saved == []


def test_resume_from_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    build("ppo", logger=rl.JSONLinesLogger(path)).run()
    trainer = build("ppo", max_epochs=5, logger=rl.JSONLinesLogger(path))
    params = rl.OnPolicyTrainerParams(
        **{**vars(trainer.params), "resume_from_log": True, "test_fn": lambda e, s: tested.append(e)}
    )
    tested: list[int] = []
    continued = rl.OnPolicyTrainer(trainer.algorithm, params)
    assert (continued.epoch, continued.env_step, continued.update_step, continued.gradient_step) == (3, 60, 6, 36)
    result = continued.run()
    # No initial test, and the counters go on.
    assert tested == [4, 5]
    assert (result.epoch, result.env_step, result.best_score, result.best_epoch) == (5, 100, 5.0, 0)


def test_a_log_of_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    trainer = build("ppo", logger=rl.JSONLinesLogger(path))
    params = dataclasses.replace(trainer.params, stop_fn=lambda score: True)
    assert rl.OnPolicyTrainer(trainer.algorithm, params).run().stop_reason == "stop_fn"
    result = rl.OnPolicyTrainer(trainer.algorithm, dataclasses.replace(params, resume_from_log=True)).run()
    assert (result.stop_reason, result.epoch, result.env_step) == ("stop_fn", 1, 20)


def test_loading_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    finished("sac").save(tmp_path / "checkpoint")
    trainer = build("sac")
    before = torch.get_rng_state()
    trainer.restore(tmp_path / "checkpoint")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_env_cut_by_a_restore_cuts_its_trace(tmp_path: Path) -> None:
    trainer = build("dqn")
    trainer.reset()
    trainer.params.training_collector.collect(num_steps=4)  # two of an episode's five steps in each env
    forget_what_led_there(trainer, tmp_path / "checkpoint")
    other = build("dqn")
    with pytest.warns(UserWarning, match="start a new episode"):
        other.restore(tmp_path / "checkpoint")
    other.params.training_collector.collect(num_steps=4)
    sample = other.buffer.sample(200)
    # CountingEnv observes the number of its episode's seed: no transition leads from one episode into another.
    assert torch.equal(sample.obs[:, 0], sample.next_obs[:, 0])
    assert torch.equal(sample.obs[:, 1] + 1, sample.next_obs[:, 1])


def test_a_logger_may_be_added_or_left_out(tmp_path: Path) -> None:
    finished("offline_bc").save(tmp_path / "without")
    with_logger = build("offline_bc", logger=rl.JSONLinesLogger(tmp_path / "log.jsonl"))
    with_logger.restore(tmp_path / "without")
    with_logger.save(tmp_path / "with")
    build("offline_bc").restore(tmp_path / "with")


def save_early(trainer: Any, path: Path, moment: str) -> Any:
    """Return a whole run that was saved before anything was trained."""
    saved: list[int] = []

    def save(*_: Any) -> None:
        if not saved:
            saved.append(trainer.epoch)
            trainer.save(path)

    if moment == "before the run":
        save()
    elif moment == "after reset":
        trainer.reset()
        save()
    else:
        object.__setattr__(trainer.params, moment, save)
    trainer.run()
    assert saved == [0 if moment != "training_fn" else 1]
    return trainer


@pytest.mark.parametrize("name", ["ppo", "ppo_episodes", "sac", "offline_iql"])
@pytest.mark.parametrize(
    ("moment", "seed"),
    [
        ("before the run", 5), ("after reset", 5), ("test_fn", 5), ("save_best_fn", 5), ("training_fn", 5),
        ("before the run", None), ("save_best_fn", None), ("training_fn", None),
    ],
)  # fmt: skip
def test_a_run_saved_before_its_first_step_resumes_as_a_fresh_one(
    name: str, moment: str, seed: int | None, tmp_path: Path
) -> None:
    def fresh() -> Any:
        trainer = build(name)
        object.__setattr__(trainer.params, "seed", seed)
        return trainer

    whole = save_early(fresh(), tmp_path / "checkpoint", moment)
    resumed = fresh()
    resumed.restore(tmp_path / "checkpoint")
    assert len(resumed.run().epochs) == 3
    assert digest(resumed) == digest(whole)
