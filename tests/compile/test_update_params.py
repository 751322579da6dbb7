"""Compiled gradient steps under `UpdateParams`: one graph, and the numbers of eager ones."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import rltrainer as rl
from tests.batches import trained
from tests.compile.test_compiled_updates import COMPILED, DELAYED_ACTORS, MAKERS, make, transitions, update
from tests.compile.test_compiled_updates import _fresh_compiler as _fresh_compiler
from tests.compile.traced import _traced_only

__all__ = ["_fresh_compiler", "_traced_only"]  # fixtures: every test here starts with nothing compiled

pytestmark = pytest.mark.timeout(600)  # two graphs take a compiler half a minute, beside others more

LIMITS: dict[str, dict[str, Any]] = {
    "norm": {"max_grad_norm": 0.01},
    "largest number": {"max_grad_norm": 0.01, "grad_norm_type": math.inf},
    "norm of type 3": {"max_grad_norm": 0.01, "grad_norm_type": 3},
    "value": {"max_grad_value": 1e-3},
}


def both(name: str, update_params: rl.UpdateParams, **changes: Any) -> tuple[Any, Any]:
    """Return an algorithm that runs uncompiled, and one that runs compiled; `make` takes the changes."""
    plain, compiled = make(name, **changes), make(name, **changes)
    plain.attach(rl.UpdatePlan(update=update_params))
    compiled.attach(dataclasses.replace(COMPILED, update=update_params))
    assert compiled.is_compiled
    return plain, compiled


def assert_equal_updates(plain: Any, compiled: Any, num_updates: int = 3) -> None:
    for seed in range(num_updates):
        one, other = update(plain, seed).floats(), update(compiled, seed).floats()
        assert other == pytest.approx(one, rel=1e-3, abs=1e-5)
    for (key, value), expected in zip(trained(compiled).named_parameters(), trained(plain).parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.usefixtures("_traced_only")
def test_every_limit_is_one_graph(limit: str) -> None:
    plain, compiled = both("bc", rl.UpdateParams(**LIMITS[limit]))
    assert_equal_updates(plain, compiled)
    assert sum(counters["graph_break"].values()) == 0


EVERYTHING: dict[str, Any] = {"max_grad_norm": 0.01, "grad_norm_type": 3, "nonfinite": "skip"}
BALANCED = ("ppo", "a2c", "recurrent_ppo", "impala")
GATHERING = ("ppo", "recurrent_ppo", "dqn", "sac", "td3", "bc")
"""One of each kind of step applies the gradients of two batches at once, which takes as many graphs again."""


def params_of(name: str) -> tuple[rl.UpdateParams, dict[str, Any]]:
    """Return all that an algorithm has, and changes of its own params."""
    changes = {"entropy_coef": 0.01} if name in BALANCED else {}
    accumulate = 2 if name in GATHERING else 1
    return rl.UpdateParams(**EVERYTHING, accumulate=accumulate, balance_grad_norms=name in BALANCED), changes


def test_everything_compiles() -> None:
    params, changes = params_of("dqn")
    plain, compiled = both("dqn", params, **changes)
    assert_equal_updates(plain, compiled, num_updates=8)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 2  # steps that gather, and steps that apply


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.usefixtures("_traced_only")
def test_every_algorithm_is_traced_without_a_break(name: str) -> None:
    params, changes = params_of(name)
    plain, compiled = both(name, params, hidden_sizes=(16,), **changes)
    assert_equal_updates(plain, compiled, num_updates=8)
    assert not counters["graph_break"]
    # Steps that gather, and steps that apply, without and with the delayed actor.
    assert counters["stats"]["unique_graphs"] == (1 + (name in GATHERING)) * (1 + (name in DELAYED_ACTORS))


def test_a_bad_step_is_left_out_and_counted() -> None:
    plain, compiled = both("bc", rl.UpdateParams(nonfinite="skip"))
    for algorithm in (plain, compiled):
        for bad in (False, True, False):
            batch = transitions(algorithm, seed=0)
            batch.weight = batch.weight * (float("nan") if bad else 1.0)
            algorithm.update(batch)
        assert algorithm.num_skipped_steps == 1
        assert algorithm.optimizer.method.num_steps == 2
    assert_equal_updates(plain, compiled)


def test_a_scaled_loss_is_part_of_the_graph() -> None:
    plan = rl.UpdatePlan(precision=rl.PrecisionParams(amp="fp16", loss_scale_growth_interval=3))
    plain, compiled = make("bc"), make("bc")
    plain.attach(plan)
    compiled.attach(dataclasses.replace(plan, runtime=COMPILED.runtime))
    for algorithm in (plain, compiled):
        for seed in range(5):
            batch = transitions(algorithm, seed)
            batch.weight = batch.weight * (math.inf if seed == 3 else 1.0)
            algorithm.update(batch)
        assert algorithm.is_compiled == (algorithm is compiled)
        assert (algorithm.num_skipped_steps, algorithm.optimizer.loss_scale) == (1, 65536.0)  # raised, and lowered
        assert algorithm.optimizer.method.num_steps == 4
    assert not counters["graph_break"]
    for (key, value), expected in zip(trained(compiled).named_parameters(), trained(plain).parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=2e-3, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.usefixtures("_traced_only")
def test_another_limit_compiles_anew() -> None:
    plain, compiled = both("bc", rl.UpdateParams(max_grad_norm=0.01))
    assert_equal_updates(plain, compiled, num_updates=1)
    plain.attach(rl.UpdatePlan())
    compiled.attach(COMPILED)
    assert_equal_updates(plain, compiled, num_updates=1)
    assert not any("grad_norm" in key for key in update(compiled, seed=9).metrics)


@pytest.mark.usefixtures("_traced_only")
def test_compiled_updates_end_where_uncompiled_ones_do() -> None:
    eager, compiled = (make("ppo", target_kl=3e-6) for _ in range(2))
    compiled.attach(COMPILED)
    taken = []
    for seed in range(6):
        one, other = update(eager, seed), update(compiled, seed)
        assert one.num_gradient_steps == other.num_gradient_steps
        assert one.floats() == pytest.approx(other.floats(), rel=1e-3, abs=1e-5)
        taken.append(one.num_gradient_steps)
    assert compiled.is_compiled
    assert len(set(taken)) > 1, "some end early"
    for p, q in zip(eager.policy.parameters(), compiled.policy.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-5)
