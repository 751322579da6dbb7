"""What a run chooses for itself: compilation and threads; chosen once, said, restored, kept on a resume."""

import dataclasses
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.nets import linear
from rltrainer.trainers import torch_settings
from rltrainer.trainers.torch_settings import choose_num_threads
from tests.resume.runs import build


def test_threads_are_chosen_by_the_work_of_a_gradient_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert choose_num_threads("auto", "auto", 10_000 * 256) == 1
    assert choose_num_threads("auto", "auto", 217_000 * 256) == 2
    assert choose_num_threads("auto", "auto", 10_000_000 * 256) == 4
    assert choose_num_threads(3, 3, 10**9 * 256) == 3
    assert choose_num_threads(None, None, 10_000 * 256) is None


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_as_before")
@pytest.mark.parametrize(("choice", "inside"), [("auto", 1), (3, 3), (None, 2)])
def test_threads_are_set_while_training_and_restored(choice: str | int | None, inside: int) -> None:
    torch.set_num_threads(2)
    trainer, seen = noting_threads(runtime=rl.RuntimeParams(num_threads=choice))
    trainer.run()
    assert set(seen) == {inside}
    assert torch.get_num_threads() == 2


def noting_threads(**fields: Any) -> tuple[Any, list[int]]:
    """Return a trainer, and how many threads its training steps have."""
    seen: list[int] = []
    return build("ppo", training_fn=lambda epoch, env_step: seen.append(torch.get_num_threads()), **fields), seen


@pytest.fixture
def _work_for_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(torch_settings, "WORK_PER_THREAD", 1)


@pytest.mark.usefixtures("_threads_as_before", "_work_for_four")
@pytest.mark.parametrize(("num_set", "inside"), [(1, 1), (2, 2), (3, 3), (8, 4)])
def test_auto_takes_no_more_threads_than_are_set(num_set: int, inside: int) -> None:
    trainer, seen = noting_threads()
    torch.set_num_threads(num_set)
    trainer.run()
    assert set(seen) == {inside}
    assert torch.get_num_threads() == num_set


@pytest.mark.usefixtures("_threads_as_before", "_work_for_four")
def test_a_resumed_run_takes_no_more_threads_than_are_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.set_num_threads(4)
    first, seen = noting_threads()
    first.execute_epoch()
    first.save(tmp_path / "checkpoint")
    assert set(seen) == {4}
    # More now: the run keeps its number. Fewer: it takes those, and says so. Even fewer after `restore`: those.
    for at_restore, at_run, inside in ((8, 8, 4), (2, 8, 2), (8, 3, 3)):
        torch.set_num_threads(at_restore)
        again, seen = noting_threads()
        caplog.clear()
        again.restore(tmp_path / "checkpoint")
        text = "was saved with 4 torch threads and continues with the 2 that are set"
        assert (text in caplog.text) == (at_restore == 2)
        torch.set_num_threads(at_run)
        again.execute_epoch()
        assert set(seen) == {inside}
        assert torch.get_num_threads() == at_run


def test_short_runs_are_not_compiled_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    trainer = build("sac")
    with caplog.at_level(logging.INFO, "rltrainer"):
        trainer.reset()
    assert not trainer.algorithm.is_compiled
    assert "compile='auto': gradient steps run uncompiled (" in caplog.text


@pytest.mark.parametrize(("name", "planned"), [("ppo", 36), ("sac", 17), ("offline_iql", 12)])
def test_planned_gradient_steps_are_those_that_are_taken(name: str, planned: int) -> None:
    trainer = build(name)
    assert trainer.params.planned_num_gradient_steps == planned
    assert trainer.run().gradient_step == planned


def test_long_runs_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.compile", lambda step, **options: step)
    algorithm = build("sac").algorithm
    for num_steps, is_compiled in ((49_999, False), (50_000, True), (None, False)):
        algorithm.attach(rl.UpdatePlan(num_gradient_steps=num_steps))
        assert algorithm.is_compiled is is_compiled
        assert algorithm.plan.runtime.compile is is_compiled


def test_what_was_chosen_is_kept_on_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build("ppo")
    trainer.execute_epoch()
    trainer.save(tmp_path / "checkpoint")
    longer = build("ppo", max_epochs=1_000_000)
    assert longer.params.planned_num_gradient_steps > 50_000  # would be compiled
    longer.restore(tmp_path / "checkpoint")
    assert not longer.algorithm.is_compiled


def test_the_library_of_large_products_is_chosen_said_kept_and_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def trainer_that_notes(choice: Any) -> tuple[rl.OnPolicyTrainer, list[bool]]:
        seen: list[bool] = []
        made = build(
            "ppo", runtime=rl.RuntimeParams(matrix_library=choice), logger=rl.JSONLinesLogger(tmp_path / "log.jsonl"),
            training_fn=lambda epoch, env_step: seen.append(linear._uses_onednn),
        )  # fmt: skip
        return made, seen

    monkeypatch.setattr(linear, "_HAS_ONEDNN", True)
    before = linear._uses_onednn
    for choice, inside in (("torch", False), ("onednn", True)):
        trainer, seen = trainer_that_notes(choice)
        trainer.execute_epoch()
        assert set(seen) == {inside}
        assert linear._uses_onednn is before

    monkeypatch.setattr(linear, "_FASTER", "onednn")
    first, _ = trainer_that_notes("auto")
    with caplog.at_level(logging.INFO, "rltrainer"):
        first.execute_epoch()
    assert "matrix_library='auto': large float32 products on the CPU are left to 'onednn'" in caplog.text
    told = json.loads(first.params.logger.path.read_text().splitlines()[0])
    assert told["runtime"]["fields"]["matrix_library"] == "onednn"
    first.save(tmp_path / "checkpoint")
    monkeypatch.setattr(linear, "_FASTER", "torch")  # as on another machine
    resumed, seen = trainer_that_notes("auto")
    resumed.restore(tmp_path / "checkpoint")
    resumed.run()
    assert set(seen) == {True}


def test_a_run_with_cuda_graphs_goes_on_where_there_are_none(tmp_path: Path) -> None:
    trainer = build("ppo")
    trainer.execute_epoch()
    trainer.state.runtime = dataclasses.replace(trainer.state.runtime, cuda_graph=True)  # as on a CUDA device
    trainer.save(tmp_path / "checkpoint")
    resumed = build("ppo")
    resumed.restore(tmp_path / "checkpoint")
    assert resumed.algorithm.plan.runtime.cuda_graph is False
    resumed.run()


def test_cuda_graphs_are_named_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    for choice, text in ((False, "gradient steps uncompiled, torch"), (True, "uncompiled, as CUDA graphs, torch")):
        trainer = build("ppo", 1, verbose=True)
        trainer.reset()
        trainer.state.phase = "restored"
        trainer.state.runtime = dataclasses.replace(trainer.state.runtime, cuda_graph=choice)
        trainer.run()
        captured = capsys.readouterr()
        assert text in captured.out + captured.err


def test_another_precision_is_another_run(tmp_path: Path) -> None:
    trainer = build("ppo")
    trainer.execute_epoch()
    trainer.save(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"OnPolicyTrainerParams\.precision was .* when it was saved"):
        build("ppo", precision=rl.PrecisionParams(amp="bf16")).restore(tmp_path / "checkpoint")


def test_groups_of_params_survive_json() -> None:
    profiler = rl.ProfilerParams(folder="here", wait=0)
    params = rl.RuntimeParams(compile=False, cuda_graph=True, num_threads=None, profiler=profiler)
    assert rl.RuntimeParams.from_json(params.to_json()) == params
    trainer = build("ppo").params
    live = {field.name: getattr(trainer, field.name) for field in dataclasses.fields(trainer) if not field.compare}
    text = dataclasses.replace(trainer, runtime=params).to_json()
    assert rl.OnPolicyTrainerParams.from_json(text, **live).runtime == params
