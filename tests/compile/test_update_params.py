"""Compiled gradient steps under `UpdateParams`: one graph, and the numbers of eager ones."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import rltrainer as rl
from tests.compile.test_compiled_updates import COMPILED, MAKERS, _fresh_compiler, make, update

__all__ = ["_fresh_compiler"]  # a fixture: every test here starts with nothing compiled

LIMITS: dict[str, dict[str, Any]] = {
    "norm": {"max_grad_norm": 0.01},
    "largest number": {"max_grad_norm": 0.01, "grad_norm_type": math.inf},
    "norm of type 3": {"max_grad_norm": 0.01, "grad_norm_type": 3},
    "value": {"max_grad_value": 1e-3},
}


def both(name: str, update_params: rl.UpdateParams, **changes: Any) -> tuple[Any, Any]:
    """Return an algorithm that runs uncompiled, and one that runs compiled."""
    plain, compiled = make(name, **changes), make(name, **changes)
    plain.attach(rl.UpdatePlan(update=update_params))
    compiled.attach(dataclasses.replace(COMPILED, update=update_params))
    assert compiled.is_compiled
    return plain, compiled


def assert_equal_updates(plain: Any, compiled: Any, num_updates: int = 3) -> None:
    for seed in range(num_updates):
        one, other = update(plain, seed).floats(), update(compiled, seed).floats()
        assert other == pytest.approx(one, rel=1e-3, abs=1e-5)
    for (key, value), expected in zip(compiled.policy.named_parameters(), plain.policy.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("limit", LIMITS)
def test_every_limit_is_one_graph(limit: str) -> None:
    plain, compiled = both("sac", rl.UpdateParams(**LIMITS[limit]))
    assert_equal_updates(plain, compiled)
    assert sum(counters["graph_break"].values()) == 0


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "sac"])
def test_every_algorithm_clips_compiled(name: str) -> None:
    plain, compiled = both(name, rl.UpdateParams(max_grad_norm=0.01))
    assert_equal_updates(plain, compiled, num_updates=2)
    assert sum(counters["graph_break"].values()) == 0


def test_another_limit_compiles_anew() -> None:
    plain, compiled = both("dqn", rl.UpdateParams(max_grad_norm=0.01))
    assert_equal_updates(plain, compiled, num_updates=1)
    plain.attach(rl.UpdatePlan())
    compiled.attach(COMPILED)
    assert_equal_updates(plain, compiled, num_updates=1)
    assert not any("grad_norm" in key for key in update(compiled, seed=9).metrics)
