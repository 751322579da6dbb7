"""Gradients that are not finite where the plan says "skip": left out, counted, told, and kept in the state."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import NonFiniteError
from tests.contract.test_all_algorithms import ALL, ON_POLICY, STUDENTS, make, trained_parameters, update
from tests.resume.runs import build

SKIP = rl.UpdatePlan(update=rl.UpdateParams(nonfinite="skip"))
NAN = float("nan")


def skipping(name: str) -> Any:
    algorithm = make(name)
    algorithm.attach(SKIP)
    return algorithm


def bad_update(name: str, algorithm: Any) -> rl.UpdateResult:
    """Update from data of which no gradient is finite."""
    if name in ON_POLICY:
        return update(algorithm, reward=torch.full((8, 3), NAN))
    changes = {} if name.startswith("bc") else {"reward": torch.full((16,), NAN)}
    return update(algorithm, weight=torch.full((16,), NAN), **changes)


@pytest.mark.parametrize("name", [name for name in ALL if name not in STUDENTS])  # rewards are nothing to them
def test_every_algorithm_leaves_bad_steps_out_and_goes_on(name: str) -> None:
    algorithm = skipping(name)
    update(algorithm)
    before = trained_parameters(algorithm)
    result = bad_update(name, algorithm)
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(algorithm).items())
    skipped = algorithm.num_skipped_steps
    num_optimizers = len(algorithm._optimizers()) - name.startswith("rnd")  # rewards are not what it predicts
    # TRPO's policy takes one step more, on the whole rollout.
    assert skipped == result.num_gradient_steps * num_optimizers + name.startswith("trpo")
    assert result.td_error is None or torch.isfinite(result.td_error).all()
    after = trained_parameters(algorithm)
    update(algorithm, seed=1)
    assert algorithm.num_skipped_steps == skipped
    assert any(not torch.equal(after[key], value) for key, value in trained_parameters(algorithm).items())
    algorithm.check_faults()


def test_good_steps_are_those_of_an_algorithm_that_raises() -> None:
    one, other = skipping("sac"), make("sac")
    for seed in range(3):
        assert update(one, seed).floats() == update(other, seed).floats()
    assert one.num_skipped_steps == other.num_skipped_steps == 0


def test_a_group_with_a_bad_gradient_is_one_step_that_is_left_out() -> None:
    algorithm = make("bc")
    algorithm.attach(rl.UpdatePlan(update=rl.UpdateParams(nonfinite="skip", accumulate=2)))
    before = trained_parameters(algorithm)
    bad_update("bc", algorithm)
    update(algorithm)
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(algorithm).items())
    assert algorithm.num_skipped_steps == 1
    update(algorithm)
    update(algorithm)
    assert algorithm.optimizer.method.num_steps == 1


def test_the_count_is_kept_in_files_and_not_by_a_later_plan_that_raises(tmp_path: Path) -> None:
    algorithm = skipping("bc")
    bad_update("bc", algorithm)
    algorithm.save(tmp_path / "bc.safetensors")
    other = skipping("bc")
    other.load(tmp_path / "bc.safetensors")
    assert other.num_skipped_steps == 1
    plain = make("bc")
    plain.load(tmp_path / "bc.safetensors")
    plain.check_faults()  # nothing is told that was counted
    copy.deepcopy(algorithm).check_faults()
    algorithm.attach(rl.UpdatePlan())
    update(algorithm)
    with pytest.raises(NonFiniteError):
        bad_update("bc", algorithm)


def test_a_run_tells_how_many_were_skipped(tmp_path: Path) -> None:
    trainer = build("dqn", logger=(logger := rl.JSONLinesLogger(tmp_path / "log.jsonl")))
    params = dataclasses.replace(trainer.params, update=rl.UpdateParams(nonfinite="skip"))
    algorithm = trainer.algorithm
    algorithm.target_critic.register_forward_hook(lambda module, args, output: output * NAN)
    before = trained_parameters(algorithm)
    info = params.create_trainer(algorithm).run()
    assert info.skipped_steps == info.gradient_step > 0
    assert all(torch.equal(before[key], value) for key, value in trained_parameters(algorithm).items())
    logger.close()
    assert f'"update/skipped_steps": {info.skipped_steps}' in (tmp_path / "log.jsonl").read_text()


@pytest.mark.parametrize("name", ["trpo", "sac"])
def test_a_loss_that_is_not_finite_is_not_told(name: str) -> None:
    losses, results = list[str](), list[rl.UpdateResult]()
    callbacks = rl.UpdateCallbacks(
        on_loss=lambda name, loss, step: losses.append(name), after=lambda batch, result: results.append(result)
    )
    algorithm = make(name)
    algorithm.attach(dataclasses.replace(SKIP, callbacks=callbacks))
    bad_update(name, algorithm)
    assert (losses, results) == ([], [])
    update(algorithm)
    assert len(results) > 0
    assert "actor" in losses
