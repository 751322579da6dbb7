"""Gradients as one vector of all parameters, and back; gradients of losses whose parts are balanced."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rltrainer.updates.gradient_limit import GradientLimit

Gradients = tuple[Tensor, ...]


def as_vector(parameters: Sequence[Tensor], trained: Sequence[Tensor], gradients: Gradients) -> Tensor:
    """Return the gradients of all parameters as one vector, with zeros for those that are left alone."""
    if len(trained) < len(parameters):
        found = dict(zip(trained, gradients, strict=True))
        gradients = tuple(found[p] if p in found else torch.zeros_like(p) for p in parameters)
    return torch.cat([gradient.flatten() for gradient in gradients])


def in_parts(parameters: Sequence[Tensor], vector: Tensor, trained: Sequence[Tensor]) -> Gradients:
    """Return the gradients of the parameters that are trained, as views of a vector of all."""
    parts = zip(parameters, torch.split(vector, [p.numel() for p in parameters]), strict=True)
    if len(trained) == len(parameters):
        return tuple(part.view_as(p) for p, part in parts)
    found = dict.fromkeys(trained)
    return tuple(part.view_as(p) for p, part in parts if p in found)


def filled(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Gradients:
    """Return gradients with zeros where there is none."""
    pairs = zip(parameters, gradients, strict=True)
    return tuple(torch.zeros_like(p) if gradient is None else gradient for p, gradient in pairs)


def without_zeros(
    trained: Sequence[Tensor], gradients: Gradients, doubtful: Sequence[Tensor]
) -> tuple[list[Tensor], Gradients]:
    """Return the parameters to train and their gradients, without those of the doubtful whose gradient is 0."""
    is_doubtful = dict.fromkeys(doubtful)
    kept = [(p, x) for p, x in zip(trained, gradients, strict=True) if p not in is_doubtful or x.any()]
    return [p for p, _ in kept], tuple(x for _, x in kept)


def balanced(
    parameters: Sequence[Tensor], trained: Sequence[Tensor], losses: Sequence[Tensor], scale: Tensor | float,
    limit: GradientLimit,
) -> tuple[list[Tensor | None], Tensor]:  # fmt: skip
    """Return gradients to which each part of a loss contributes alike, and the norm of the plain ones.

    Args:
        parameters, trained: all parameters, and those that are trained.
        losses: the parts.
        scale: what each is multiplied with while its gradient is taken.
        limit: how long the gradient may be, of which each part gets a share.

    Returns:
        gradients of those that are trained, None where no part depends on one; and the norm.
    """
    each = [torch.autograd.grad(x * scale, trained, retain_graph=True, allow_unused=True) for x in losses]
    with torch.no_grad():
        vectors = torch.stack([as_vector(parameters, trained, filled(trained, found)) for found in each]) / scale
        plain = vectors.sum(0)
        norm = limit.norm(plain, torch.linalg.vector_norm(plain))
        gradients = in_parts(parameters, limit.balanced(vectors), trained)
    are_unused = [all([gradient is None for gradient in found]) for found in zip(*each, strict=True)]
    return [None if unused else x for x, unused in zip(gradients, are_unused, strict=True)], norm
