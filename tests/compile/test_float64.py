"""Compiled gradient steps in float64: the eager ones to its precision; another format is compiled anew."""

from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import rltrainer as rl
from tests.compile.test_compiled_updates import _fresh_compiler, make, parameters, update
from tests.unit.execution.test_cuda_graph import Rerun, with_graph

pytestmark = pytest.mark.full  # every test compiles

__all__ = ["_fresh_compiler"]
DOUBLE = rl.PrecisionParams(weights="float64")
COMPILED = rl.RuntimeParams(compile=True)


@pytest.mark.parametrize("name", ["sac", "ppo", "recurrent_ppo", "c51"])
def test_compiled_steps_are_the_eager_ones(name: str) -> None:
    """Also schedules, which move on without another graph."""
    eager, compiled = make(name), make(name)
    progress = [0.0]
    eager.attach(rl.UpdatePlan(lambda: progress[0], precision=DOUBLE))
    compiled.attach(rl.UpdatePlan(lambda: progress[0], precision=DOUBLE, runtime=COMPILED))
    for seed in range(4):
        progress[0] = seed / 4
        one, other = update(eager, seed=seed), update(compiled, seed=seed)
        assert other.floats() == pytest.approx(one.floats(), rel=1e-9, abs=1e-11)
    assert compiled.is_compiled
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1
    for key, value in parameters(eager).items():
        torch.testing.assert_close(parameters(compiled)[key], value, rtol=1e-9, atol=1e-11)


class Adds(rl.BC):
    """Adds up its losses in a scalar of its own."""

    def __init__(self, policy: Any) -> None:
        super().__init__(policy)
        self.total = torch.zeros(())

    def gradient_step(self, batch: rl.Transitions, noise: Any = None) -> rl.UpdateResult:
        result = super().gradient_step(batch)
        self.total.add_(result.metrics["loss"])
        return result


def test_scalars_that_a_step_changes_are_changed() -> None:
    """PyTorch 2.13 leaves out of a graph what is done in place to a scalar in float64."""
    algorithm = Adds(make("bc").policy)
    algorithm.attach(rl.UpdatePlan(precision=DOUBLE, runtime=COMPILED))
    losses = [update(algorithm, seed=seed).floats()["loss"] for seed in range(3)]
    assert algorithm.is_compiled
    assert float(algorithm.total) == pytest.approx(sum(losses))
    assert float(algorithm.optimizer.state_dict()["num_steps"]) == 3


@pytest.mark.parametrize("has_graph", [False, True])
def test_another_format_is_compiled_anew(has_graph: bool) -> None:
    """What was compiled for float32 must not be run on float64, nor the other way round."""
    eager, compiled = make("sac"), make("sac")
    for number, weights in enumerate(("float32", "float64", "float32")):
        precision = rl.PrecisionParams(weights=weights)  # type: ignore[arg-type]  # of a tuple
        eager.attach(rl.UpdatePlan(precision=precision))
        compiled.attach(rl.UpdatePlan(precision=precision, runtime=COMPILED))
        if has_graph:
            with_graph(compiled, Rerun())
        for seed in range(2):
            one, other = (update(each, seed=2 * number + seed) for each in (eager, compiled))
            assert other.floats() == pytest.approx(one.floats(), rel=1e-4, abs=1e-5)
        assert compiled.is_compiled
        assert {value.dtype for value in parameters(compiled).values()} == {precision.weight_dtype}


def test_a_format_that_is_set_without_a_plan_is_compiled_too() -> None:
    eager, compiled = make("sac"), make("sac")
    compiled.attach(rl.UpdatePlan(runtime=COMPILED))
    update(compiled, seed=0)
    update(eager, seed=0)
    for algorithm in (eager, compiled):
        algorithm.set_weight_dtype(torch.float64)
    one, other = update(eager, seed=1), update(compiled, seed=1)
    assert other.floats() == pytest.approx(one.floats(), rel=1e-4, abs=1e-5)
    assert compiled.is_compiled
    assert compiled.plan.precision == DOUBLE
    assert not eager.is_compiled
