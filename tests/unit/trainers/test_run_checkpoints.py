"""When a run is saved, where it goes on, and what becomes of it when a save fails."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.checkpoint import CheckpointStore
from rltrainer.errors import CheckpointError, ParamsError
from tests.resume.runs import build, digest
from tests.unit.trainers.saving import checkpoints, trained

NAMES = ["ppo", "dqn", "offline_iql"]


def test_nothing_is_saved_without(tmp_path: Path, saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build("ppo").run()
    assert saved == []
    assert list(tmp_path.iterdir()) == []


# Epochs of 20 env steps in two training steps; each of these makes two update steps' worth of 6 gradient steps.
@pytest.mark.parametrize(
    ("every", "steps"),
    [
        (rl.Every(1, "epoch"), [20, 40, 60]), (rl.Every(2, "epoch"), [40, 60]), (3, [30, 60]),
        (rl.Every(30, "env_step"), [30, 60]), (rl.Every(25, "env_step"), [30, 50, 60]),
        (rl.Every(1, "training_step"), [10, 20, 30, 40, 50, 60]), (rl.Every(3, "update_step"), [30, 60]),
        (rl.Every(12, "gradient_step"), [20, 40, 60]), (1000, [60]), (rl.Every(1e9, "second"), [60]),
        (rl.Every(1e-9, "second"), [10, 20, 30, 40, 50, 60]),
    ],
)  # fmt: skip
def test_a_run_is_saved_where_that_is_due_and_at_its_end(every: Any, steps: Any, tmp_path: Path, saved: Any) -> None:
    trained("ppo", tmp_path, every=every, keep_best=0).run()
    assert [step for step, _ in saved] == steps


def test_offline_a_training_step_is_a_gradient_step(tmp_path: Path, saved: Any) -> None:
    trained("offline_iql", tmp_path, every=3).run()
    assert [step for step, _ in saved] == [3, 6, 9, 12]
    with pytest.raises(ParamsError, match="OfflineTrainerParams.checkpoint: must have no `every` in env steps; got "):
        trained("offline_iql", tmp_path, every=rl.Every(3, "env_step"))


def test_a_checkpoint_at_the_end_of_an_epoch_has_its_score(tmp_path: Path, saved: Any) -> None:
    scores = iter([0.0, 2.0, float("nan"), 1.0])  # of the initial test step and of three epochs
    trained("ppo", tmp_path, every=1, fields={"compute_score_fn": lambda stats: next(scores)}).run()
    assert repr(saved) == "[(10, None), (20, 2.0), (30, None), (40, nan), (50, None), (60, 1.0)]"


@pytest.mark.parametrize(("keep_best", "steps"), [(1, [20, 60, 80]), (0, [80])])
def test_a_new_best_is_saved_though_nothing_is_due(keep_best: int, steps: Any, tmp_path: Path, saved: Any) -> None:
    scores = iter([0.0, 2.0, 1.0, 3.0, 3.0])
    fields = {"compute_score_fn": lambda stats: next(scores)}
    trained("ppo", tmp_path, 4, fields, every=rl.Every(9, "epoch"), keep_best=keep_best).run()
    assert [step for step, _ in saved] == steps


@pytest.mark.parametrize("name", NAMES)
def test_a_finished_run_saves_nothing_and_goes_on_for_more_epochs(name: str, tmp_path: Path, saved: Any) -> None:
    whole = trained(name, tmp_path)
    whole.run()
    saved.clear()
    again = trained(name, tmp_path)
    result = again.run()
    assert (result.epoch, result.stop_reason, len(result.epochs)) == (3, "max_epochs", 3)
    assert digest(again) == digest(whole)
    assert saved == []
    # Schedules go by the epochs that are planned: the digest of a run of five in one go is another.
    assert [trained(name, tmp_path, 5).run().epoch for _ in range(2)] == [5, 5]


class Killed(Exception):
    pass


def killed_after(trainer: Any, num_steps: int) -> None:
    """Run until an exception leaves a later training step than this."""

    def training_fn(epoch: int, env_step: int) -> None:
        if trainer.state.training_step == num_steps:
            raise Killed

    object.__setattr__(trainer.params, "training_fn", training_fn)
    with pytest.raises(Killed):
        trainer.run()


def test_epochs_by_hand_go_on_and_give_the_directory_back(tmp_path: Path) -> None:
    whole = build("dqn")
    whole.run()
    first = trained("dqn", tmp_path)
    first.execute_epoch()
    second = trained("dqn", tmp_path)  # in the same process: nobody holds the directory
    assert second.execute_epoch().epoch == 2
    third = trained("dqn", tmp_path)
    third.run()
    assert digest(third) == digest(whole)


def test_what_begins_anew_is_not_mixed_with_what_is_there(tmp_path: Path) -> None:
    trained("ppo", tmp_path).run()
    text = (
        rf"^CheckpointParams.folder '{tmp_path}': it holds checkpoints, the newest is checkpoint-\S+60\S*, and a "
        'new run would mix with them. resume="auto" continues from there; a new run takes a folder of its own'
    )
    for act in (trained("ppo", tmp_path).reset, trained("ppo", tmp_path, resume="never").run):
        with pytest.raises(CheckpointError, match=text):
            act()
    assert trained("ppo", tmp_path / "new", resume="never").run().epoch == 3


def test_a_path_is_taken_and_no_other_and_a_restore_by_hand_goes_before(tmp_path: Path) -> None:
    whole = build("dqn")
    whole.run()
    trained("dqn", tmp_path / "one", every=rl.Every(1, "training_step"), keep_last=None).run()
    path = checkpoints(tmp_path / "one")[1]
    branch, by_hand = trained("dqn", tmp_path / "two", resume=path), trained("dqn", tmp_path / "four")
    by_hand.restore(path)
    assert by_hand.state.training_step == 2
    for trainer in (branch, by_hand):
        trainer.run()
        assert digest(trainer) == digest(whole)
    (path / "algorithm.safetensors").unlink()
    with pytest.raises(CheckpointError, match="algorithm.safetensors: missing"):
        trained("dqn", tmp_path / "three", resume=path).run()


def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(tmp_path: Path) -> None:
    whole = build("dqn")
    whole.run()
    killed_after(trained("dqn", tmp_path, every=rl.Every(1, "training_step")), 4)
    (checkpoints(tmp_path)[-1] / "algorithm.safetensors").write_bytes(b"")
    again = trained("dqn", tmp_path)
    with pytest.warns(RuntimeWarning, match="algorithm.safetensors"):
        again.run()
    assert digest(again) == digest(whole)
    for path in checkpoints(tmp_path):
        (path / "algorithm.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError), pytest.warns(RuntimeWarning):
        trained("dqn", tmp_path).run()


def test_a_save_that_fails_ends_the_run_or_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, parts: Any, step: int, score: Any) -> None:
        raise CheckpointError("checkpoint-20: could not be written (No space left on device)")

    whole = build("ppo")
    whole.run()
    monkeypatch.setattr(CheckpointStore, "save", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        trained("ppo", tmp_path).run()
    trainer = trained("ppo", tmp_path, on_save_error="warn")
    text = r'No space left on device\) The run continues: CheckpointParams.on_save_error is "warn".'
    with pytest.warns(RuntimeWarning, match=text):
        trainer.run()
    assert digest(trainer) == digest(whole)


def test_the_best_survives_unless_it_is_beaten(tmp_path: Path) -> None:
    scores = iter([0.0, 5.0, 3.0])
    trained("ppo", tmp_path, 2, {"compute_score_fn": lambda stats: next(scores)}).run()
    best: list[int] = []
    scores = iter([4.0, 6.0])
    fields = {"compute_score_fn": lambda stats: next(scores), "save_best_fn": lambda algorithm: best.append(1)}
    result = trained("ppo", tmp_path, 4, fields).run()
    assert (result.best_score, result.best_epoch, len(best)) == (6.0, 4, 1)


def test_global_random_numbers_go_on_where_a_run_does(tmp_path: Path) -> None:
    drawn: list[float] = []

    def run(folder: Path, max_epochs: int) -> Any:
        trainer = trained("ppo", folder, max_epochs, {"test_fn": lambda *_: drawn.append(torch.rand(()).item())})
        trainer.run()

    run(tmp_path / "whole", 3)
    whole, drawn = drawn, []
    run(tmp_path / "broken", 2)
    run(tmp_path / "broken", 3)
    assert drawn == whole


def test_a_directory_that_was_moved_goes_on(tmp_path: Path) -> None:
    trained("ppo", tmp_path / "here", 2).run()
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert len(trained("ppo", tmp_path / "there").run().epochs) == 3
