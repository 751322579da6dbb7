"""The state of hooks in checkpoints."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeInt
from tests.resume.runs import digest
from tests.unit.hooks.fake_run import with_hooks
from tests.unit.hooks.test_points import Recording, Times


@dataclasses.dataclass
class Count:
    count: NonNegativeInt = 0


class Counting(rl.TrainerHook):
    """Counts its training steps in a dataclass."""

    state_class = Count

    def __init__(self, name: str | None = None) -> None:
        self.name, self.state = name, Count()

    @property
    def count(self) -> int:
        return int(self.state.count)

    def post_steps(self, ctx: rl.TrainerContext) -> None:
        self.state.count += 1


class Loading(rl.TrainerHook):
    """Loads its count without a look at it, as hooks of other trainers do."""

    def __init__(self) -> None:
        self.count = 0

    def post_steps(self, ctx: rl.TrainerContext) -> None:
        self.count += 1

    def state_dict(self) -> State:
        return {"count": self.count}

    def load_state_dict(self, state: State) -> None:
        self.count = 10 * state["count"] // 10  # raises where that is no number


def saved(path: Path, *hooks: rl.TrainerHook) -> Any:
    """Return the trainer of a run that was saved after its first epoch."""
    trainer = with_hooks("ppo", *hooks)
    trainer.reset()
    trainer.execute_epoch()
    trainer.save(path)
    return trainer


def test_each_hook_gets_its_own_state_back(tmp_path: Path) -> None:
    hooks = [Counting(), Counting(), Counting("third")]
    trainer = saved(tmp_path / "run", *hooks)
    hooks[1].state.count, hooks[2].state.count = 7, 9
    trainer.save(tmp_path / "run", overwrite=True)
    resumed = [Counting("third"), Counting(), Counting()]  # in another order: their names stay
    again = with_hooks("ppo", *resumed)
    again.restore(tmp_path / "run")
    assert [hook.count for hook in resumed] == [9, 2, 7]
    again.run()
    assert [hook.count for hook in resumed] == [13, 6, 11]


def test_a_restore_reads_the_state_of_a_hook_once(tmp_path: Path) -> None:
    class Once(Counting):
        num_reads = 0

        def prepare_load(self, state: State) -> Load:
            self.num_reads += 1
            return super().prepare_load(state)

    saved(tmp_path / "run", Once())
    hook = Once()
    with_hooks("ppo", hook).restore(tmp_path / "run")
    assert (hook.num_reads, hook.count) == (1, 2)


def test_a_hook_may_just_load_its_state(tmp_path: Path) -> None:
    saved(tmp_path / "run", Loading())
    hook = Loading()
    again = with_hooks("ppo", hook)
    again.restore(tmp_path / "run")
    assert hook.count == 2
    again.run()
    assert hook.count == 6


def test_a_hook_that_cannot_load_its_state_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    trainer = saved(tmp_path / "run", Loading())
    trainer.params.hooks[0].count = "many"
    trainer.save(tmp_path / "run", overwrite=True)
    other = with_hooks("ppo", Loading())
    before = digest(other)
    with pytest.raises(TypeError, match="unsupported operand"):
        other.restore(tmp_path / "run")
    assert digest(other) == before


def test_a_run_begins_with_hooks_that_know_nothing() -> None:
    hook = Counting()
    trainer = with_hooks("ppo", hook, max_epochs=1)
    trainer.run()
    trainer.run()
    assert hook.count == 2


def test_hooks_that_only_read_may_come_and_go(tmp_path: Path) -> None:
    class Reading(rl.TrainerHook):
        def post_steps(self, ctx: rl.TrainerContext) -> None:
            return None

    saved(tmp_path / "with", Reading(), Counting())
    saved(tmp_path / "without")
    for path, hooks in (("with", []), ("without", [Counting()])):
        resumed = with_hooks("ppo", *hooks)
        resumed.restore(tmp_path / path)
        assert resumed.run().epoch == 3


@pytest.mark.parametrize(("before", "after"), [([Times(2.0)], []), ([], [Times(2.0)]), ([Times(2.0)], [Recording([])])])
def test_hooks_that_change_what_is_learned_may_not(before: list[Any], after: list[Any], tmp_path: Path) -> None:
    saved(tmp_path / "run", *before)
    trainer = with_hooks("ppo", *after)
    started = digest(trainer)
    names = [type(hook).__name__ for hook in before], [type(hook).__name__ for hook in after]
    text = (
        f"OnPolicyTrainerParams.hooks that change what is learned were {names[0]} when it was saved and are {names[1]}"
    )
    with pytest.raises(CheckpointError) as raised:
        trainer.restore(tmp_path / "run")
    assert text in str(raised.value)
    assert digest(trainer) == started


MOMENTS = "RewardNormalizer.moments: expected a count, a mean and a sum of squares in float64, found tensor"
STATES: list[tuple[rl.TrainerHook, Any, str]] = [
    (Counting(), {}, "Counting.count: missing in the saved state"),
    (Counting(), {"count": "many"}, "Counting.count: expected an integer, found 'many'"),
    (rl.TrainerHook(), {"count": 1}, "TrainerHook: the state has 'count', which this hook does not have"),
    (rl.EarlyStopping(), {"num_bad": 1, "num_misses": 0}, "EarlyStopping.best: missing in the saved state"),
    (rl.MaxEpisodes(3), {"num_ended": -1}, "MaxEpisodes.num_ended: expected a non-negative integer, found -1"),
    (rl.LogTiming(), {"collect": "x", "update": 0.0, "test": 0.0, "total": 0.0}, "LogTiming.collect: expected a num"),
    (rl.LogScalar("reward"), {"summary": {}}, "LogScalar.num_misses: missing in the saved state"),
    (rl.BatchRecorder("batches"), {"names": ["../best.safetensors"]}, "names: '../best.safetensors' is no file of a b"),
    (rl.BatchSubSampler(4, 2), {"generator": 3}, "BatchSubSampler.generator: expected the state of a generator, found"),
    (rl.Evaluate("CartPole-v1"), {"best_score": math.nan}, "Evaluate: best_score: NaN is never the best"),
    (rl.Evaluate("CartPole-v1"), {"best_score": "high"}, "Evaluate.best_score: expected a number, found 'high'"),
    (rl.RewardNormalizer(), {}, "RewardNormalizer.moments: missing in the saved state"),
    (rl.RewardNormalizer(), {"moments": torch.zeros(2).double()}, MOMENTS),
    (rl.RewardNormalizer(), {"moments": torch.zeros(3)}, MOMENTS),
    (rl.RewardNormalizer(), {"moments": torch.full((3,), math.nan).double()}, MOMENTS),
    (rl.RewardNormalizer(), {"moments": torch.tensor([-1.0, 0, 0]).double()}, MOMENTS),
]  # fmt: skip


@pytest.mark.parametrize(("hook", "state", "text"), STATES)
def test_a_state_from_a_file_is_checked(hook: rl.TrainerHook, state: Any, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        hook.prepare_load(state)


def test_a_restore_that_fails_leaves_hooks_with_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("halfway")

    seen: list[int] = []
    trainer = with_hooks("ppo", rl.FunctionHook("post_steps", lambda ctx: seen.append(ctx.epoch)))
    trainer.execute_epoch()
    trainer.save(tmp_path / "checkpoint")
    trainer.execute_epoch()
    monkeypatch.setattr(trainer.algorithm, "prepare_load", lambda state: fail)
    with pytest.raises(RuntimeError, match="halfway"):
        trainer.restore(tmp_path / "checkpoint")
    trainer.execute_epoch()
    assert seen == [1, 1, 2, 2, 3, 3]
