"""Compiled gradient steps in float64, but for their numbers (`test_ranks`): another format is compiled anew."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.compile.test_compiled_updates import _fresh_compiler, make, parameters, update
from tests.unit.execution.test_cuda_graph import Rerun, with_graph

pytestmark = pytest.mark.full  # every test compiles

__all__ = ["_fresh_compiler"]
DOUBLE = rl.PrecisionParams(weights="float64")
COMPILED = rl.RuntimeParams(compile=True)


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


@pytest.mark.parametrize("way", ["plan", "plan, in a graph", "set_weight_dtype"])
def test_another_format_is_compiled_anew(way: str) -> None:
    """What was compiled for float32 must not be run on float64, nor the other way round."""
    eager, compiled = make("bc"), make("bc")
    compiled.attach(rl.UpdatePlan(runtime=COMPILED))
    for number, weights in enumerate(("float32", "float64", "float32")):
        precision = rl.PrecisionParams(weights=weights)  # type: ignore[arg-type]  # of a tuple
        for algorithm, runtime in ((eager, rl.RuntimeParams()), (compiled, COMPILED)):
            if way == "set_weight_dtype":
                algorithm.set_weight_dtype(precision.weight_dtype)
            else:
                algorithm.attach(rl.UpdatePlan(precision=precision, runtime=runtime))
        if way == "plan, in a graph":
            with_graph(compiled, Rerun())
        for seed in range(2):
            one, other = (update(each, seed=2 * number + seed) for each in (eager, compiled))
            assert other.floats() == pytest.approx(one.floats(), rel=1e-4, abs=1e-5)
        assert compiled.is_compiled
        assert compiled.plan.precision == precision
        assert {value.dtype for value in parameters(compiled).values()} == {precision.weight_dtype}
