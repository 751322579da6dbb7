"""Limits of gradients by `UpdateParams`: the figures, in every way that a step is taken."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.updates.optimizer import Optimizer
from rltrainer.updates.transforms import Limit
from tests.contract.test_all_algorithms import ALL, assert_same_state, make, trained_parameters, update

INF = math.inf
FIGURES: list[tuple[dict[str, Any], list[float], float | None]] = [
    ({"max_grad_norm": 1.0}, [0.6, 0.8], 5.0),
    ({"max_grad_norm": 1.0, "grad_norm_type": INF}, [0.75, 1.0], 4.0),
    ({"max_grad_norm": 1.0, "grad_norm_type": 1.0}, [3 / 7, 4 / 7], 7.0),
    ({"max_grad_norm": 1.0, "grad_norm_type": 3}, [3 / 91 ** (1 / 3), 4 / 91 ** (1 / 3)], 91 ** (1 / 3)),
    ({"max_grad_norm": 6.0}, [3.0, 4.0], 5.0),
    ({"max_grad_value": 1.0}, [1.0, 1.0], 5.0),
    ({"max_grad_value": 3.5, "grad_norm_type": 1}, [3.0, 3.5], 7.0),
    ({}, [3.0, 4.0], None),
]
"""What becomes of the gradient (3, 4), and its norm before, if that is a metric."""


class Point(nn.Module):
    """Two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters)


def loss_of(point: Point) -> Tensor:
    return 3 * point.x + 4 * point.y


def moved(limits: dict[str, Any], **options: Any) -> tuple[list[float], Optimizer]:
    """Return how far a step of length 1 along the gradient (3, 4) goes, which is what becomes of it."""
    point = Point()
    optimizer = Optimizer({"point": point}, 1.0, factory=sgd, **options)
    optimizer.attach("loss", rl.UpdatePlan(update=rl.UpdateParams(**limits)), is_compiled=False)
    optimizer.step(loss_of(point))
    return [-float(point.x.detach()), -float(point.y.detach())], optimizer


@pytest.mark.parametrize(("limits", "expected", "norm"), FIGURES)
@pytest.mark.parametrize("is_contiguous", [True, False])  # not: the way of graphs and devices
def test_the_figures(limits: dict[str, Any], expected: list[float], norm: float | None, is_contiguous: bool) -> None:
    found, with_sgd = moved(limits)
    assert found == pytest.approx(expected, rel=1e-5)
    assert norm is with_sgd.grad_norm is None or float(with_sgd.grad_norm) == pytest.approx(norm)  # type: ignore[arg-type]
    weight = nn.Parameter(torch.zeros(2, 2).t() if not is_contiguous else torch.zeros(2, 2))
    module = nn.ParameterList([weight])
    optimizer = Optimizer({"module": module}, 1.0)
    optimizer._is_flat = lambda: not is_contiguous  # type: ignore[method-assign]
    optimizer.attach("loss", rl.UpdatePlan(update=rl.UpdateParams(**limits)), is_compiled=False)
    optimizer.step((weight * torch.tensor([[3.0, 4.0], [0.0, 0.0]])).sum())
    assert (optimizer.state_dict()["mean"][:2] / 0.1).tolist() == pytest.approx(expected, rel=1e-5)


def test_the_algorithms_own_limit_holds_where_the_plan_sets_none() -> None:
    assert moved({}, max_grad_norm=1.0)[0] == pytest.approx([0.6, 0.8], rel=1e-5)
    assert moved({"grad_norm_type": INF}, max_grad_norm=1.0)[0] == pytest.approx([0.75, 1.0], rel=1e-5)
    assert moved({"max_grad_norm": 2.5}, max_grad_norm=1.0)[0] == pytest.approx([1.5, 2.0], rel=1e-5)
    assert moved({"max_grad_value": 1.0}, max_grad_norm=1.0)[0] == [1.0, 1.0]


def test_a_high_norm_of_large_and_small_numbers_is_finite() -> None:
    for scale in (1e-30, 1e30):
        gradient = scale * torch.tensor([3.0, 4.0])
        limit = Limit(1.0, 50.0)
        assert float(limit.norm(gradient, torch.zeros(()))) == pytest.approx(4 * scale, rel=1e-5)
    assert float(Limit(1.0, 3.0).norm(torch.zeros(2), torch.zeros(()))) == 0.0


def test_a_copy_and_a_later_plan_have_the_algorithms_own_limit() -> None:
    _, optimizer = moved({"max_grad_norm": 1.0}, max_grad_norm=2.5)
    assert copy.deepcopy(optimizer).limit.max_norm == pickle.loads(pickle.dumps(optimizer)).limit.max_norm == 2.5
    optimizer.attach("loss", rl.UpdatePlan(), is_compiled=False)
    assert optimizer.limit.max_norm == 2.5


PLANS: dict[str, dict[str, Any]] = {
    "norm": {"update": rl.UpdateParams(max_grad_norm=1e-3)},
    "groups": {"update": rl.UpdateParams(accumulate=3)},
    "skip": {"update": rl.UpdateParams(nonfinite="skip")},
    "fp16": {"precision": rl.PrecisionParams(amp="fp16")},
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_copy_and_an_algorithm_with_a_later_plan_do_without(plan: str) -> None:
    plain, planned = make("dqn"), make("dqn")
    planned.attach(rl.UpdatePlan(**PLANS[plan]))
    copied = copy.deepcopy(planned)
    planned.attach(rl.UpdatePlan())
    for algorithm in (plain, copied, planned):
        update(algorithm)
        assert (algorithm.num_skipped_steps, algorithm.stop_reason) == (0, None)
    assert_same_state(plain, copied)
    assert_same_state(plain, planned)


NAMES = {"sac": ["actor", "critic", "temperature"], "iql": ["actor", "critic", "value"], "td3": ["actor", "critic"]}
"""Of optimizers, where there are several."""


@pytest.mark.parametrize("name", ALL)
def test_every_algorithm_clips_and_tells_the_norms(name: str) -> None:
    """A step of gradient descent is the clipped gradient: no parameter goes further than the limit."""
    algorithm, limited, again = (make(name) for _ in range(3))
    for one in (limited, again):
        one.attach(rl.UpdatePlan(update=rl.UpdateParams(max_grad_norm=1e-3)))
    plain, result = update(algorithm), update(limited)
    norms = {key: value for key, value in result.floats().items() if key.endswith("grad_norm")}
    expected = [f"{loss}_grad_norm".lstrip("_") for loss in limited.optimizers_by_loss()]
    assert sorted(norms) == sorted(expected)
    assert set(NAMES.get(name, [])) == {key.removesuffix("_grad_norm") for key in norms if name in NAMES}
    assert all(value > 0 for value in norms.values())
    assert not any("grad_norm" in key for key in plain.metrics)
    before = trained_parameters(make(name))
    assert any(not torch.equal(before[key], value) for key, value in trained_parameters(limited).items())
    update(again)
    assert_same_state(limited, again)


def test_the_algorithms_limit_given_as_the_plans_changes_no_bit() -> None:
    one, other = make("ppo"), make("ppo")  # 0.5 by itself
    other.attach(rl.UpdatePlan(update=rl.UpdateParams(max_grad_norm=0.5)))
    for seed in range(3):
        update(one, seed)
        update(other, seed)
    assert_same_state(one, other)


def test_the_norm_of_a_delayed_actor_is_a_mean_over_its_steps() -> None:
    rl.seed(7)
    maker = make("td3")
    algorithm = rl.TD3(maker.policy, rl.TD3Params(actor_update_interval=2))
    algorithm.attach(rl.UpdatePlan(update=rl.UpdateParams(max_grad_norm=1.0)))
    assert "actor_grad_norm" not in update(algorithm).metrics
    assert "actor_grad_norm" in update(algorithm).metrics


def test_what_is_shared_out_is_a_limit_of_the_norm() -> None:
    rule = "balance_grad_norms: must be False without a limit of the norm, which it shares out; got True .* Set max_gra"
    algorithm = make("sac")
    with pytest.raises(ParamsError, match=rule):
        algorithm.attach(rl.UpdatePlan(update=rl.UpdateParams(balance_grad_norms=True)))
    assert algorithm.plan.update == rl.UpdateParams()
    make("ppo").attach(rl.UpdatePlan(update=rl.UpdateParams(balance_grad_norms=True)))  # has one of its own


WAYS: dict[str, Any] = {"torch": sgd, "each": None, "flat": None}


def balanced(way: str, *parts: float, of: int | None = None, **limits: Any) -> tuple[list[float], Optimizer]:
    """Return what a step is given of a loss whose parts have these gradients, each in a number of its own."""
    point = nn.ParameterList([nn.Parameter(torch.zeros(len(parts)))])
    optimizer = Optimizer({"point": point}, 1.0, factory=WAYS[way])
    optimizer._is_flat = lambda: way == "flat"  # type: ignore[method-assign]
    params = {"max_grad_norm": 1.0, "balance_grad_norms": True} | limits
    optimizer.attach("loss", rl.UpdatePlan(update=rl.UpdateParams(**params)), is_compiled=False)
    losses = [part * point[0][i if of is None else of] for i, part in enumerate(parts)]
    loss = sum(losses, torch.zeros(()))
    optimizer.step(loss, losses)
    if way == "torch":
        return (-point[0].detach()).tolist(), optimizer
    return (optimizer.state_dict()["mean"] / 0.1).tolist(), optimizer


@pytest.mark.parametrize("way", WAYS)
def test_parts_of_norms_10_and_a_tenth_contribute_a_half_each(way: str) -> None:
    found, optimizer = balanced(way, 10.0, 0.1)
    assert found == pytest.approx([0.5, 0.5], rel=1e-5)
    assert float(optimizer.grad_norm) == pytest.approx(math.sqrt(100.01))  # type: ignore[arg-type]
    assert balanced(way, 10.0, 0.1, 3.0, max_grad_norm=6.0)[0] == pytest.approx([2.0, 2.0, 2.0], rel=1e-5)
    assert balanced(way, 10.0, -0.1, of=0)[0] == pytest.approx([0.0, 0.0], abs=1e-6)  # they pull against each other
    assert balanced(way, 10.0, 0.0)[0] == pytest.approx([0.5, 0.0], rel=1e-5)
    assert balanced(way, 10.0)[0] == pytest.approx([1.0], rel=1e-5)  # clipped
    assert balanced(way, 0.1)[0] == pytest.approx([0.1], rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_precision_rounds_no_balanced_gradient(dtype: torch.dtype) -> None:
    parts, limit = torch.tensor([[10.0, 0.3], [0.1, 0.7]]), Limit(1.0)
    with torch.autocast("cpu", dtype=dtype):
        found = limit.balanced(parts)
    assert found.dtype == torch.float32
    assert torch.equal(found, limit.balanced(parts))


def test_a_listener_who_takes_the_step_balances_too() -> None:
    taken = []
    for on_loss in (lambda name, loss, step: step(loss), lambda name, loss, step: 2 * loss):
        point = Point()
        optimizer = Optimizer({"point": point}, 1.0, factory=sgd)
        params = rl.UpdateParams(max_grad_norm=1.0, balance_grad_norms=True)
        plan = rl.UpdatePlan(update=params, callbacks=rl.UpdateCallbacks(on_loss=on_loss))
        optimizer.attach("loss", plan, is_compiled=False)
        parts = [10 * point.x, 0.1 * point.y]
        optimizer.step(parts[0] + parts[1], parts)
        taken.append([-float(point.x.detach()), -float(point.y.detach())])
    assert taken[0] == pytest.approx([0.5, 0.5], rel=1e-5)
    assert taken[1] == pytest.approx([1.0, 0.01], rel=1e-3)  # another loss, of which nothing is known
