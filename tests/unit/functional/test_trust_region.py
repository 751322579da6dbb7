"""Conjugate gradients, Fisher products and line searches against numbers worked out by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rltrainer.nets.linear
from rltrainer.functional import trust_region as module

A = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
B = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(("num_steps", "x"), [
    (0, [0.0, 0.0]),
    # r = b = (1, 2), A r = (6, 7): length 5 / 20 = 1 / 4.
    (1, [0.25, 0.5]),
    # A has two dimensions, so two steps are exact: det A = 11, x = (3 - 2, 8 - 1) / 11.
    (2, [1 / 11, 7 / 11]),
    (9, [1 / 11, 7 / 11]),
])  # fmt: skip
def test_conjugate_gradient_by_hand(num_steps: int, x: list[float]) -> None:
    assert module.conjugate_gradient(A.mv, B, num_steps).tolist() == pytest.approx(x, abs=1e-6)


def test_conjugate_gradient_solves_what_a_direct_solver_does() -> None:
    root = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = root @ root.T + torch.eye(6, dtype=torch.float64)
    b = torch.arange(6, dtype=torch.float64)
    x = module.conjugate_gradient(matrix.mv, b, 20, tolerance=1e-24)
    torch.testing.assert_close(x, torch.linalg.solve(matrix, b))
    assert module.conjugate_gradient(A.mv, torch.zeros(2), 5).tolist() == [0.0, 0.0]


def categorical_metric(p: Tensor) -> Any:
    return lambda directions: [p * (directions[0] - (p * directions[0]).sum(-1, keepdim=True))]


def test_fisher_product_by_hand() -> None:
    # Logits J theta with J = [[1, 2], [0, 1], [1, 0]], p = (.2, .3, .5), v = (1, -1): J v = (-1, -1, 1), whose mean
    # under p is 0, so M J v = (-.2, -.3, .5), and J' of it (-.2 + .5, -.4 - .3).
    jacobian, p = torch.tensor([[1.0, 2.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0.2, 0.3, 0.5])
    theta = torch.zeros(2, requires_grad=True)
    product = module.fisher_product([jacobian @ theta], [theta], categorical_metric(p))
    for _ in range(2):  # the graphs are kept
        assert product(torch.tensor([1.0, -1.0])).tolist() == pytest.approx([0.3, -0.7])


def test_fisher_product_of_a_network_is_the_whole_matrix_times_a_vector() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, parameters = torch.randn(5, 2, dtype=torch.float64), list(net.parameters())
    logits = net(x)
    p = logits.detach().softmax(-1)
    product = module.fisher_product([logits], parameters, categorical_metric(p))
    rows = [module.flat(torch.autograd.grad(y, parameters, retain_graph=True)) for y in logits.flatten()]
    jacobian = torch.stack(rows)
    metric = torch.block_diag(*[torch.diag(q) - q.outer(q) for q in p])
    vector = torch.randn(jacobian.shape[1], dtype=torch.float64)
    torch.testing.assert_close(product(vector), jacobian.T @ (metric @ (jacobian @ vector)))


def test_fisher_product_goes_through_products_that_onednn_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(4, 3, requires_grad=True), torch.randn(6, 3)

    def both(out: Tensor) -> Tensor:
        return module.fisher_product([out.tanh()], [weight], lambda directions: directions)(torch.ones(12))

    expected = both(nn.functional.linear(x, weight))
    monkeypatch.setattr(rltrainer.nets.linear, "MIN_PRODUCT", 0)
    torch.testing.assert_close(both(rltrainer.nets.linear.linear(x, weight, None)), expected)


def test_trust_region_step_by_hand() -> None:
    # Two choices of equal probability with advantages 1 and -1: gradient (.5, -.5), F = [[.25, -.25], [-.25, .25]].
    # With damping .1: (F + .1) s = g gives s = (.5, -.5) / .6 = (.833333, -.833333), s' A s = .833333, and
    # sqrt(2 * .01 / .833333) = .154919.
    fisher = torch.tensor([[0.25, -0.25], [-0.25, 0.25]]) + 0.1 * torch.eye(2)
    step = module.trust_region_step(fisher.mv, torch.tensor([0.5, -0.5]), max_kl=0.01, num_steps=10)
    assert step.tolist() == pytest.approx([0.129099, -0.129099], abs=1e-6)
    assert module.trust_region_step(A.mv, torch.zeros(2), 0.01, 3).tolist() == [0.0, 0.0]


def test_line_search_takes_the_first_good_scale() -> None:
    tried: list[float] = []

    def below(limit: float) -> float:
        tried.clear()
        return module.line_search(lambda scale: tried.append(scale) or scale < limit, 4, 0.5)  # type: ignore[func-returns-value]

    assert below(2.0) == 1.0
    assert below(0.6) == 0.5
    assert tried == [1.0, 0.5]
    assert below(0.1) == 0.0
    assert tried == [1.0, 0.5, 0.25, 0.125]


def test_a_vector_splits_into_what_it_was_made_of() -> None:
    parts: Sequence[Tensor] = [torch.arange(6.0).view(2, 3), torch.tensor(6.0), torch.tensor([7.0])]
    assert module.flat(parts).tolist() == list(range(8))
    for part, again in zip(parts, module.split_like(module.flat(parts), parts), strict=True):
        assert torch.equal(part, again)
