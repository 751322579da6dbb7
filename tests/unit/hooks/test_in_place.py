"""Hooks and callbacks that change in place what they were lent: it changes nothing of the run."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.hooks.hook import POINTS
from rltrainer.tree import leaves
from tests.unit.hooks.fake_run import trained, with_hooks
from tests.unit.hooks.test_points import Times


@torch.no_grad()
def spoil(value: Any) -> None:
    """Set all numbers of a batch, of statistics or of losses to 0, and empty all dicts."""
    parts = [getattr(value, f.name) for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else [value]
    for part in parts:
        for leaf in leaves(part):
            if isinstance(leaf, torch.Tensor):
                leaf.zero_()
            elif isinstance(leaf, np.ndarray):
                leaf[...] = 0
        if isinstance(part, dict):
            part.clear()


class Spoiling(rl.TrainerHook):
    """Spoils all that each point is given."""

    def __init__(self) -> None:
        self.calls: set[str] = set()


def spoiling(point: str) -> Any:
    def spoil_all(self: Spoiling, ctx: rl.TrainerContext, *args: Any) -> None:
        self.calls.add(point)
        for value in (*args, ctx.losses, ctx.result, ctx.collect_stats):
            if value is not None and not callable(value):
                spoil(value)

    return spoil_all


for name in POINTS:
    setattr(Spoiling, name, spoiling(name))


@pytest.mark.parametrize("run", ["a2c", "dqn_prioritized", "offline_iql"])
def test_a_hook_that_spoils_everything_changes_no_bit(run: str) -> None:
    hook = Spoiling()
    spoiled, plain = with_hooks(run, hook), with_hooks(run)
    assert trained(spoiled) == trained(plain)
    assert hook.calls == set(POINTS)
    found, expected = (trainer.state.info(0) for trainer in (spoiled, plain))
    assert (found.best_return, found.best_score) == (expected.best_return, expected.best_score)
    for here, there in zip(found.epochs, expected.epochs, strict=True):
        assert here.update.floats() == there.update.floats()
        if here.collect_stats is not None:
            assert there.collect_stats is not None
            assert here.collect_stats.returns.tolist() == there.collect_stats.returns.tolist()


def test_a_function_hook_is_a_users_code_too() -> None:
    hooks = [rl.FunctionHook("pre_steps_log", lambda ctx, batch: spoil(batch))]
    assert trained(with_hooks("a2c", *hooks)) == trained(with_hooks("a2c"))


def test_each_hook_is_shown_what_the_run_uses() -> None:
    seen: list[float] = []

    def note(ctx: Any, batch: Any) -> None:
        seen.append(float(batch.reward.abs().sum()))

    spoils = rl.FunctionHook("post_steps_log", lambda ctx, batch: spoil(batch), name="first")
    trained(with_hooks("a2c", spoils, rl.FunctionHook("post_steps_log", note, name="second"), max_epochs=1))
    assert min(seen) > 0


def test_a_replacement_may_be_made_in_place() -> None:
    def scale(ctx: Any, batch: Any) -> Any:
        batch.reward.mul_(0.1)
        return batch

    def scale_loss(ctx: Any, losses: Any, step: Any) -> Any:
        losses["loss"] = losses["loss"] * 0.1
        return losses

    in_place = trained(with_hooks("a2c", rl.FunctionHook("batch_process", scale)))
    assert in_place == trained(with_hooks("a2c", Times(0.1))) != trained(with_hooks("a2c"))
    assert trained(with_hooks("a2c", rl.FunctionHook("optimizer", scale_loss))) != trained(with_hooks("a2c"))


def test_numbers_that_a_hook_counts_on_in_place_are_logged_as_they_were(tmp_path: Any) -> None:
    count = torch.zeros(())

    def counted(ctx: Any, batch: Any) -> Any:
        ctx.log({"by_log": count.add_(1)})
        return {"by_point": count}

    logger = rl.JSONLinesLogger(tmp_path / "log", training_interval=20)
    trained(with_hooks("a2c", rl.FunctionHook("post_steps_log", counted), logger=logger, max_epochs=2))
    rows = [row for row in map(json.loads, (tmp_path / "log").read_text().splitlines()) if "training/by_point" in row]
    assert [row["training/by_point"] for row in rows] == [row["training/by_log"] for row in rows]
    assert 3.5 in [row["training/by_point"] for row in rows]  # of 3 and 4


def test_callbacks_change_no_statistics() -> None:
    def score(stats: Any) -> float:
        value = float(stats.returns.mean())
        stats.returns[:] = 1000.0
        return value

    found, expected = (with_hooks("a2c", compute_score_fn=fn).run() for fn in (score, None))
    assert (found.best_return, found.best_score) == (expected.best_return, expected.best_score)


def test_a_reduction_of_agents_changes_no_returns() -> None:
    stats = rl.CollectStats(2, 2, np.array([[1.0, 2.0], [3.0, 5.0]]), np.ones(2, np.int64), 0.0)

    def worst(returns: Any) -> Any:
        returns.sort()
        returns[:, 1] = 0
        return returns[:, 0]

    assert stats.reduce_agents(worst).returns.tolist() == [1.0, 3.0]
    assert stats.returns.tolist() == [[1.0, 2.0], [3.0, 5.0]]
