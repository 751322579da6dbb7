"""A listener breaks the graph of a compiled step where it listens, and nowhere else; what that changes is rounding."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import rltrainer as rl
from rltrainer.hooks import HookRunner
from rltrainer.plan import UpdateCallbacks
from rltrainer.trainers.run_state import RunState
from tests.compile.test_compiled_updates import COMPILED, MAKERS, _fresh_compiler, make, parameters, update
from tests.compile.traced import _traced_only

pytestmark = pytest.mark.full  # every test compiles

__all__ = ["_fresh_compiler", "_traced_only"]  # fixtures: every test here starts with nothing compiled

LARGEST = 2e-7
"""Difference of a weight of about 1 after a gradient step.

Seen: 6e-8 (PPO, A2C, DDPG), 1.5e-8 (TD3, TD3+BC, discrete CQL), 0 (others)."""

IN_CPP = ("bc",)
"""The one with the fewest pieces; a broken graph is ten to thirty programs in C++, so the others are slow tests."""
TRACED = ("ppo", "recurrent_ppo", "trpo", "reinforce", "dqn", "td3", "sac", "iql", "bc")
"""One of each kind of step; what a listener is given by each algorithm is seen of uncompiled ones."""


def plan(**callbacks: Any) -> rl.UpdatePlan:
    all_reduce = callbacks.pop("all_reduce", None)
    return rl.UpdatePlan(runtime=COMPILED.runtime, callbacks=UpdateCallbacks(**callbacks), all_reduce=all_reduce)


def largest_difference(one: Any, other: Any) -> float:
    return max(float((p - parameters(other)[name]).abs().max()) for name, p in parameters(one).items())


class Reading(rl.TrainerHook):
    """Overrides every point inside an update, and only reads."""

    def __init__(self) -> None:
        self.num_losses = self.num_steps = 0

    def process_optim_batch(self, ctx: Any, minibatch: Any) -> None:
        assert not ctx.losses

    def post_loss(self, ctx: Any, minibatch: Any) -> None:
        assert [*ctx.losses.values()][-1].grad_fn is not None
        self.num_losses += 1

    def optimizer(self, ctx: Any, losses: dict[str, Tensor], step: Any) -> None:
        assert [*losses] == [*ctx.losses][-1:]

    def post_optim(self, ctx: Any) -> None:
        self.num_steps += 1

    def post_optim_log(self, ctx: Any, minibatch: Any) -> dict[str, Any]:
        return {"loss": sum(ctx.losses.values())}


def difference_of_broken(name: str, **changes: Any) -> float:
    """Take gradient steps in a whole and in a broken graph, each time from the same weights."""
    largest = 0.0
    whole, broken, hook = make(name, **changes), make(name, **changes), Reading()
    runner, log = HookRunner("TrainerParams", [hook]), SimpleNamespace(take_in=lambda *_: None)
    runner.context = rl.TrainerContext(broken, None, RunState.new(COMPILED.runtime), log)
    whole.attach(COMPILED)
    broken.attach(dataclasses.replace(COMPILED, callbacks=runner.callbacks(), all_reduce=torch.clone))
    for seed in range(4):  # of the algorithms with a delayed actor, two with its step
        broken.load_state_dict(whole.state_dict())
        update(whole, seed)
        before = hook.num_steps, hook.num_losses
        result = update(broken, seed)
        assert hook.num_steps - before[0] == result.num_gradient_steps
        assert hook.num_losses - before[1] >= result.num_gradient_steps
        largest = max(largest, largest_difference(whole, broken))
    assert broken.is_compiled
    assert counters["graph_break"]
    return largest


@pytest.mark.parametrize("name", TRACED)
def test_a_broken_graph_is_the_whole_one_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as ever, and run operation by operation: quick to make, and without a difference in rounding."""
    compile_ = torch.compile
    monkeypatch.setattr("torch.compile", lambda step, options: compile_(step, backend="eager"))
    monkeypatch.setattr("rltrainer.execution.execution.Execution.can_loop", False)  # a loop is never in pieces
    assert difference_of_broken(name, hidden_sizes=(16,)) == 0


@pytest.mark.parametrize(
    "name", [name if name in IN_CPP else pytest.param(name, marks=pytest.mark.slow) for name in MAKERS]
)
def test_a_broken_graph_differs_by_rounding(name: str) -> None:
    assert difference_of_broken(name) <= LARGEST


def test_who_listens_around_a_step_breaks_no_graph() -> None:
    algorithm, heard = make("sac"), []
    algorithm.attach(plan(before=lambda batch: heard.append("before"), after=lambda *_: heard.append("after")))
    plain = make("sac")
    plain.attach(COMPILED)
    for seed in range(2):
        update(algorithm, seed)
        update(plain, seed)
    assert heard == ["before", "after"] * 2
    assert not counters["graph_break"]
    assert largest_difference(algorithm, plain) == 0


@pytest.mark.usefixtures("_traced_only")
def test_another_plan_is_another_graph() -> None:
    algorithm, heard = make("bc"), []
    algorithm.attach(COMPILED)
    update(algorithm, seed=0)
    assert not counters["graph_break"]
    algorithm.attach(plan(on_loss=lambda name, loss, step: heard.append(name)))
    update(algorithm, seed=1)
    assert heard == ["loss"]
    counters.clear()
    algorithm.attach(COMPILED)
    update(algorithm, seed=2)
    assert heard == ["loss"]
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
