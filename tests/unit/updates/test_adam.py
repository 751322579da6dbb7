"""Adam in one call: the same numbers as torch's, to the last bit."""

from typing import Any

import pytest
import torch

from rltrainer.errors import CheckpointError
from rltrainer.updates.adam import Adam
from rltrainer.updates.gradient import Gradient
from rltrainer.updates.optimizer import Optimizer
from rltrainer.updates.torch_optimizer import TorchOptimizer

RESTS = [(0,), (), (0,), (0, 2), (2,), (), (1,), ()]
"""Which parameters rest in steps of each part of a training: some from the start, some later, some twice."""


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("is_flat", [False, True])
def test_each_parameter_has_its_own_count_as_in_torch(is_flat: bool, weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = [torch.randn(shape, generator=generator) for shape in [(4, 3), (4,), ()]]
    theirs = [parameter.clone().requires_grad_() for parameter in ours]
    options: Any = {"eps": 1e-5, "betas": (0.5, 0.99)} if weight_decay else {"eps": 1e-5}
    rule = Adam(ours, weight_decay=weight_decay, **options)
    reference: Any = torch.optim.Adam(theirs, fused=True, **options)
    if weight_decay:
        reference = torch.optim.AdamW(theirs, fused=True, weight_decay=weight_decay, **options)
    for part, resting in enumerate(RESTS):
        rule.lr = reference.param_groups[0]["lr"] = 0.01 / (1 + part)
        for _ in range(7):
            gradients = [torch.randn(p.shape, generator=generator) for p in ours]
            moving = [i for i in range(3) if i not in resting]
            for i, parameter in enumerate(theirs):
                parameter.grad = gradients[i].clone() if i in moving else None
            reference.step()
            trained = [ours[i] for i in moving]
            if is_flat:
                flat = torch.cat([gradients[i].flatten() * (i in moving) for i in range(3)])
                rule.step_flat(trained, torch.full_like(flat, float("nan")), torch.tensor(False))  # no step of anything
                rule.step_flat(trained, flat, torch.tensor(True))
            else:
                rule.step(trained, [gradients[i] for i in moving])
            for one, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(one, other.detach(), rtol=0, atol=1e-5 * is_flat)
    counts = [float(reference.state[parameter]["step"]) for parameter in theirs]
    assert (rule.num_steps - rule.num_missed).tolist() == counts


def test_counts_that_differ_are_kept_in_files() -> None:
    def trained(*rests: int) -> Adam:
        rule = Adam([torch.ones(2), torch.ones(1)])
        rule.lr = 0.1
        for moving in rests:
            rule.step(rule.parameters[:moving], [torch.ones(2), torch.ones(1)][:moving])
        return rule

    one, other, plain = trained(2, 1, 1), trained(), trained(2)
    assert plain.state_dict().keys() == one.state_dict().keys() - {"num_missed"}
    other.check_state_dict("Adam", one.state_dict())
    other.load_state_dict(one.state_dict())
    for rule in (one, other):
        rule.step([p.fill_(1.0) for p in rule.parameters], [torch.ones(2), torch.full((1,), 2.0)])
    assert torch.equal(one.parameters[1], other.parameters[1])
    assert other.num_missed.tolist() == [0.0, 2.0]
    other.load_state_dict(plain.state_dict())
    assert other.num_missed.tolist() == [0.0, 0.0]
    for missed, text in (([0.0, 9.0], "expected at most num_steps, found"), ([0.0, -1.0], "is negative")):
        with pytest.raises(CheckpointError, match=rf"^Adam\.num_missed: {text}"):
            one.check_state_dict("Adam", one.state_dict() | {"num_missed": torch.tensor(missed)})
    with pytest.raises(CheckpointError, match=r"^Adam\.num_missed: expected shape \(2,\), found \(\)"):
        one.check_state_dict("Adam", one.state_dict() | {"num_missed": torch.tensor(1.0)})


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
    means = []
    for is_flat in (False, True):
        optimizer = Optimizer({"layer": torch.nn.Linear(1, 1, bias=False)}, 1.0, max_grad_norm=1e-6)
        (weight,) = optimizer.parameters
        gradient = Gradient([weight], [weight], (torch.full((1, 1), 1e-6),), torch.zeros(()), (), is_flat)
        with torch.no_grad():
            optimizer._apply(gradient, optimizer.transforms)
        means.append(float(optimizer.method.mean))  # type: ignore[union-attr]  # of Adam
    assert means == pytest.approx([5e-8, 5e-8])
