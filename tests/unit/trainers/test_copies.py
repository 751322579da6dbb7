"""Copies of trainers go on by themselves, and as the original would have, or say why they cannot."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.resume.runs import build, digest


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda trainer: pickle.loads(pickle.dumps(trainer))])
@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "offline_iql"])
def test_a_copied_trainer_goes_on_as_the_original(name: str, copied: Callable[[Any], Any]) -> None:
    # Learning rate and exploration follow schedules, buffers wrap, normalisers learn.
    trainer = build(name)
    trainer.execute_epoch()
    twin = copied(trainer)
    assert digest(twin) == digest(trainer)
    before = digest(trainer)
    twin.execute_epoch()
    assert digest(trainer) == before
    assert twin.algorithm.policy.progress() == twin._progress()
    trainer.execute_epoch()
    assert digest(twin) == digest(trainer)


def test_a_trainer_that_was_not_started_can_be_copied() -> None:
    trainer = build("dqn", max_epochs=1)
    twin: Any = copy.deepcopy(trainer)
    trainer.run()
    twin.run()
    assert digest(twin) == digest(trainer)


def test_a_trainer_that_writes_a_log_or_checkpoints_cannot_be_copied(tmp_path: Any) -> None:
    for field, value in (("logger", rl.CSVLogger(tmp_path / "log")), ("checkpoint", rl.CheckpointParams(tmp_path))):
        with pytest.raises(ParamsError, match=rf"{field}: must be None in a trainer that is copied; got .*write one"):
            copy.deepcopy(build("dqn", **{field: value}))
