"""Action distributions, written out: `torch.distributions` objects cost more than the small networks they follow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from rltrainer.errors import NonFiniteError
from rltrainer.nets.noise import draw_like
from rltrainer.nets.weight_dtype import full_precision

# All compute in float32 at least: in a half precision, densities at the bounds are infinite and rare choices are never
# drawn. Random numbers are float32 in any format, so that all formats draw the same.

# The logit or value of a choice that is not allowed: finite, as 0 * -inf is NaN. So it is never drawn, and has no
# entropy and no gradient (Huang & Ontanon 2022, A Closer Look at Invalid Action Masking in Policy Gradient Algorithms).
EXCLUDED = -1e8
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """A batch of B distributions over actions."""

    def sample(self, generator: Generator | None = None) -> Tensor:
        """Draw one action each [B, ...]."""

    def mode(self) -> Tensor:
        """Return the likeliest action each [B, ...]."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probability (density) of the actions [B]."""

    def entropy(self) -> Tensor:
        """Return the entropies [B], in nats."""

    def kl(self, other: Any) -> Tensor:
        """Return the divergences KL(self || other) [B] from distributions of the same class."""

    @property
    def parameters(self) -> list[Tensor]:
        """The outputs [B, ...] of a network that define the distributions."""

    def fisher(self, directions: Sequence[Tensor]) -> list[Tensor]:
        """Return the Fisher information, the second derivative of `kl`, times directions [B, ...] in `parameters`."""


def with_parameters(like: Distribution, parameters: Sequence[Tensor]) -> Distribution:
    """Return distributions of the class of others, given their `parameters`, for `kl`."""
    if isinstance(like, MultiCategorical):
        return MultiCategorical([Categorical(logits) for logits in parameters])
    make: Any = type(like)
    return make(*parameters)  # type: ignore[no-any-return]  # of that class


def excluded(values: Tensor, mask: Tensor) -> Tensor:
    """Return logits or values [B, A], with -1e8 for the choices that a mask [B, A] excludes."""
    return torch.where(mask, values, EXCLUDED)


def best_choice(preference: Tensor) -> Tensor:
    """Return the index [B] of the largest number in each row [B, A]; NaN is a `NonFiniteError`, or -1 on devices."""
    # Devices and graphs would have to wait for a look at a number: a row with NaN gets an index that no space has.
    if _can_look_at(preference):
        return torch.from_numpy(np.asarray(_numbers(full_precision(preference).detach().numpy()).argmax(-1)))
    largest, index = preference.max(-1)
    return index.masked_fill(largest.isnan(), -1)


def _can_look_at(preference: Tensor) -> bool:
    is_tracing: bool = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]  # torch ships no type of it
    return preference.is_cpu and not (torch.compiler.is_compiling() or is_tracing)


def _numbers(preference: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return preferences [..., A]; a `NonFiniteError` if one is NaN."""
    # The sum of squares is NaN if a number is, and only then: 0.4 us, less than half of asking for each number.
    square = np.vdot(preference, preference)
    if square != square:
        rows = preference.reshape(-1, preference.shape[-1])
        row = int(np.flatnonzero(np.isnan(rows).any(-1))[0])
        text = f"no choice can be made in row {row} of the batch: its logits or action values are {rows[row].tolist()}."
        raise NonFiniteError(f"{text} Look for NaN in the observation or in the weights.")
    return preference


@dataclass(slots=True)
class Categorical:
    """Softmax over `logits` [B, A]; the action is int64 [B] in start .. start + A - 1."""

    logits: Tensor
    start: int = 0
    _log_probs: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.logits = full_precision(self.logits)

    @property
    def log_probs(self) -> Tensor:
        """The log-probability of every choice [B, A]; computed once, and again when gradients are first needed."""
        kept = self._log_probs
        if kept is None or (not kept.requires_grad and self.logits.requires_grad and torch.is_grad_enabled()):
            kept = self._log_probs = F.log_softmax(self.logits, -1)
        return kept

    def masked(self, mask: Tensor) -> "Categorical":
        """Return the distribution over the choices that a mask [B, A] allows."""
        return Categorical(excluded(self.logits, mask), self.start)

    def sample(self, generator: Generator | None = None) -> Tensor:
        """Draw choices [B]: argmax(logits - log E) with E ~ Exp(1), the Gumbel-max trick."""
        exponential = draw_like(self.logits, generator, "exponential_")
        if _can_look_at(self.logits):  # a call of NumPy's costs half of one of torch's
            index = _numbers(self.logits.detach().numpy() - np.log(exponential.numpy())).argmax(-1)
            return self._choice(torch.from_numpy(np.asarray(index)))
        return self._choice(best_choice(self.logits - exponential.log()))

    def mode(self) -> Tensor:
        """Return the likeliest choices [B]."""
        return self._choice(best_choice(self.logits))

    def log_prob(self, action: Tensor) -> Tensor:
        """Return log-probabilities [B]."""
        index = (action - self.start if self.start else action).unsqueeze(-1)
        return self.log_probs.gather(-1, index).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropies [B]."""
        # p log p is 0 where p is 0, but 0 * -inf is NaN: any finite number serves.
        log_probs = self.log_probs
        return -(log_probs.exp() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)

    def kl(self, other: "Categorical") -> Tensor:
        """Return sum p (log p - log q) [B]; a choice without probability here adds nothing."""
        log_probs = self.log_probs
        return (log_probs.exp() * (log_probs - other.log_probs).masked_fill(log_probs == -torch.inf, 0.0)).sum(-1)

    @property
    def parameters(self) -> list[Tensor]:
        """The logits [B, A]."""
        return [self.logits]

    def fisher(self, directions: Sequence[Tensor]) -> list[Tensor]:
        """Return (diag(p) - p p') v [B, A] for a direction v in the logits."""
        p, (v,) = self.log_probs.exp(), directions
        return [p * (v - (p * v).sum(-1, keepdim=True))]

    def _choice(self, index: Tensor) -> Tensor:
        return index + self.start if self.start else index


@dataclass(slots=True)
class MultiCategorical:
    """Independent choices, one `Categorical` each; the action is int64 [B, D]."""

    parts: list[Categorical]

    def masked(self, mask: Tensor) -> "MultiCategorical":
        """Return the distribution over allowed choices; a mask [B, A] holds the flags of one choice after the other."""
        masks = torch.split(mask, [part.logits.shape[-1] for part in self.parts], -1)
        return MultiCategorical([part.masked(flags) for part, flags in zip(self.parts, masks, strict=True)])

    def sample(self, generator: Generator | None = None) -> Tensor:
        """Draw choices [B, D]."""
        return torch.stack([part.sample(generator) for part in self.parts], dim=-1)

    def mode(self) -> Tensor:
        """Return the likeliest choices [B, D]."""
        return torch.stack([part.mode() for part in self.parts], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities of whole actions [B]."""
        pairs = zip(self.parts, action.unbind(-1), strict=True)
        return torch.stack([part.log_prob(column) for part, column in pairs]).sum(0)

    def entropy(self) -> Tensor:
        """Return the entropies of whole actions [B]."""
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def kl(self, other: "MultiCategorical") -> Tensor:
        """Return the divergences of whole actions [B]."""
        pairs = zip(self.parts, other.parts, strict=True)
        return torch.stack([part.kl(another) for part, another in pairs]).sum(0)

    @property
    def parameters(self) -> list[Tensor]:
        """The logits [B, A] of each choice."""
        return [part.logits for part in self.parts]

    def fisher(self, directions: Sequence[Tensor]) -> list[Tensor]:
        """Return each choice's product [B, A]."""
        return [part.fisher([v])[0] for part, v in zip(self.parts, directions, strict=True)]


@dataclass(slots=True)
class Bernoulli:
    """Independent flags, each set with probability sigmoid(`logits`) [B, D]; the action is int8 [B, D] of 0 and 1."""

    logits: Tensor

    def __post_init__(self) -> None:
        self.logits = full_precision(self.logits)

    def masked(self, mask: Tensor) -> "Bernoulli":
        """Return the distribution over allowed flags; a mask [B, 2 D] says for each whether it may be 0, and 1."""
        may_be_0, may_be_1 = mask[..., 0::2], mask[..., 1::2]
        fixed = torch.where(may_be_0 == may_be_1, 0.0, torch.where(may_be_1, -EXCLUDED, EXCLUDED))
        return Bernoulli(torch.where(may_be_0 & may_be_1, self.logits, fixed.to(self.logits.dtype)))

    def sample(self, generator: Generator | None = None) -> Tensor:
        """Draw flags [B, D]."""
        uniform = draw_like(self.logits, generator, "uniform_")
        return self._flags(uniform < self.logits.sigmoid())

    def mode(self) -> Tensor:
        """Return the likeliest flags [B, D]; 0 where both are as likely."""
        return self._flags(self.logits > 0)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities of whole actions [B]."""
        return F.logsigmoid(torch.where(action.bool(), self.logits, -self.logits)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropies of whole actions [B]."""
        size = self.logits.abs()  # H(p) = H(1 - p): both terms are small where one outcome is nearly certain
        return (F.softplus(-size) + size * torch.sigmoid(-size)).sum(-1)

    def kl(self, other: "Bernoulli") -> Tensor:
        """Return the divergences of whole actions [B]: the sum of p (log p - log q) over all flags, for 0 and 1."""
        pairs = (self.logits, other.logits), (-self.logits, -other.logits)
        terms = [p.sigmoid() * (F.logsigmoid(p) - F.logsigmoid(q)) for p, q in pairs]  # in logits of p and q
        return (terms[0] + terms[1]).sum(-1)

    @property
    def parameters(self) -> list[Tensor]:
        """The logits [B, D]."""
        return [self.logits]

    def fisher(self, directions: Sequence[Tensor]) -> list[Tensor]:
        """Return p (1 - p) v [B, D] for a direction v in the logits."""
        return [self.logits.sigmoid() * (-self.logits).sigmoid() * directions[0]]

    def _flags(self, is_set: Tensor) -> Tensor:
        """Return the flags as int8; NaN in the logits is an error or -1, see `best_choice`."""
        if _can_look_at(self.logits):
            _numbers(self.logits.detach().numpy())
            return is_set.to(torch.int8)
        return is_set.to(torch.int8).masked_fill(self.logits.isnan(), -1)


@dataclass(slots=True)
class DiagonalGaussian:
    """Independent normals with `mean` [B, A] and `log_std` [A] or [B, A]; the action is [B, A]."""

    mean: Tensor
    log_std: Tensor

    def __post_init__(self) -> None:
        self.mean, self.log_std = full_precision(self.mean), full_precision(self.log_std)

    def sample(self, generator: Generator | None = None) -> Tensor:
        """Draw actions [B, A], unbounded."""
        noise = draw_like(self.mean, generator, "normal_")
        return torch.addcmul(self.mean, self.log_std.exp(), noise)

    def mode(self) -> Tensor:
        """Return the means [B, A]."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Return log-densities [B]."""
        z = (action - self.mean) * torch.exp(-self.log_std)
        return (-0.5 * z.square() - self.log_std - HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropies [B]."""
        return (self.log_std + (0.5 + HALF_LOG_2PI)).expand_as(self.mean).sum(-1)

    def kl(self, other: "DiagonalGaussian") -> Tensor:
        """Return sum log(s2 / s1) + (s1^2 + (m1 - m2)^2) / 2 s2^2 - 1 / 2 [B]."""
        spread = self.log_std - other.log_std
        moved = (self.mean - other.mean) * torch.exp(-other.log_std)
        return (0.5 * ((2 * spread).exp() + moved.square() - 1) - spread).sum(-1)

    @property
    def parameters(self) -> list[Tensor]:
        """The means, and the logarithms of the standard deviations, [B, A] each."""
        return [self.mean, self.log_std.expand_as(self.mean)]

    def fisher(self, directions: Sequence[Tensor]) -> list[Tensor]:
        """Return v / s^2 [B, A] for a direction v in the means, and 2 w [B, A] for a direction w in the logarithms."""
        v, w = directions
        return [v * torch.exp(-2 * self.log_std), 2 * w]


@dataclass(slots=True)
class SquashedGaussian(DiagonalGaussian):
    """tanh of a diagonal Gaussian: actions in (-1, 1) (Haarnoja et al. 2018, Soft Actor-Critic, appendix C).

    Its divergences are the Gaussian's, which a one-to-one function does not change.
    """

    def sample(self, generator: Generator | None = None) -> Tensor:
        """Draw actions [B, A] in (-1, 1)."""
        return DiagonalGaussian.sample(self, generator).tanh()

    def mode(self) -> Tensor:
        """Return tanh of the means [B, A]."""
        return self.mean.tanh()

    def rsample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [B, A] and their log-densities [B], both differentiable, from standard normal `noise`."""
        u = torch.addcmul(self.mean, self.log_std.exp(), noise)
        log_prob = (-0.5 * noise.square() - self.log_std - HALF_LOG_2PI).sum(-1)
        return u.tanh(), log_prob - _log_det_tanh(u)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return log-densities [B] of actions in (-1, 1); the bounds themselves are moved inside by 1e-6."""
        u = full_precision(action).clamp(-1 + 1e-6, 1 - 1e-6).atanh()
        return DiagonalGaussian.log_prob(self, u) - _log_det_tanh(u)

    def entropy(self) -> Tensor:
        """Raise `NotImplementedError`: a squashed Gaussian's entropies [B] have no closed form."""
        raise NotImplementedError("SquashedGaussian.entropy: there is no closed form. Use -rsample(noise)[1].")


def _log_det_tanh(u: Tensor) -> Tensor:
    """Return log |d tanh(u) / du| summed over actions."""
    # log(1 - tanh(u)^2), written so that it stays finite for large u.
    return (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
