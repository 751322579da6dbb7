"""A signal ends a run where it can be saved; a second one at once; handlers are as they were afterwards."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.checkpoint import read_checkpoint
from rltrainer.trainers.run_checkpoints import RunSignals
from tests.fakes import CountingEnv
from tests.resume.runs import build, digest, short_episodes
from tests.unit.trainers.saving import checkpoints, trained

NUMBERS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
NAMES = ["ppo", "dqn", "offline_iql"]


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


class SendsAt(rl.TrainerHook):
    """Sends signals at the begin of an update, the training steps counted from 1."""

    def __init__(self, training_step: int, *numbers: int) -> None:
        self.training_step, self.numbers = training_step, numbers

    def post_steps(self, ctx: rl.TrainerContext) -> None:
        if ctx.count("training_step") == self.training_step:
            send(*self.numbers)


def stop_reason(path: Path) -> Any:
    return read_checkpoint(path)["trainer"]["stop_reason"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training_step", [1, 2, 3, 6])
@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_the_first_signal_finishes_the_training_step_and_saves(
    name: str, training_step: int, number: int, error: Any, tmp_path: Path
) -> None:
    whole = build(name)
    whole.run()
    trainer = trained(name, tmp_path, every=rl.Every(99, "epoch"), fields={"hooks": [SendsAt(training_step, number)]})
    before = [signal.getsignal(each) for each in NUMBERS]
    with pytest.raises(error) as caught:
        trainer.run()
    assert getattr(caught.value, "code", None) == (143 if error is SystemExit else None)
    assert [signal.getsignal(each) for each in NUMBERS] == before
    assert trainer.state.training_step == training_step
    assert stop_reason(checkpoints(tmp_path)[-1]) == "signal"
    again = trained(name, tmp_path)
    result = again.run()
    assert result.stop_reason == "max_epochs"
    assert digest(again) == digest(whole)


class Signalling(CountingEnv):
    """Sends a signal at one step of all that its kind has taken."""

    num_all_steps = 0
    at = 0
    numbers: tuple[int, ...] = (signal.SIGTERM,)

    def step(self, action: Any) -> Any:
        Signalling.num_all_steps += 1
        if Signalling.num_all_steps == Signalling.at:
            send(*Signalling.numbers)
        return super().step(action)


def with_signalling_tests(tmp_path: Path, at: int, *numbers: int, **fields: Any) -> Any:
    """Return a trainer whose test envs send signals; a test step takes one episode of 5 steps."""
    Signalling.num_all_steps, Signalling.at, Signalling.numbers = 0, at, numbers

    def make_envs(num_envs: int, action_space: Any, seed: int | None = None) -> Any:
        made.append(num_envs)
        if len(made) == 2:  # those of the test collector
            return rl.make_vec(lambda: Signalling(truncates=True, action_space=action_space), 1, backend="sync")
        return short_episodes(num_envs, action_space, seed)

    made: list[int] = []
    return trained("ppo", tmp_path, every=rl.Every(99, "epoch"), fields={"make_envs": make_envs, **fields})


# The initial test step takes the steps 1 to 5, that of the first epoch 6 to 10.
@pytest.mark.parametrize("at", [2, 5, 7])
def test_a_test_step_is_broken_off_and_repeated(at: int, tmp_path: Path) -> None:
    whole = with_signalling_tests(tmp_path / "whole", 0)
    whole.run()
    tested: list[int] = []
    trainer = with_signalling_tests(tmp_path / "broken", at, signal.SIGTERM)
    with pytest.raises(SystemExit):
        trainer.run()
    assert Signalling.num_all_steps in (at, at - 1)
    again = with_signalling_tests(tmp_path / "broken", 0, test_fn=lambda epoch, env_step: tested.append(epoch))
    again.run()
    assert tested == ([0, 1, 2, 3] if at <= 5 else [1, 2, 3])
    assert digest(again) == digest(whole)


def test_a_test_step_within_a_training_step_is_made_whole(tmp_path: Path, saved: Any) -> None:
    answers = iter([True, False] * 20)  # each collection is good enough to test, and no test step is
    fields = {"test_in_training": True, "stop_fn": lambda score: next(answers)}
    trainer = with_signalling_tests(tmp_path, 8, signal.SIGTERM, **fields)
    with pytest.raises(SystemExit):
        trainer.run()
    assert Signalling.num_all_steps == 10
    assert trainer.update_step == 1
    assert [step for step, _ in saved] == [10]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_second_signal_stops_at_once(number: int, error: Any, tmp_path: Path) -> None:
    whole = build("dqn")
    whole.run()
    every = rl.Every(1, "training_step")
    trainer = trained("dqn", tmp_path, every=every, fields={"hooks": [SendsAt(4, number, number)]})
    with pytest.raises(error):
        trainer.run()
    again = trained("dqn", tmp_path)
    again.run()
    assert stop_reason(checkpoints(tmp_path)[0]) != "signal"
    assert digest(again) == digest(whole)


def test_a_second_signal_in_a_test_step_saves_nothing(tmp_path: Path, saved: Any) -> None:
    trainer = with_signalling_tests(tmp_path, 7, signal.SIGTERM, signal.SIGTERM)
    with pytest.raises(SystemExit):
        trainer.run()
    assert len(saved) <= 1  # the first of the two may be handled, and all is saved, before the second is sent


def test_sigusr1_saves_and_goes_on(tmp_path: Path, saved: Any) -> None:
    hooks = [SendsAt(3, signal.SIGUSR1)]
    trainer = trained("ppo", tmp_path, every=rl.Every(99, "epoch"), keep_best=0, fields={"hooks": hooks})
    assert trainer.run().epoch == 3
    assert [step for step, _ in saved] == [30, 60]


def test_a_signal_when_all_is_done_ends_the_program_all_the_same(tmp_path: Path) -> None:
    trainer = trained("ppo", tmp_path)
    save = trainer._checkpoints._store.close
    trainer._checkpoints._store.close = lambda: (send(signal.SIGTERM), save())
    with pytest.raises(SystemExit):
        trainer.run()
    assert trained("ppo", tmp_path).run().stop_reason == "max_epochs"


@pytest.mark.parametrize("signals", [False, True])
def test_no_handler_is_installed_without_or_outside_the_main_thread(signals: bool, tmp_path: Path) -> None:
    found: list[Any] = []
    fields = {"training_fn": lambda *_: found.append([signal.getsignal(number) for number in NUMBERS])}
    before = [signal.getsignal(number) for number in NUMBERS]
    trainer = trained("ppo", tmp_path, 1, fields, signals=signals)
    if signals:
        thread = threading.Thread(target=trainer.run)
        thread.start()
        thread.join()
    else:
        trainer.run()
    assert found == [before, before]
    assert len(checkpoints(tmp_path)) == 1


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with RunSignals() as signals:
            send(signal.SIGINT)
            assert signals.num_stops == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_fork_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        with RunSignals() as signals:
            signals._process = -1  # as in a fork
            send(signal.SIGTERM)
            assert (signals.num_stops, received) == (0, [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, before)
