"""Early stopping, look by look, and a limit on training episodes."""

import math
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.hooks import EarlyStopping, MaxEpisodes
from tests.resume.runs import build
from tests.unit.hooks.fake_run import FakeRun, episodes


def looks(hook: EarlyStopping, scores: list[float]) -> int | None:
    """Return after how many test steps the run is to stop; None if it goes on."""
    run = FakeRun(test_collector=object())
    hook.setup(run)
    for i, score in enumerate(scores):
        run.score = score
        run.advance(epoch=1)
        hook.post_steps(run)
        hook.test_log(run, episodes(score))
        if run.stop_reason:
            return i + 1
    return None


@pytest.mark.parametrize(("scores", "options", "stops_after"), [
    ([1, 2, 1.5, 1.9, 5], {"patience": 2}, 4),
    ([1, 2, 1.5, 2.1, 2, 2], {"patience": 2}, 6),
    ([1, 2, 1.5, 2.1, 2], {"patience": 2}, None),
    ([3, 2, 1, 1, 1], {"mode": "min", "patience": 2}, 5),
    ([1, 1.5, 1.5, 2.1], {"min_delta": 1.0, "patience": 2}, 3),
    ([1, 1.5, 2.0, 2.1], {"min_delta": 0.5, "patience": 3}, None),  # 2 is more than 0.5 better than 1
    ([1, 1.5], {"min_delta": 0.5, "patience": 1}, 2),  # exactly 0.5 is no improvement
    ([math.nan, math.nan], {"patience": 2}, 2),
    ([math.nan, 1, math.nan, 2], {"patience": 2}, None),
    ([-math.inf, 1, 2], {"patience": 1}, None),
    ([5, 1, 2, 3, 4, 6], {"patience": 2, "min_looks": 3}, 5),  # the fourth look is the first that counts
    ([5, 1, 6, 1], {"patience": 1, "min_looks": 2}, 4),
    ([1, 0, 0, 0], {"patience": 1, "every": rl.Every(2, "epoch")}, 4),  # looks in the epochs 2 and 4: 0, no better
])  # fmt: skip
def test_scores(scores: list[float], options: dict[str, Any], stops_after: int | None) -> None:
    assert looks(EarlyStopping(**options), scores) == stops_after


def test_a_number_of_updates_is_looked_at_in_its_mean_since_the_last_look() -> None:
    hook = EarlyStopping("loss", "min", patience=1, every=rl.Every(2, "update_step"))
    run, stopped = FakeRun(), []
    for loss in (4.0, 2.0, 5.0, 0.0, 1.0, 4.0):  # means 3, 2.5, 2.5
        run.update(loss=loss)
        hook.post_steps(run)
        stopped.append(run.stop_reason)
    assert stopped == [None] * 5 + ["hook: loss has not improved on 2.5 in 1 looks"]


def test_training_returns_weigh_by_episodes() -> None:
    hook, run = EarlyStopping("return", patience=1), FakeRun()
    for returns, new_epochs in [([1.0], 0), ([4.0, 4.0], 1), ([3.0], 1)]:  # means 3 and 3
        run.collect(*returns)
        run.advance(epoch=new_epochs)
        hook.post_steps(run)
    assert run.stop_reason == "hook: return has not improved on 3 in 1 looks"


def test_an_interval_without_news_is_no_look() -> None:
    hook, run = EarlyStopping("return", patience=1), FakeRun()
    for _ in range(5):
        run.collect()
        run.advance(epoch=1)
        hook.post_steps(run)
    assert run.stop_reason is None


def test_an_unknown_number_names_those_there_are() -> None:
    hook, run = EarlyStopping("los"), FakeRun()
    for _ in range(9):
        run.update(loss=1.0)
        hook.post_steps(run)
    run.update(loss=1.0)
    text = r"EarlyStopping.metric: must be one of score, return, loss; got 'los' \(str\). Did you mean 'loss'?"
    with pytest.raises(ParamsError, match=text):
        hook.post_steps(run)


def run_of(hook: MaxEpisodes, name: str = "a2c") -> Any:
    """Return a trainer whose training steps have 10 env steps: an episode of 5 in each of two envs."""
    return build(name, hooks=(hook,))


@pytest.mark.parametrize(("limit", "num_steps"), [(1, 10), (2, 10), (3, 20), (4, 20)])
def test_the_run_ends_after_the_training_step_that_reaches_it(limit: int, num_steps: int) -> None:
    result = run_of(MaxEpisodes(limit)).run()
    assert (result.env_step, result.stop_reason) == (num_steps, f"hook: {num_steps // 5} training episodes have ended")


def test_a_limit_that_is_not_reached_and_a_run_without_episodes() -> None:
    assert run_of(MaxEpisodes(10**6)).run().stop_reason == "max_epochs"
    assert run_of(MaxEpisodes(1), "offline_bc").run().stop_reason == "max_epochs"
