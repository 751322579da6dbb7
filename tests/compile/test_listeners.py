"""A listener breaks the graph of a compiled step where it listens, and nowhere else; what that changes is rounding."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import rltrainer as rl
from rltrainer.plan import UpdateCallbacks
from tests.compile.test_compiled_updates import COMPILED, MAKERS, _fresh_compiler, make, parameters, update

__all__ = ["_fresh_compiler"]  # a fixture: every test here starts with nothing compiled

LARGEST = 2e-7
"""Difference of a weight of about 1 after a gradient step.

Seen: 6e-8 (PPO, A2C, DDPG), 1.5e-8 (TD3, TD3+BC, discrete CQL), 0 (others)."""


def plan(**callbacks: Any) -> rl.UpdatePlan:
    all_reduce = callbacks.pop("all_reduce", None)
    return rl.UpdatePlan(runtime=COMPILED.runtime, callbacks=UpdateCallbacks(**callbacks), all_reduce=all_reduce)


def largest_difference(one: Any, other: Any) -> float:
    return max(float((p - parameters(other)[name]).abs().max()) for name, p in parameters(one).items())


@pytest.mark.parametrize("name", MAKERS)
def test_a_broken_graph_differs_by_rounding(name: str) -> None:
    whole, broken, heard = make(name), make(name), []

    def on_loss(loss_name: str, loss: Tensor, step: Any) -> None:
        assert loss.grad_fn is not None
        heard.append(loss_name)

    whole.attach(COMPILED)
    broken.attach(plan(on_loss=on_loss, all_reduce=torch.clone))
    for seed in range(4):  # of the algorithms with a delayed actor, two with its step
        broken.load_state_dict(whole.state_dict())
        update(whole, seed)
        num_heard = len(heard)
        result = update(broken, seed)
        assert len(heard) - num_heard >= result.num_gradient_steps
        assert largest_difference(whole, broken) <= LARGEST
    assert broken.is_compiled
    assert counters["graph_break"]


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
