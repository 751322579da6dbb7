"""Seconds of the parts of training."""

import math
import time
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.hooks import LogTiming
from tests.unit.hooks.fake_run import FakeRun, episodes


class Clock:
    """Stands for `time.perf_counter`."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def training_step(
    hook: LogTiming, run: FakeRun, clock: Clock, collect: float, update: float | None, rest: float
) -> Any:
    run.advance()
    clock.now += rest
    run.collect(1.0, seconds=collect)
    clock.now += collect
    if update is not None:
        hook.pre_optim_steps(run)
        clock.now += update
    run.logged.clear()
    hook.post_steps(run)
    return run.logged[0] if run.logged else None


def test_by_hand(clock: Clock) -> None:
    hook, run = LogTiming(every=3), FakeRun()
    hook.setup(run)
    assert training_step(hook, run, clock, 2.0, None, 0.0) is None  # warm-up
    assert training_step(hook, run, clock, 2.0, 5.0, 0.5) is None
    clock.now += 1.25
    hook.test_log(run, episodes(1.0, seconds=1.0))
    found = training_step(hook, run, clock, 2.0, 5.0, 0.25)
    # other: 0.5 + 0.25 and the quarter of a second around the test episodes
    assert found == {"time_collect": 6.0, "time_update": 10.0, "time_test": 1.0, "time_other": 1.0}
    for _ in range(2):
        assert training_step(hook, run, clock, 1.0, 1.0, 0.0) is None
    found = training_step(hook, run, clock, 1.0, 1.0, 0.0)
    assert found == {"time_collect": 3.0, "time_update": 3.0, "time_test": 0.0, "time_other": 0.0}


def test_a_state_goes_on(clock: Clock) -> None:
    one, other, run = LogTiming(every=2), LogTiming(every=2), FakeRun()
    one.setup(run)
    training_step(one, run, clock, 2.0, 5.0, 0.5)
    state = one.state_dict()
    assert state == {"collect": 2.0, "update": 5.0, "test": 0.0, "total": 7.5}
    other.prepare_load(state)()
    clock.now += 1000.0  # between the two runs
    other.setup(run)
    found = training_step(other, run, clock, 2.0, 5.0, 0.0)
    assert found == {"time_collect": 4.0, "time_update": 10.0, "time_test": 0.0, "time_other": 0.5}
    one.reset()
    assert one.state_dict()["collect"] == 0.0


def test_another_state_is_refused() -> None:
    with pytest.raises(CheckpointError, match="LogTiming.collect: expected a number, found 'x'"):
        LogTiming().prepare_load({"collect": "x"})


@pytest.mark.parametrize("value", [-1, 0, math.inf, math.nan, "", None, True, [], 1.5])
def test_the_interval(value: Any) -> None:
    with pytest.raises(
        ParamsError, match=r"LogTiming\.every: must be a positive integer, of training steps, or an Every;"
    ):
        LogTiming(every=value)
    assert LogTiming(every=rl.Every(2, "second")).every == rl.Every(2, "second")
