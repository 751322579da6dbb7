"""The factor that keeps small gradients of float16 from vanishing, and is lowered when large ones overflow."""

import torch
from torch import Tensor

from rltrainer.plan import PrecisionParams


class LossScaler:
    """Scales a loss; one for each optimizer, as the losses of an algorithm differ in size.

    Args:
        precision: the initial scale, and how it moves.
        device: where gradient steps run.
    """

    def __init__(self, precision: PrecisionParams, device: torch.device) -> None:
        self.precision = precision
        self.scale = torch.full((), float(precision.initial_loss_scale), device=device)
        self.num_good = torch.zeros((), device=device)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that a step changes."""
        return [self.scale, self.num_good]

    def update(self, is_finite: Tensor) -> None:
        """Take note of a step: lower the scale if its gradient was not finite, raise it after enough good ones."""
        precision, one_more = self.precision, self.num_good + 1
        grows = is_finite & (one_more >= precision.loss_scale_growth_interval)
        raised = self.scale * precision.loss_scale_growth
        raised = torch.where(grows & torch.isfinite(raised), raised, self.scale)
        self.scale.copy_(torch.where(is_finite, raised, self.scale * precision.loss_scale_backoff))
        self.num_good.copy_(torch.where(is_finite & ~grows, one_more, 0.0))

    def is_too_low(self) -> bool:
        """Return whether the scale is below the minimum; waits for the device."""
        return float(self.scale) < self.precision.min_loss_scale
