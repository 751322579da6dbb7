"""Compiled gradient steps of several ranks, whose exchanges are operations of the graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import rltrainer as rl
from rltrainer.errors import RankLostError
from rltrainer.execution.cpu_loop import loops_are_tested
from rltrainer.ranks.ranks import Ranks
from tests.compile.test_compiled_updates import MAKERS, make, rollout, update
from tests.compile.test_compiled_updates import _fresh_compiler as _fresh_compiler
from tests.compile.traced import _traced_only as _traced_only
from tests.contract.test_all_algorithms import WITHOUT_RANKS, flat_state
from tests.fakes import run_in_threads

pytestmark = pytest.mark.timeout(600)  # a loop takes a compiler half a minute, beside others more

IN_CPP = ("ppo", "bc")
"""A loop, and a graph."""
TRACED = (
    "sac", "a2c", "impala", "recurrent_ppo", "trpo", "reinforce", "distillation", "pqn", "rnd", "dqn", "td3", "redq",
    "simbav2", "iql", "fql",
)  # fmt: skip
"""One of each kind of step. The others are slow tests: they differ from one of these by a loss that exchanges nothing,
and `tests/contract/test_ranks.py` trains all of them as two uncompiled ranks."""
DOUBLE = rl.PrecisionParams(weights="float64")


def update_few(algorithm: Any, seed: int) -> rl.UpdateResult:
    """Update from 40 valid steps, or if the seed is odd from 20, in minibatches of 8."""
    data = rollout(algorithm, seed)
    data.valid[:] = torch.arange(40).view(8, 5) % (1 + seed % 2) == 0
    return algorithm.update(data, batch_size=8, repeat=2)  # type: ignore[no-any-return]


def of_two(
    name: str, compile: bool, update: Callable[..., rl.UpdateResult] = update, **changes: Any
) -> tuple[Any, list[Tensor], list[dict[str, float]]]:
    """Return one of two ranks after some updates, its state, and its metrics."""
    pair = [make(name, **changes) for _ in range(2)]  # not in threads: both would draw from the global generator

    def on_rank(ranks: Ranks) -> Any:
        algorithm = pair[ranks.rank]
        algorithm.attach(rl.UpdatePlan(ranks=ranks, runtime=rl.RuntimeParams(compile=compile), precision=DOUBLE))
        metrics = [update(algorithm, 2 * k + ranks.rank).floats() for k in range(3)]
        return algorithm, [x for x in flat_state(algorithm.state_dict()).values() if isinstance(x, Tensor)], metrics

    first, second = run_in_threads([on_rank, on_rank])
    assert str(first[2]) == str(second[2])
    return first  # type: ignore[no-any-return]


def assert_compiled_ranks_train_as_uncompiled_ones(name: str, **changes: Any) -> None:
    _, expected, metrics = of_two(name, False, **changes)
    algorithm, found, metrics_found = of_two(name, True, **changes)
    assert algorithm.is_compiled
    if name not in ("trpo", "reinforce"):  # which wait for a number of the device
        assert not counters["graph_break"]
    if name == "ppo":
        assert algorithm._execution.can_loop == loops_are_tested()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)
    for one, other in zip(metrics_found, metrics, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", IN_CPP)
def test_compiled_ranks_train_as_uncompiled_ones(name: str) -> None:
    assert_compiled_ranks_train_as_uncompiled_ones(name)


@pytest.mark.parametrize("name", [
    name if name in TRACED else pytest.param(name, marks=pytest.mark.slow)
    for name in MAKERS if name not in IN_CPP and name not in WITHOUT_RANKS
])  # fmt: skip
@pytest.mark.usefixtures("_traced_only")
def test_traced_ranks_train_as_uncompiled_ones(name: str) -> None:
    """By a compiler that is quick: what it would do else is seen of one algorithm of each kind."""
    assert_compiled_ranks_train_as_uncompiled_ones(name, hidden_sizes=(16,))


@pytest.mark.parametrize("options", [
    # 60 valid steps are 4 minibatches of 16. The first rank has 10 of its steps in each, padded to 16: in 3 there is
    # room for all.
    {"update": update_few}, {"target_kl": 1e-4, "lr": 1e-2},
    pytest.param({"desired_kl": 1e-4, "lr": 1e-3}, marks=pytest.mark.full),
], ids=["fewer valid steps", "an early end", "a rate that adapts"])  # fmt: skip
@pytest.mark.usefixtures("_traced_only")
def test_a_loop_of_ranks_takes_their_steps(options: dict[str, Any]) -> None:
    _, expected, metrics = of_two("ppo", False, **options)
    _, found, metrics_found = of_two("ppo", True, **options)
    assert metrics_found[0] == pytest.approx(metrics[0], rel=1e-9)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)


def test_a_graph_sums_and_gathers_tensors_of_any_layout() -> None:
    def in_graph(x: Tensor) -> Tensor:
        return ranks.sum(x.T) * 2 + ranks.gather(x.T, is_equal=True)[1]

    ranks, x = Losing(0, 2), torch.arange(6.0).view(2, 3)
    with ranks.in_graphs():
        found = torch.compile(in_graph, fullgraph=True)(x)
    assert torch.equal(found, 5 * x.T)


class Losing(Ranks):
    """The first of two ranks, which answers as this one until it is lost."""

    is_lost = False

    def _gather(self, x: Tensor, is_equal: bool) -> list[Tensor]:
        if self.is_lost:
            raise RankLostError("rank 1 of 2 is gone")
        return [x, x.clone()]


@pytest.mark.full
@pytest.mark.parametrize("name", IN_CPP)
def test_an_error_of_an_exchange_leaves_a_graph_as_it_is(name: str) -> None:
    algorithm, ranks = make(name), Losing(0, 2)
    # The graph is the one of a test above, which is kept.
    algorithm.attach(rl.UpdatePlan(ranks=ranks, runtime=rl.RuntimeParams(compile=True), precision=DOUBLE))
    update(algorithm, 0)
    ranks.is_lost = True
    with pytest.raises(RankLostError, match="^rank 1 of 2 is gone$"):
        update(algorithm, 1)
