"""Parts of natural gradients and trust regions: conjugate gradients, a line search, rates that follow a divergence."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# From a vector [P] to a matrix times it [P].
Product = Callable[[Tensor], Tensor]
RATES = 1e-5, 1e-2
"""Least and largest learning rate of `adapted_rate`."""


def conjugate_gradient(product: Product, b: Tensor, num_steps: int, tolerance: float = 1e-10) -> Tensor:
    """Solve A x = b [P] for a symmetric positive definite A (Hestenes & Stiefel 1952), given its product."""
    # All steps are taken, so that no device is waited for. Steps change nothing once the squared norm of the residual
    # is below `tolerance`. P steps would be exact.
    x, residual = torch.zeros_like(b), b
    direction, square = b, b @ b
    for _ in range(num_steps):
        image = product(direction)
        is_open = square > tolerance
        # If the residual is zero, both products are zero, and their ratio is undefined.
        length = torch.where(is_open, square / (direction @ image), 0.0)
        x = x + length * direction
        residual = residual - length * image
        next_square = residual @ residual
        direction = residual + torch.where(is_open, next_square / square, 0.0) * direction
        square = next_square
    return x


def fisher_product(
    outputs: Sequence[Tensor], parameters: Sequence[Tensor], metric: Callable[[Sequence[Tensor]], Sequence[Tensor]]
) -> Product:
    """Return the product of J' M J with a vector [P]: J is the derivative of outputs by parameters, M the `metric`."""
    # Unlike a second derivative of the KL divergence, the form is never negative along any direction, however it is
    # rounded (Martens & Sutskever 2011, section 5.2; Schulman et al. 2015, TRPO, appendix C.1).
    # J v is the derivative by u of (J' u) . v: two backward passes, whose graphs are made once.
    directions = [torch.zeros_like(output, requires_grad=True) for output in outputs]
    pulled_back = torch.autograd.grad(outputs, parameters, directions, create_graph=True)

    def product(vector: Tensor) -> Tensor:
        pushed = torch.autograd.grad(pulled_back, directions, split_like(vector, parameters), retain_graph=True)
        return flat(torch.autograd.grad(outputs, parameters, list(metric(pushed)), retain_graph=True))

    return product


def trust_region_step(product: Product, gradient: Tensor, max_kl: float, num_steps: int) -> Tensor:
    """Return the step [P] along the natural gradient to a KL divergence of `max_kl`, to second order.

    `product` multiplies by the Fisher matrix A, damping included; `num_steps` counts steps of conjugate gradients.
    """
    # Schulman et al. 2015, Trust Region Policy Optimization, appendix C: sqrt(2 delta / s' A s) s, A s = g.
    direction = conjugate_gradient(product, gradient, num_steps)
    curvature = direction @ product(direction)
    # A gradient of zero has no direction.
    return torch.where(curvature > 0, (2 * max_kl / curvature).sqrt(), 0.0) * direction


def line_search(is_good: Callable[[float], bool], num_steps: int, shrink: float) -> float:
    """Return the first of 1, shrink, shrink^2, ... that is good, or 0 if none of `num_steps` is."""
    return next((scale for scale in (shrink**k for k in range(num_steps)) if is_good(scale)), 0.0)


def adapted_rate(rate: Tensor, kl: Tensor, desired: float) -> Tensor:
    """Return a learning rate [], lower if KL(old || new) [] is above 2 * desired, higher if it is below desired / 2.

    The factor is 1.5; the rate stays within `RATES`. A divergence of 0, or NaN, changes nothing.
    """
    # rsl_rl's `schedule="adaptive"`. Schulman et al. 2017, PPO, section 4, adapts a penalty likewise.
    lowered, raised = (rate / 1.5).clamp(min=RATES[0]), (rate * 1.5).clamp(max=RATES[1])
    return torch.where(kl > 2 * desired, lowered, torch.where((kl < desired / 2) & (kl > 0), raised, rate))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return all elements as one vector [P]."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def split_like(vector: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of a vector in the shapes of `tensors`; the inverse of `flat`."""
    parts = torch.split(vector, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
