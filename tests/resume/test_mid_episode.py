"""A run that is broken off in the middle of its envs' episodes goes on by itself: bit for bit, its log too."""

from pathlib import Path
from typing import Any

import pytest

from tests.resume.killed import MORE_RUNS, start
from tests.resume.runs import RUNS, digest
from tests.resume.test_rows import rows


class Broken(Exception):
    """Ends a run in the middle."""


def break_off(trainer: Any, num_steps: int) -> None:
    """Run until so many training steps are done, and one more has begun."""

    def training_fn(epoch: int, env_step: int) -> None:
        if trainer.state.training_step >= num_steps:
            raise Broken

    object.__setattr__(trainer.params, "training_fn", training_fn)
    with pytest.raises(Broken):
        trainer.run()


@pytest.mark.parametrize("num_envs", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(("name", "more"), [*((name, "") for name in RUNS), *MORE_RUNS])
def test_every_run(name: str, more: str, num_envs: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_envs": num_envs, "max_epochs": 5, "more": more}
    whole = start(name, tmp_path / "whole", **options)
    whole.run()
    num_all = whole.state.training_step
    for num_steps in (num_all // 2, num_all - 1):
        break_off(start(name, tmp_path / "broken", **options), num_steps)
    last = start(name, tmp_path / "broken", **options)
    last.run()
    assert digest(last) == digest(whole)
    assert rows(last.params.logger.path) == rows(whole.params.logger.path)
