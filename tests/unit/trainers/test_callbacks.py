"""What callbacks may return, and what is said when they fail."""

from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from tests.unit.trainers.test_order_and_counts import on_policy_trainer


def trainer(**changes: Any) -> rl.OnPolicyTrainer:
    return on_policy_trainer(**({"epoch_num_steps": 10} | changes))


@pytest.mark.parametrize(
    "score", [3, 3.0, np.float32(3), np.int64(3), np.array(3.0), torch.tensor(3.0)], ids=lambda s: type(s).__name__
)
def test_a_score_is_any_number(score: Any) -> None:
    result = trainer(compute_score_fn=lambda stats: score).run()
    assert result.best_score == 3.0
    assert type(result.best_score) is float


@pytest.mark.parametrize("answer", [True, np.bool_(True), np.array(True), torch.tensor(True)])
def test_a_flag_of_numpy_or_torch_stops(answer: Any) -> None:
    result = trainer(stop_fn=lambda score: answer).run()
    assert (result.stop_reason, result.epoch) == ("stop_fn", 1)


class Mine(Exception):
    pass


def fail(*args: Any) -> Any:
    raise Mine("disk full")


@pytest.mark.parametrize(
    "field", ["training_fn", "test_fn", "stop_fn", "compute_score_fn", "save_best_fn", "save_checkpoint_fn"]
)
def test_what_a_callback_raises_goes_on_with_a_note(field: str) -> None:
    with pytest.raises(Mine) as caught:
        trainer(**{field: fail}).run()
    assert str(caught.value) == "disk full"
    assert caught.value.__notes__ == [f"OnPolicyTrainerParams.{field} raised this."]


def test_what_could_not_be_saved_is_not_the_best() -> None:
    failing, saved = [True], []

    def save(algorithm: rl.Algorithm) -> None:
        if failing:
            failing.clear()
            raise Mine("disk full")
        saved.append(True)

    run = trainer(save_best_fn=save)
    with pytest.raises(Mine):
        run.reset()
    assert run.state.best.score is None
    run.execute_epoch()  # the same score as before, and now it is saved
    assert saved == [True]
    assert run.state.best.score == 5.0


@pytest.mark.parametrize("callback", [len, max, print, lambda *args: True, lambda score, more=1: True, [].append])
def test_callables_that_fit(callback: Any) -> None:
    trainer(stop_fn=callback)
