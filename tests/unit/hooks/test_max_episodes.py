"""A limit on training episodes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.hooks import MaxEpisodes
from tests.resume.runs import build


def run_of(hook: MaxEpisodes, name: str = "a2c") -> Any:
    """Return a trainer whose training steps have 10 env steps: an episode of 5 in each of two envs."""
    trainer = build(name, max_epochs=3)
    return type(trainer)(trainer.algorithm, dataclasses.replace(trainer.params, hooks=(hook,)))


@pytest.mark.parametrize(("limit", "num_steps"), [(1, 10), (2, 10), (3, 20), (4, 20)])
def test_the_run_ends_after_the_training_step_that_reaches_it(limit: int, num_steps: int) -> None:
    result = run_of(MaxEpisodes(limit)).run()
    assert (result.env_step, result.stop_reason) == (num_steps, f"hook: {num_steps // 5} training episodes have ended")


def test_a_limit_that_is_not_reached_and_a_run_without_episodes() -> None:
    assert run_of(MaxEpisodes(10**6)).run().stop_reason == "max_epochs"
    assert run_of(MaxEpisodes(1), "offline_bc").run().stop_reason == "max_epochs"


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    full = run_of(MaxEpisodes(6)).run()
    trainer, restored = run_of(MaxEpisodes(6)), run_of(MaxEpisodes(6))
    trainer.execute_epoch()
    assert trainer.env_step < full.env_step
    trainer.save(tmp_path / "run")
    restored.restore(tmp_path / "run")
    result = restored.run()
    assert (result.env_step, result.stop_reason) == (full.env_step, full.stop_reason)


def test_a_run_that_begins_anew_counts_from_zero() -> None:
    trainer = run_of(MaxEpisodes(3))
    assert trainer.run().env_step == trainer.run().env_step == 20


def test_arguments_and_states() -> None:
    for value in (0, -1, 2.0, True, None, "3"):
        with pytest.raises(ParamsError, match="MaxEpisodes.num_episodes: must be a positive integer; got "):
            rl.MaxEpisodes(value)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(CheckpointError, match="MaxEpisodes.num_ended: expected a non-negative integer, found -1"):
        MaxEpisodes(3).prepare_load({"num_ended": -1})
