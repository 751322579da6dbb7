"""Networks with given answers, so that targets and losses can be worked out by hand."""

from typing import Any

import torch
from torch import Tensor, nn

import rltrainer as rl
from tests import batches


class FixedCritic(nn.Module):
    """Says the same of every observation and action; remembers what it was asked, and with which statistics."""

    def __init__(self, q: Any, of_samples: Any = None) -> None:
        super().__init__()
        self.q, self.of_samples = torch.as_tensor(q, dtype=torch.float32), torch.as_tensor(of_samples or [])
        self.encoder, self.asked = nn.Identity(), list[Any]()

    def forward(self, obs: Tensor, action: Tensor, num_members: int | None = None, batch_stats: bool = False) -> Tensor:
        self.asked.append((obs, action, batch_stats))
        return self.q[:num_members]

    def values(self, features: Tensor, action: Tensor) -> Tensor:
        return self.of_samples


class FixedDistribution:
    """Samples the same actions, all 0, with given log-densities."""

    def __init__(self, log_prob: Any) -> None:
        self.log_prob_ = torch.as_tensor(log_prob)

    def rsample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(noise), self.log_prob_.expand(noise.shape[:-1])


def batch(reward: Any, discount: Any, weight: Any = None, num_actions: int = 1) -> rl.Transitions:
    """Return transitions [B] of zeros but for these."""
    size = len(reward)
    given = {"discount": torch.tensor(discount)} | ({} if weight is None else {"weight": torch.tensor(weight)})
    return batches.transitions(torch.zeros(size, 2), torch.zeros(size, num_actions), torch.tensor(reward), **given)
