"""How results print: a few lines, no arrays."""

import numpy as np

import rltrainer as rl
from rltrainer.trainers.run_state import Timing


def epoch_stats(number: int) -> rl.EpochStats:
    stats = rl.CollectStats(2000, 2048, np.array([1.0, 3.0] * 50), np.array([4, 6] * 50), 0.25)
    update = rl.UpdateResult({"loss": 0.031234567, "entropy": 0.5}, num_gradient_steps=1600)
    return rl.EpochStats(number, stats, stats, update, Timing(1.5, 0.25, 1.0, 0.25))


def info_stats(best_score: float | None, num_epochs: int) -> rl.InfoStats:
    best = (best_score, best_score, 1.0, 2) if best_score is not None else (None, None, None, None)
    epochs = [epoch_stats(number) for number in range(num_epochs)]
    return rl.InfoStats(3, 20480, 10, 1600, *best, "stop_fn", Timing(1.5, 0.25, 1.0, 0.25), epochs)


def test_an_epoch() -> None:
    collected = "2,048 env steps, 100 episodes, return 2 +- 1, length 5 +- 1, 0.25 s"
    assert str(epoch_stats(3)) == repr(epoch_stats(3)) == (
        f"EpochStats(epoch 3 in 1.5 s; collected {collected}; tested {collected}; "
        "updated 1,600 gradient steps: loss 0.03123, entropy 0.5)"
    )  # fmt: skip
    offline = rl.EpochStats(1, None, None, rl.UpdateResult(num_gradient_steps=0), Timing(1.0))
    assert str(offline) == "EpochStats(epoch 1 in 1 s)"


def test_a_run() -> None:
    assert str(info_stats(475.5, num_epochs=300)).split("\n") == [
        "InfoStats(epoch 3, ended by stop_fn",
        "  best score 475.5 in epoch 2 (return 475.5 +- 1)",
        "  20,480 env steps, 10 update steps, 1,600 gradient steps",
        "  time: total 1.5 s, collect 0.25 s, update 1 s, test 0.25 s",
        "  epochs: a list of 300 EpochStats)",
    ]
    assert "\n  no score\n" in str(info_stats(None, num_epochs=0))
