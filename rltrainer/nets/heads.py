"""Heads: from features to a distribution over an action space."""

import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from rltrainer.errors import ParamsError, SpaceError
from rltrainer.nets.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical, SquashedGaussian
from rltrainer.nets.linear import Linear, run_through
from rltrainer.nets.weight_dtype import full_precision
from rltrainer.spaces import Space, require_few_choices, require_floats


# Distributions and values are float32 at least, whatever the format of the matrix products before them.
class ValueHead(Linear):
    """A linear layer to V values, such as one for each action, of K numbers each, such as quantiles of a return."""

    def __init__(self, in_features: int, num_values: int, num_outputs: int = 1) -> None:
        super().__init__(in_features, num_values * num_outputs)
        self.num_outputs = num_outputs

    def forward(self, features: Tensor) -> Tensor:
        """Map [B, in_features] to [B, V], or to [B, V, K] where K > 1."""
        values = full_precision(super().forward(features))
        return values if self.num_outputs == 1 else values.view(*values.shape[:-1], -1, self.num_outputs)


class LinearHead(nn.Module):
    """Parent of heads that compute the parameters of a distribution by one linear layer."""

    def __init__(self, in_features: int, num_outputs: int) -> None:
        super().__init__()
        self.linear: nn.Module = Linear(in_features, num_outputs)

    def outputs(self, features: Tensor) -> Tensor:
        """Map [B, in_features] to [B, num_outputs]."""
        return full_precision(run_through((self.linear,), features))


class CategoricalHead(LinearHead):
    """Logits of a Discrete or MultiDiscrete space."""

    def __init__(self, in_features: int, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        sizes = [int(n) for n in (space.nvec if isinstance(space, spaces.MultiDiscrete) else [space.n])]
        super().__init__(in_features, sum(sizes))
        self.is_multi, self.sizes = isinstance(space, spaces.MultiDiscrete), sizes
        self.start = [int(n) for n in np.atleast_1d(space.start)]

    def forward(self, features: Tensor) -> Categorical | MultiCategorical:
        """Map [B, in_features] to a distribution over choices."""
        logits = self.outputs(features)
        if not self.is_multi:
            return Categorical(logits, self.start[0])
        parts = zip(torch.split(logits, self.sizes, dim=-1), self.start, strict=True)
        return MultiCategorical([Categorical(part, start) for part, start in parts])


class BernoulliHead(LinearHead):
    """Log-odds of the flags of a MultiBinary space."""

    def forward(self, features: Tensor) -> Bernoulli:
        """Map [B, in_features] to a distribution over flags [B, D]."""
        return Bernoulli(self.outputs(features))


class GaussianHead(LinearHead):
    """A normal with a linear mean and a standard deviation that does not depend on the observation.

    `bounded_mean` squashes the mean to (-1, 1), for policies that act in the unit box.
    """

    MAX_LOG_STD = 2.0

    def __init__(
        self, in_features: int, num_actions: int, log_std: float = 0.0, bounded_mean: bool = False, least: float = -5.0
    ) -> None:
        super().__init__(in_features, num_actions)
        self.log_std = nn.Parameter(torch.full((num_actions,), float(log_std)))
        self.bounded_mean, self.min_log_std = bounded_mean, least

    def forward(self, features: Tensor) -> DiagonalGaussian:
        """Map [B, in_features] to a distribution over [B, A]."""
        mean = self.outputs(features)
        log_std = self.log_std.clamp(self.min_log_std, self.MAX_LOG_STD)
        if log_std.requires_grad:
            # The gradient ignores the clamp: otherwise a number that one step took beyond its bounds would stay there.
            log_std = log_std.detach() + (self.log_std - self.log_std.detach())
        return DiagonalGaussian(mean.tanh() if self.bounded_mean else mean, log_std)


class SquashedGaussianHead(LinearHead):
    """A tanh-squashed normal; mean and standard deviation both depend on the observation.

    The logarithm of the standard deviation is clipped to `least` to 2, or brought there by a tanh if `is_smooth`.
    """

    LOG_STD_MAX = 2.0

    def __init__(self, in_features: int, num_actions: int, least: float = -20.0) -> None:
        super().__init__(in_features, 2 * num_actions)
        self.least, self.is_smooth = least, False

    def start_at(self, log_std: float, owner: str) -> None:
        """Start with a standard deviation that does not depend on the observation; `owner` is named in errors."""
        if self.is_smooth or not isinstance(self.linear, nn.Linear):
            rule = "must be None with smooth_log_std, or with a norm of NetParams that begins with 'unit'"
            raise ParamsError.about(owner, "log_std_init", rule, log_std)
        if not self.least <= log_std <= self.LOG_STD_MAX:
            rule = f"must be in [{self.least:g}, {self.LOG_STD_MAX:g}]"
            raise ParamsError.about(owner, "log_std_init", rule, log_std)
        with torch.no_grad():
            for parameter, value in ((self.linear.weight, 0.0), (self.linear.bias, log_std)):
                parameter[len(parameter) // 2 :] = value

    def forward(self, features: Tensor) -> SquashedGaussian:
        """Map [B, in_features] to a distribution over (-1, 1)^A."""
        mean, log_std = self.outputs(features).chunk(2, dim=-1)
        if self.is_smooth:
            return SquashedGaussian(mean, self.least + 0.5 * (self.LOG_STD_MAX - self.least) * (1 + log_std.tanh()))
        return SquashedGaussian(mean, log_std.clamp(self.least, self.LOG_STD_MAX))


def make_head(in_features: int, space: Space, owner: str, log_std: float = 0.0) -> nn.Module:
    """Return the head of an action space; a `SpaceError` in the name of `owner` if there is none."""
    require_few_choices(owner, space)
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(in_features, space)
    if len(space.shape or ()) == 1:
        if isinstance(space, spaces.MultiDiscrete):
            return CategoricalHead(in_features, space)
        if isinstance(space, spaces.MultiBinary):
            return BernoulliHead(in_features, space.shape[0])
        if isinstance(space, spaces.Box):
            require_floats(owner, space)
            return GaussianHead(in_features, space.shape[0], log_std)
    rule = "must be Discrete, or MultiDiscrete, MultiBinary or Box of one axis"
    raise SpaceError.about(owner, "action_space", rule, space, "Flatten it in a wrapper of the env.")


EPS = 1e-6


class StateDependentHead(nn.Module):
    """A normal with a linear mean, explored by noise phi(obs) theta, theta ~ N(0, std^2) [F, A] (gSDE).

    Each env keeps its theta, in standard normal numbers, for `sample_interval` steps (None: for its episode), so that
    actions do not jump from step to step. `log_std` is the initial logarithm of std; `squashes` is whether actions are
    tanh of the normal.
    """

    # Raffin et al. 2021, Smooth Exploration for Robotic Reinforcement Learning, section 3. Over all theta an action is
    # normal, with the variance phi^2 std^2: updates use this distribution, and need no theta. No gradient reaches the
    # features through the variance, as on policy in Stable-Baselines3 (`learn_features=False`); its SAC and TQC let it
    # through. As there, the mean of a squashed action is clipped to [-2, 2].
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
        self, features: Tensor, state: Tensor, generator: Generator | None
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
