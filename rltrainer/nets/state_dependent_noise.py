"""Generalised state-dependent exploration (gSDE): noise that is a function of what is seen, for some steps the same.

Source: Raffin et al. 2021, Smooth Exploration for Robotic Reinforcement Learning, section 3.
"""

from functools import partial
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets.decision import Decision
from rltrainer.nets.distributions import DiagonalGaussian, SquashedGaussian
from rltrainer.nets.linear import Linear
from rltrainer.nets.weight_dtype import full_precision
from rltrainer.spaces import Space
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import Flag, PositiveInt, checked

EPS = 1e-6


class StateDependentHead(nn.Module):
    """A normal with a linear mean, explored by noise phi(obs) theta, theta ~ N(0, std^2) [F, A].

    Each env keeps its theta, in standard normal numbers, for `sample_interval` steps, at most to the end of its
    episode: so actions do not jump from step to step. Over all theta an action is normal, with the variance
    phi^2 std^2: updates go by that, and need no theta. No gradient reaches the features through the variance:
    so it is on policy in Stable-Baselines3 (`learn_features=False`), while its SAC and TQC let it through. As there,
    the mean of what is squashed is clipped to [-2, 2].

    Args:
        log_std: initial logarithm of std.
        squashes: whether actions are tanh of the normal.
        sample_interval: steps between two draws of theta; None draws at the start of an episode only.
    """

    def __init__(
        self, in_features: int, num_actions: int, log_std: float, squashes: bool, sample_interval: int | None
    ) -> None:
        super().__init__()
        self.linear = Linear(in_features, num_actions)
        self.log_std = nn.Parameter(torch.full((in_features, num_actions), float(log_std)))
        self.squashes, self.sample_interval = squashes, sample_interval

    def forward(self, features: Tensor) -> DiagonalGaussian | SquashedGaussian:
        """Map features [B, F] to distributions over [B, A]."""
        mean = full_precision(self.linear(features))
        variance = full_precision(features.detach()).square() @ (2 * self.log_std).exp()
        log_std = 0.5 * (variance + EPS).log()
        return SquashedGaussian(mean.clamp(-2, 2), log_std) if self.squashes else DiagonalGaussian(mean, log_std)

    def initial_state(self, num_envs: int) -> Tensor:
        """Return the memory at the start of an episode: steps since the last draw, and theta [num_envs, 1 + F * A]."""
        return torch.zeros(num_envs, 1 + self.log_std.numel(), device=self.log_std.device)

    def explore(
        self, features: Tensor, state: Tensor, generator: torch.Generator | None
    ) -> tuple[DiagonalGaussian | SquashedGaussian, Tensor, Tensor]:
        """Return distributions for features [N, F], actions [N, A] by each env's theta, and the next memory."""
        num_steps, theta = state[:, :1], state[:, 1:]
        is_due = num_steps == 0
        if not is_due.is_cpu or is_due.any():
            theta = torch.where(is_due, torch.empty_like(theta).normal_(generator=generator), theta)
        interval = self.sample_interval
        num_steps = torch.ones_like(num_steps) if interval is None else (num_steps + 1) % interval
        distribution = self(features)
        weights = theta.view(-1, *self.log_std.shape) * self.log_std.exp()
        noise = torch.einsum("nf,nfa->na", full_precision(features), weights)
        action = distribution.mean + noise
        return distribution, action.tanh() if self.squashes else action, torch.cat([num_steps, theta], 1)


def explored(actor: nn.Sequential, obs: Tree, state: Tensor | None, generator: torch.Generator | None) -> Decision:
    """Return what an actor with such a head decides, in the scale of its networks; without a state, at its start."""
    features, head = actor[:-1](obs), actor[-1]
    assert isinstance(head, StateDependentHead), "the policy looks at its option first"
    state = head.initial_state(len(features)) if state is None else state
    distribution, action, state = head.explore(features, state, generator)
    return Decision(action, state, {"log_prob": partial(distribution.log_prob, action)})


def require_box(owner: str, use_sde: object, sample_interval: object, action_space: Space) -> tuple[bool, Any]:
    """Return the checked options of a policy that may explore so.

    Raises:
        ParamsError: one breaks its rule, or there is nothing for it to be about; the text names `owner`.
    """
    use_sde = checked(owner, "use_sde", use_sde, Flag)
    sample_interval = checked(owner, "sde_sample_interval", sample_interval, PositiveInt | None)
    if use_sde and not isinstance(action_space, spaces.Box):
        rule = f"must be False where actions are no Box, but {action_space}"
        raise ParamsError(field_error_text(owner, "use_sde", rule, use_sde))
    if sample_interval is not None and not use_sde:
        rule = "must be None without use_sde=True"
        raise ParamsError(field_error_text(owner, "sde_sample_interval", rule, sample_interval))
    return bool(use_sde), sample_interval
