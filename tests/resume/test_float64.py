"""Runs in float64 are saved and go on bit for bit; a checkpoint of another format changes nothing."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rltrainer as rl
from rltrainer.errors import CheckpointError
from tests.contract.test_all_algorithms import flat_state
from tests.resume.runs import RUNS, build, digest

SINGLE = [name for name in RUNS if not name.endswith("_float64")]


def in_float64(name: str) -> Any:
    trainer = build(name)
    precision = rl.PrecisionParams(weights="float64")
    return dataclasses.replace(trainer.params, precision=precision).create_trainer(trainer.algorithm)


@pytest.mark.parametrize("name", SINGLE)
def test_a_run_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole, cut, resumed = (in_float64(name) for _ in range(3))
    whole.run()
    cut.execute_epoch()
    cut.save(tmp_path / "checkpoint")
    tensors = load_file(tmp_path / "checkpoint" / "algorithm.safetensors")
    learned = [x.dtype for key, x in tensors.items() if x.dim() and key.endswith(("weight", "bias", "mean", "square"))]
    assert set(learned) == {torch.float64}
    resumed.restore(tmp_path / "checkpoint")
    resumed.run()
    assert digest(resumed) == digest(whole)
    stored = resumed.params.training_collector.rollout() if not name.startswith("offline") else None
    for column in () if stored is None else (stored.obs, stored.reward, *stored.extra.values()):
        assert column.dtype in (torch.float32, torch.int64)


def bits_of(algorithm: Any) -> dict[str, Any]:
    return flat_state(copy.deepcopy(algorithm.state_dict()))


def assert_unchanged(algorithm: Any, before: dict[str, Any]) -> None:
    after = bits_of(algorithm)
    assert after.keys() == before.keys()
    for key, x in after.items():
        assert torch.equal(x, before[key]) if isinstance(x, torch.Tensor) else x == before[key], key
        assert getattr(x, "dtype", None) == getattr(before[key], "dtype", None), key


def test_a_checkpoint_of_another_format_changes_nothing(tmp_path: Path) -> None:
    single, double = build("sac"), in_float64("sac")
    single.save(tmp_path / "single")
    before = bits_of(double.algorithm)
    with pytest.raises(CheckpointError, match=r"OffPolicyTrainerParams\.precision was .* when it was saved and is "):
        double.restore(tmp_path / "single")
    assert_unchanged(double.algorithm, before)


def test_a_restore_that_fails_late_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, trainer = in_float64("sac"), in_float64("sac")
    done.execute_epoch()
    done.save(tmp_path / "checkpoint")
    before = bits_of(trainer.algorithm)

    def fail() -> None:
        raise RuntimeError("no plan")

    monkeypatch.setattr(trainer, "_set_up", fail)
    with pytest.raises(RuntimeError, match="no plan"):
        trainer.restore(tmp_path / "checkpoint")
    assert_unchanged(trainer.algorithm, before)


def test_the_trainer_brings_its_algorithm_to_its_format() -> None:
    trainer = in_float64("ppo")
    parameters = list(trainer.algorithm.policy.parameters())
    assert {p.dtype for p in parameters} == {torch.float64}
    again = dataclasses.replace(trainer.params, precision=rl.PrecisionParams()).create_trainer(trainer.algorithm)
    assert {p.dtype for p in trainer.algorithm.policy.parameters()} == {torch.float32}
    assert all(one is other for one, other in zip(parameters, again.algorithm.policy.parameters(), strict=True))
    again.run()


def test_a_file_in_float64(tmp_path: Path) -> None:
    trainer = in_float64("sac")
    trainer.algorithm.save(tmp_path / "sac")
    algorithm: Any = rl.load(tmp_path / "sac")
    assert_unchanged(algorithm, bits_of(trainer.algorithm))
    assert algorithm.policy.weight_dtype is rl.load_policy(tmp_path / "sac").weight_dtype is torch.float64
