"""Adam, written twice: as one call on the CPU, and as tensor arithmetic for graphs and devices."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rltrainer.errors import CheckpointError
from rltrainer.functional.scalars import computed_once
from rltrainer.nets.weight_dtype import convert
from rltrainer.state.codec import check_like, read
from rltrainer.types import State
from rltrainer.validation.field_rules import NonNegativeFloat

MISSED = "num_missed"
"""In a state only if parameters have missed steps."""


class Adam:
    """Adam (Kingma & Ba 2015): the same numbers as `torch.optim.Adam`, with a step count for each parameter.

    With `weight_decay` it is AdamW (Loshchilov & Hutter 2019), the same numbers as `torch.optim.AdamW`.
    One count serves all parameters until one of them misses a step, because it is frozen or has no gradient.
    """

    def __init__(
        self, parameters: Sequence[Tensor], eps: float = 1e-8, betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        self.parameters, self.eps, self.betas, self.weight_decay = list(parameters), eps, betas, weight_decay
        device = self.parameters[0].device
        self._sizes = [p.numel() for p in self.parameters]
        # Flat: a graph updates one vector instead of a dozen small tensors.
        self.mean = torch.zeros(sum(self._sizes), device=device)
        self.square = torch.zeros_like(self.mean)
        self.num_steps = torch.zeros((), device=device)
        self.num_missed = torch.zeros(len(self.parameters), device=device)  # of these steps, by parameter
        self.counts_differ = False
        self._lr, self.rate = 0.0, torch.zeros((), device=device)
        self.adapts = False  # whether gradient steps change `rate`, which then decides
        self._look_at_moments()

    def _look_at_moments(self) -> None:
        self._mean_views, self._square_views = self._split(self.mean), self._split(self.square)

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the views: in a pickle they would be tensors of their own."""
        return {name: value for name, value in vars(self).items() if not name.endswith("_views")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the copy's state, and views of its own moments."""
        vars(self).update(state)
        self._look_at_moments()

    def set_weight_dtype(self, dtype: torch.dtype) -> None:
        """Bring moments and learning rate to the parameters' format, in place; step counts and adaptive rates stay."""
        for tensor in (self.mean, self.square):
            convert(tensor, dtype)
        if self.rate.dtype != dtype and not self.adapts:
            self.rate = torch.full_like(self.rate, self._lr, dtype=dtype)
        self._look_at_moments()

    @property
    def lr(self) -> float:
        """The learning rate; waits for the device if it adapts."""
        return float(self.rate) if self.adapts else self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        if value != self._lr or self.adapts:
            self._lr = value
            self.rate.fill_(value)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that a step changes besides the parameters."""
        return [self.mean, self.square, self.num_steps, self.num_missed]

    def step(self, trained: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Apply the gradients of all parameters or some of them, contiguous: the one call walks through raw memory."""
        # `torch.optim.Adam.step` spends most of its time around this call.
        self.num_steps += 1
        mean, square, counts = self._mean_views, self._square_views, [self.num_steps] * len(trained)
        if self._are_counts_apart(trained):
            moves = self._moves(trained)
            self.num_missed += torch.tensor([not each for each in moves])
            counts = list((self.num_steps - self.num_missed).unbind())
            mean, square, counts = (list(itertools.compress(each, moves)) for each in (mean, square, counts))
        lr = self.rate if self.adapts else self._lr
        if self.weight_decay:  # p <- p - lr * weight_decay * p
            torch._foreach_mul_(list(trained), 1 - lr * self.weight_decay)
        torch._fused_adam_(  # what torch.optim.Adam(fused=True) calls
            list(trained), list(map(Tensor.contiguous, gradients)), mean, square, [], counts, lr=lr,
            beta1=self.betas[0], beta2=self.betas[1], weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip

    def step_flat(
        self, trained: Sequence[Tensor], gradient: Tensor, applies: Tensor, doubtful: Sequence[Tensor] = ()
    ) -> None:
        """Apply a flat gradient of all parameters without a branch; nothing changes if `applies` is False."""
        # Parameters that are not trained, and doubtful ones whose gradient is 0, are left alone.
        beta1, beta2 = self.betas
        self.num_steps.add_(applies)
        num_steps, moves = self.num_steps, applies
        if self._are_counts_apart(trained, doubtful):
            # No tensor made from a list: a CUDA graph cannot copy from the host.
            are_trained = torch.stack([torch.full_like(applies, each) for each in self._moves(trained)])
            if doubtful:
                parts = zip(self._split(gradient), self._moves(doubtful), strict=True)
                are_trained &= torch.stack([x.any() if each else torch.ones_like(applies) for x, each in parts])
            moves = applies & are_trained
            self.num_missed.add_(applies & ~moves)
            num_steps = (num_steps - self.num_missed).clamp(min=1)  # a parameter that never moved has no correction
        # m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
        mean, square = self.mean.lerp(gradient, 1 - beta1), self.square.lerp(gradient.square(), 1 - beta2)
        # p <- p - lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
        num_steps = num_steps.to(mean.dtype)
        scale, correction = self.rate / (1 - beta1**num_steps), (1 - beta2**num_steps).sqrt()
        if moves is applies:
            scale, correction = computed_once(scale), computed_once(correction)
        else:
            # From one value for each parameter to one for each of its numbers.
            scale, correction, applies = [
                torch.cat([x.expand(size) for x, size in zip(values.unbind(), self._sizes, strict=True)])
                for values in (scale, correction, moves)
            ]
        denominator = square.sqrt() / correction + self.eps
        change = scale * mean / denominator
        if self.weight_decay:  # p <- p - lr * weight_decay * p
            change += self.rate * self.weight_decay * torch.cat([p.flatten() for p in self.parameters])
        # Selected, not multiplied by 0: a gradient that is not finite would leave NaN.
        change = torch.where(applies, change, 0.0)
        self.mean.copy_(torch.where(applies, mean, self.mean))
        self.square.copy_(torch.where(applies, square, self.square))
        torch._foreach_sub_(self.parameters, self._split(change))

    def state_dict(self) -> State:
        """Return the moments, the step counts and the learning rate."""
        state = {"rule": "Adam", "lr": self.lr, "mean": self.mean, "square": self.square, "num_steps": self.num_steps}
        return state | ({MISSED: self.num_missed} if self.counts_differ else {})

    def check_state_dict(self, name: str, state: State) -> None:
        """Raise a `CheckpointError` that begins with `name` unless this is a state of Adam for these parameters."""
        hint = "Freeze the same layers, and build the networks, as when it was saved."
        for key in ("mean", "square", "num_steps", MISSED):
            if key in state or key != MISSED:
                least = None if key == "mean" else 0
                check_like(f"{name}.{key}", getattr(self, key), state.get(key), hint, least)
        read(NonNegativeFloat, state.get("lr"), f"{name}.lr")
        if MISSED in state and (state[MISSED] > state["num_steps"]).any():
            raise CheckpointError(f"{name}.{MISSED}: expected at most num_steps, found {state[MISSED].tolist()!r}")

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned and `check_state_dict` has checked, in place."""
        self.lr = state["lr"]
        for name in ("mean", "square", "num_steps"):
            getattr(self, name).copy_(state[name])
        self.num_missed.copy_(state.get(MISSED, torch.zeros_like(self.num_missed)))
        self.counts_differ |= MISSED in state  # a step that is recorded for counts that differ serves equal ones too

    def _are_counts_apart(self, trained: Sequence[Tensor], doubtful: Sequence[Tensor] = ()) -> bool:
        """Return whether one count does not serve all parameters in a step of these."""
        if len(trained) < len(self.parameters) or doubtful:
            self.counts_differ = True
        return self.counts_differ

    def _moves(self, trained: Sequence[Tensor]) -> list[bool]:
        """Return which parameters are among these."""
        found = dict.fromkeys(trained)
        return [parameter in found for parameter in self.parameters]

    def _split(self, flat: Tensor) -> list[Tensor]:
        """Return one view per parameter, of its shape."""
        return [part.view_as(p) for part, p in zip(torch.split(flat, self._sizes), self.parameters, strict=True)]
