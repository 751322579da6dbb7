"""Batches in files, and back."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rltrainer as rl
from rltrainer.errors import ReplayBufferError
from rltrainer.hooks import BatchRecorder
from rltrainer.state.state_file import write_state
from rltrainer.tree import map_tree, named_leaves
from tests.unit.hooks.fake_run import FakeRun, rollout, transitions


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for field in dataclasses.fields(one):
        mine, its = (dict(named_leaves(getattr(batch, field.name))) for batch in (one, other))
        assert mine.keys() == its.keys(), field.name
        for name in mine:
            assert mine[name].dtype == its[name].dtype
            assert torch.equal(mine[name], its[name]), f"{field.name}{name}"


def fields_of(batch: Any) -> dict[str, Any]:
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def sequences() -> rl.Sequences:
    fields = fields_of(transitions([1.0, 2.0])).items()
    parts = {name: map_tree(lambda x: x.unsqueeze(1), part) for name, part in fields}
    return rl.Sequences(**parts, first=torch.tensor([[True], [False]]))


OBS = {"x": (torch.zeros(2, 3), torch.ones(2, dtype=torch.int64)), "y": torch.zeros(2, 1, dtype=torch.uint8)}


BATCHES = [
    rollout([[1.0, 2.0], [3.0, 4.0]], extra={"log_prob": torch.zeros(2, 2)}),
    transitions([1.0, 2.0], obs=OBS, next_obs=OBS), sequences(),
]  # fmt: skip


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: type(batch).__name__)
def test_a_batch_comes_back_and_any_reader_of_safetensors_finds_the_fields(batch: Any, tmp_path: Path) -> None:
    hook, run = BatchRecorder(tmp_path / "new" / "batches", every=1), FakeRun()
    run.advance()
    assert hook.pre_steps_log(run, batch) is None
    path = tmp_path / "new" / "batches" / "batch_000000001.safetensors"
    assert_equal(batch, BatchRecorder.load(path))
    assert torch.equal(load_file(path)["batch.fields.reward"], batch.reward)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_at_an_interval_and_so_many_files(tmp_path: Path) -> None:
    (tmp_path / "batch_000000001.safetensors").write_text("an older run's")
    hook, run = BatchRecorder(tmp_path, every=2, max_files=2), FakeRun()
    for _ in range(9):
        run.advance()
        hook.pre_steps_log(run, rollout([[1.0]]))
    # of steps 2, 4, 6, 8 the last two; what it did not write stays
    assert names(tmp_path) == [f"batch_00000000{i}.safetensors" for i in (1, 6, 8)]


def test_a_state_continues_and_writes_no_file_twice(tmp_path: Path) -> None:
    one, run = BatchRecorder(tmp_path, every=1, max_files=2), FakeRun()
    run.advance()
    one.pre_steps_log(run, rollout([[1.0]]))
    state = one.state_dict()
    run.advance()
    one.pre_steps_log(run, rollout([[1.0]]))
    other, run = BatchRecorder(tmp_path, every=1, max_files=2), FakeRun()
    other.prepare_load(state)()
    run.advance(training_step=2)  # the second one once more
    other.pre_steps_log(run, rollout([[5.0]]))
    run.advance()
    other.pre_steps_log(run, rollout([[6.0]]))
    assert names(tmp_path) == [f"batch_00000000{i}.safetensors" for i in (2, 3)]
    assert BatchRecorder.load(tmp_path / "batch_000000002.safetensors").reward.item() == 5.0


def test_a_failure_to_write_is_loud(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    hook, run = BatchRecorder(tmp_path / "file", every=1), FakeRun()
    run.advance()
    with pytest.raises(ReplayBufferError, match=r"file/batch_000000001.safetensors: could not be written"):
        hook.pre_steps_log(run, rollout([[1.0]]))


@pytest.mark.parametrize(
    "state",
    [
        {}, {"class": "Path", "fields": {}}, {"class": "Rollout", "fields": {"obs": torch.zeros(1)}},
        {"class": 3, "fields": 1},
    ],
)  # fmt: skip
def test_other_contents_are_refused(state: Any, tmp_path: Path) -> None:
    write_state(tmp_path / "file", "batch", state)
    with pytest.raises(ReplayBufferError, match="file: expected the fields of Rollout or Transitions or Sequences"):
        BatchRecorder.load(tmp_path / "file")


ENDS = {"final_index": torch.tensor([2]), "final_obs": torch.zeros(1, 1)}


@pytest.mark.parametrize(
    ("batch", "changes", "text"),
    [
        (transitions([1.0, 2.0]), {"obs": torch.zeros(3, 2)}, r"obs has shape \(3, 2\), the first axes must be \(2,\)"),
        (transitions([1.0, 2.0]), {"action": torch.zeros(())}, r"action has shape \(\)"),
        (transitions([1.0, 2.0]), {"terminated": torch.zeros(2)}, "terminated: expected torch.bool, found tensor"),
        (transitions([1.0, 2.0]), {"reward": torch.zeros(2).long()}, "reward: expected torch.float32, found tensor"),
        (transitions([1.0, 2.0]), {"reward": {"x": torch.zeros(2)}}, "reward: expected torch.float32, found {'x'"),
        (transitions([1.0, 2.0]), {"index": torch.zeros(2, 1).long()}, r"index has shape \(2, 1\)"),
        (transitions([1.0, 2.0]), {"extra": {"x": torch.zeros(1)}}, r'extra\["x"\] has shape \(1,\)'),
        (transitions([1.0]), {"obs": {"x": 3}}, "obs.x: expected a tensor, found 3"),
        (rollout([[1.0], [2.0]]), ENDS, "final_index: expected positions of its 2 steps"),
        (rollout([[1.0], [2.0]]), {"last_obs": torch.zeros(2, 1)}, r"last_obs has shape \(2, 1\)"),
        (sequences(), {"extra": {"state": torch.zeros(3)}}, r'extra\["state"\] has shape'),
    ],
)  # fmt: skip
def test_fields_that_do_not_fit_are_named(batch: Any, changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    fields = fields_of(batch)
    write_state(tmp_path / "file", "batch", {"class": type(batch).__name__, "fields": fields | changes})
    with pytest.raises(ReplayBufferError, match=f"file: {text}"):
        BatchRecorder.load(tmp_path / "file")
