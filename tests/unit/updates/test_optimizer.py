"""The step of an optimizer, beside `backward` and torch's own optimizers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rltrainer.execution.compiler import tracing_gradients
from rltrainer.nets.target import Accumulation
from rltrainer.updates.optimizer import Optimizer

X = torch.arange(12.0).view(3, 4) / 10 - 0.5


class Pair(nn.Module):
    """Two matrices of random numbers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.p, self.q = (nn.Parameter(torch.randn(3, 4, generator=generator)) for _ in range(2))


class HandsOver(torch.autograd.Function):
    """The sum of a matrix times X, whose gradient is X itself, not a copy."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        return (matrix * X).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return X


LOSSES: dict[str, Callable[[Pair], Tensor]] = {
    "expanded": lambda pair: pair.p.sum() + 2 * pair.q.sum(),
    "transposed": lambda pair: (pair.p.t() @ X).square().sum() + (X.t() @ pair.q).square().sum(),
    "shared": lambda pair: (pair.p + pair.q).square().sum(),
    "shared and expanded": lambda pair: (pair.p + pair.q).sum(),
    "strided": lambda pair: pair.p[:, ::2].square().sum() + pair.q.permute(1, 0)[1:].square().sum(),
    "handed over": lambda pair: HandsOver.apply(pair.p) + HandsOver.apply(pair.q),  # type: ignore[no-untyped-call]
}
FACTORIES: dict[str, Any] = {
    "ours": None,
    "torch": lambda parameters: torch.optim.Adam(parameters),
    "fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
}


def backward_steps(pair: Pair, loss: Callable[[Pair], Tensor], max_grad_norm: float | None) -> None:
    """Take three steps as any PyTorch program would."""
    optimizer = torch.optim.Adam(pair.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(pair).backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(pair.parameters(), max_grad_norm)
        optimizer.step()


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("name", [*LOSSES, "transposed parameters"])
def test_gradients_of_any_strides_are_those_of_backward(name: str, factory: str, max_grad_norm: float | None) -> None:
    ours, reference, loss, before = Pair(), Pair(), LOSSES[name.removesuffix(" parameters")], X.clone()
    for pair in (ours, reference) if name.endswith("parameters") else ():
        pair.p.data = pair.p.data.t().contiguous().t()
    optimizer = Optimizer({"pair": ours}, 0.1, max_grad_norm, factory=FACTORIES[factory])
    for _ in range(3):
        optimizer.step(loss(ours))
    backward_steps(reference, loss, max_grad_norm)
    for (key, value), expected in zip(ours.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(value, expected, msg=lambda text, key=key: f"{key}: {text}")
    assert torch.equal(X, before)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("is_contiguous", [True, False])  # not: the way of graphs and devices
def test_a_frozen_parameter_is_left_alone_and_goes_on_when_it_is_trained_again(
    factory: str, is_contiguous: bool
) -> None:
    pair = Pair()
    if not is_contiguous:
        pair.q.data = pair.q.data.t().contiguous().t()
    optimizer = Optimizer({"pair": pair}, 0.1, factory=FACTORIES[factory])

    def moved() -> list[bool]:
        before = [p.detach().clone() for p in pair.parameters()]
        optimizer.step(LOSSES["shared"](pair))
        return [not torch.equal(p, old) for p, old in zip(pair.parameters(), before, strict=True)]

    assert moved() == [True, True]
    pair.p.requires_grad_(False)
    assert moved() == moved() == [False, True]
    pair.q.requires_grad_(False)
    assert moved() == [False, False]
    pair.requires_grad_(True)
    assert moved() == [True, True]


def test_a_bad_gradient_beside_a_frozen_parameter_is_named() -> None:
    pair = Pair()
    pair.p.requires_grad_(False)
    optimizer = Optimizer({"pair": pair}, 0.1)
    optimizer.step(LOSSES["shared"](pair) * float("nan"))
    assert optimizer.take_fault() == "the gradient of pair.q is not finite (loss = nan)"


class UnitRows(nn.Linear):
    """A layer whose rows have length 1."""

    def project_(self) -> None:
        self.weight.div_(self.weight.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("way", ["as written", "flat", "torch", "traced"])
def test_modules_are_projected_after_each_step_that_is_taken(way: str) -> None:
    layer = UnitRows(2, 2, bias=False)
    layer.weight.data = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    factory: Any = torch.optim.SGD if way == "torch" else None
    optimizer = Optimizer({"layer": layer}, 0.1, factory=factory)
    optimizer._is_on_host = way != "flat"  # as on a device: one vector, without a branch
    groups = Accumulation(2)
    optimizer.gather_over(groups)

    def step() -> None:
        optimizer.step(layer(torch.ones(1, 2)).sum())

    for (applies,) in groups.grouped([(), ()]):
        groups.applies = applies
        with tracing_gradients():
            (torch.compile(step, backend="eager", fullgraph=True) if way == "traced" else step)()
        assert torch.allclose(layer.weight.norm(dim=1), torch.ones(2)) == applies
