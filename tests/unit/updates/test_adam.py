"""Adam in one call: the same numbers as torch's, to the last bit."""

import pytest
import torch

from rltrainer.updates.adam import Adam
from rltrainer.updates.optimizer import Optimizer
from rltrainer.updates.torch_optimizer import TorchOptimizer


def test_same_bits_as_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (4,), ()]
    ours = [torch.randn(shape, generator=generator) for shape in shapes]
    theirs = [parameter.clone().requires_grad_() for parameter in ours]
    rule, reference = Adam(ours, eps=1e-5), torch.optim.Adam(theirs, eps=1e-5, fused=True)
    for lr in (1e-2, 1e-3, 1e-3):
        gradients = [torch.randn(shape, generator=generator) for shape in shapes]
        rule.lr = reference.param_groups[0]["lr"] = lr
        rule.step(ours, gradients)
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient
        reference.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_the_step_without_branches_gives_the_same_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (4,), ()]
    starts = [torch.randn(shape, generator=generator) for shape in shapes]
    one, other = (Adam([start.clone() for start in starts], eps=1e-5) for _ in range(2))
    for lr in (1e-2, 1e-3, 1e-3):
        gradients = [torch.randn(shape, generator=generator) for shape in shapes]
        one.lr = other.lr = lr
        one.step(one.parameters, gradients)
        other.step_flat(other.parameters, torch.cat([gradient.flatten() for gradient in gradients]), torch.tensor(True))
    torch.testing.assert_close(other.parameters, one.parameters)
    torch.testing.assert_close(other.square, one.square)


def test_a_flat_step_that_does_not_apply_changes_nothing() -> None:
    parameter = torch.tensor([1.0, 2.0])
    rule = Adam([parameter])
    rule.lr = 0.1
    rule.step_flat([parameter], torch.tensor([float("nan"), 1.0]), torch.tensor(False))
    assert parameter.tolist() == [1.0, 2.0]
    assert (rule.mean.tolist(), rule.square.tolist(), float(rule.num_steps)) == ([0.0, 0.0], [0.0, 0.0], 0.0)


def test_first_step_by_hand() -> None:
    # After one step both moments are unbiased to g and g^2, so the step is lr * g / (|g| + eps) = lr * sign(g).
    parameter = torch.tensor([1.0, 1.0])
    rule = Adam([parameter], eps=0.0)
    rule.lr = 0.1
    rule.step([parameter], [torch.tensor([2.0, -0.5])])
    torch.testing.assert_close(parameter, torch.tensor([0.9, 1.1]))


def test_state_is_restored_in_place() -> None:
    one, other = Adam([torch.ones(2)]), Adam([torch.ones(2)])
    one.lr = 0.1
    one.step(one.parameters, [torch.ones(2)])
    moments = other.mean
    other.load_state_dict(one.state_dict())
    assert other.mean is moments
    assert torch.equal(moments, one.mean)
    assert (float(other.num_steps), other.lr) == (1.0, 0.1)


def test_a_torch_optimizer_is_used_alike() -> None:
    parameter = torch.tensor([1.0], requires_grad=True)
    rule = TorchOptimizer(torch.optim.SGD([parameter], lr=99.0, momentum=0.5), [parameter])
    rule.lr = 0.1
    rule.step([parameter], [torch.tensor([1.0])])
    assert parameter.item() == pytest.approx(1 - 0.1)
    state = rule.state_dict()
    other = TorchOptimizer(torch.optim.SGD([parameter], lr=99.0, momentum=0.5), [parameter])
    other.load_state_dict(state)
    assert other.lr == pytest.approx(0.1)
    rule.step([parameter], [torch.tensor([0.0])])  # momentum 0.5 of the gradient before
    assert parameter.item() == pytest.approx(1 - 0.1 - 0.05)


def test_a_tiny_limit_of_the_norm_is_kept_to_with_and_without_a_branch() -> None:
    # norm 1e-6, limit 1e-6: the scale is 1e-6 / (1e-6 + 1e-6) = 0.5 in both ways.
    layers = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)]
    one, other = (Optimizer({"layer": layer}, 1.0, max_grad_norm=1e-6) for layer in layers)
    with torch.no_grad():
        one._apply(one.parameters, (torch.full((1, 1), 1e-6),), torch.zeros(()))
        other._apply_flat(other.method, other.parameters, (torch.full((1, 1), 1e-6),), torch.zeros(()))  # type: ignore[arg-type]  # Adam
    assert [float(o.method.mean) for o in (one, other)] == pytest.approx([5e-8, 5e-8])  # type: ignore[union-attr]
