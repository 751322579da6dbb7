"""Policies of off-policy continuous control: an actor in (-1, 1)^A and an ensemble of action-value critics."""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, TypeGuard, Unpack, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from rltrainer.errors import ParamsError, SpaceError, field_error_text
from rltrainer.nets.distributions import DiagonalGaussian, SquashedGaussian
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.heads import (
    GaussianHead,
    SquashedGaussianHead,
    StateDependentHead,
    ValueHead,
    explored,
    require_box,
)
from rltrainer.nets.linear import Chain, Linear
from rltrainer.nets.mlp import MLP
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import RewardScaler
from rltrainer.nets.policy import LOG_PROB, Decision, Policy, PolicyOptions
from rltrainer.spaces import Space, leaf_shape, require_floats
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import FiniteFloat, Flag, PositiveInt, checked


class ContinuousOptions(PolicyOptions, total=False):
    """Options of `ContinuousActorCritic` that its subclasses hand on."""

    critic_net: NetParams | None
    num_critics: int
    normalize_reward: bool


class ContinuousActorCritic(Policy):
    """An actor in (-1, 1)^A and an ensemble of critics; a subclass adds the actor's head. Actions are a bounded Box.

    The ensemble has `num_critics` (E) members with `num_outputs` (K) outputs for an action, such as quantiles: `critic`
    returns [E, B, K]. For `critic_net` and `normalize_reward` see `ActorCritic`.
    """

    default_net = NetParams(hidden_sizes=(256, 256), activation=nn.ReLU)
    keeps_dtype = (*Policy.keeps_dtype, "action_low", "action_high")
    action_low: Tensor
    action_high: Tensor
    # Whether there is a state-value network like the critics.
    has_value_network: ClassVar[bool] = False

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        critic_net: NetParams | None = None,
        num_critics: int = 2,
        num_outputs: int = 1,
        normalize_reward: bool = False,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        if not _is_unit_box_like(action_space):
            rule = "must be a bounded Box of one axis with low < high"
            hint = "Give the env such a Box with gymnasium.wrappers.TransformAction, or use another policy."
            raise SpaceError(field_error_text(name, "action_space", rule, action_space, hint))
        require_floats(name, action_space)
        self.register_buffer("action_low", torch.from_numpy(action_space.low.astype(np.float32)))
        self.register_buffer("action_high", torch.from_numpy(action_space.high.astype(np.float32)))
        self.num_critics = checked(name, "num_critics", num_critics, PositiveInt)
        self.num_outputs = checked(name, "num_outputs", num_outputs, PositiveInt)
        if checked(name, "normalize_reward", normalize_reward, Flag):
            self.reward_normalizer = RewardScaler()
        net = self.net_params
        encoder = Encoder(observation_space, net)
        layers = net.hidden_layers(encoder.out_features)
        self.actor = Chain(encoder, layers, self._make_head(layers.out_features, len(self.action_low)))
        net = self.critic_net_params(critic_net)
        self.critic = Critic(
            observation_space, action_space, net, num_members=self.num_critics, num_outputs=self.num_outputs
        )
        if self.has_value_network:
            encoder = Encoder(observation_space, net)
            layers = net.hidden_layers(encoder.out_features)
            self.value_network = Chain(encoder, layers, ValueHead(layers.out_features, 1))

    @abstractmethod
    def _make_head(self, in_features: int, num_actions: int) -> nn.Module:
        """Return the last module of the actor."""

    def other_bounds(self, state: Mapping[str, Any], prefix: str = "") -> str | None:
        """Return the text of an error if a saved state has other bounds of actions, else None."""
        for name in ("action_low", "action_high"):
            saved, own = state.get(prefix + name), getattr(self, name)
            if isinstance(saved, Tensor) and saved.tolist() != own.tolist():
                return f"{prefix}{name}: expected {own.tolist()}, found {saved.tolist()}: actions have other bounds"
        return None

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Refuse other bounds than those of the action space: the networks' outputs are shares of them."""
        problem = self.other_bounds(state_dict, prefix)
        if problem:
            raise SpaceError(f"{type(self).__name__}.load_state_dict: {problem}. Nothing was loaded.")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def scale(self, action: Tensor) -> Tensor:
        """Map (-1, 1) to the bounds of the action space."""
        return torch.lerp(self.action_low, self.action_high, ((action + 1) * 0.5).to(self.action_low.dtype))

    def unscale(self, action: Tensor) -> Tensor:
        """Map the bounds of the action space to (-1, 1)."""
        width = self.action_high.to(action.dtype) - self.action_low
        return 2 * (action - self.action_low) / width - 1


def _is_unit_box_like(space: Space) -> TypeGuard[spaces.Box]:
    """Return whether an affine map takes (-1, 1)^A to the space and back."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
        return False
    # Beyond float32, the map would be infinite.
    width = space.high.astype(np.float64) - space.low
    return bool(((width > 0) & (width <= np.finfo(np.float32).max)).all())


class DeterministicActorCritic(ContinuousActorCritic):
    """One action per observation: DDPG, TD3, TD3+BC."""

    def _make_head(self, in_features: int, num_actions: int) -> nn.Module:
        return nn.Sequential(Linear(in_features, num_actions), nn.Tanh())

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Take the actor's action, in the env's scale; exploration is added later."""
        return Decision(self.scale(self.actor(obs)))


class SquashedActorCritic(ContinuousActorCritic):
    """A tanh-squashed Gaussian actor: SAC and algorithms that build on it.

    For `use_sde` and `sde_sample_interval` see `Actor`; `log_std_init` is where that noise starts.
    """

    extra_specs = LOG_PROB

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        num_outputs: int = 1,
        use_sde: bool = False,
        sde_sample_interval: int | None = None,
        log_std_init: float = -3.0,
        **options: Unpack[ContinuousOptions],
    ) -> None:
        super().__init__(observation_space, action_space, net, num_outputs=num_outputs, **options)
        name = type(self).__name__
        self.use_sde, interval = require_box(name, use_sde, sde_sample_interval, action_space)
        log_std_init = checked(name, "log_std_init", log_std_init, FiniteFloat)
        if not self.use_sde and log_std_init != -3.0:
            rule = "is where the noise of use_sde=True starts"
            raise ParamsError(field_error_text(name, "log_std_init", rule, log_std_init))
        if self.use_sde:
            in_features = cast(MLP, self.actor[1]).out_features
            self.actor[2] = StateDependentHead(in_features, len(self.action_low), log_std_init, True, interval)

    def _make_head(self, in_features: int, num_actions: int) -> nn.Module:
        return SquashedGaussianHead(in_features, num_actions)

    def distribution(self, obs: Tree) -> SquashedGaussian:
        """Return the distribution over actions in (-1, 1) for normalised observations [B, ...]."""
        return cast(SquashedGaussian, self.actor(obs))

    def initial_state(self, num_envs: int) -> Tensor | None:
        """Return the memory of state-dependent noise; None without it."""
        return cast(StateDependentHead, self.actor[2]).initial_state(num_envs) if self.use_sde else None

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Sample, or take tanh of the mean, in the env's scale."""
        if explore and self.use_sde:
            decision = explored(self.actor, obs, state, generator)
            decision.action = self.scale(decision.action)
            return decision
        distribution = self.distribution(obs)
        action = distribution.sample(generator) if explore else distribution.mode()
        return Decision(self.scale(action), extra={"log_prob": partial(distribution.log_prob, action)})


class GaussianActorCritic(ContinuousActorCritic):
    """A Gaussian actor with a mean in (-1, 1), and a state-value network beside the critics and like them: IQL."""

    extra_specs = LOG_PROB
    has_value_network = True

    def _make_head(self, in_features: int, num_actions: int) -> nn.Module:
        return GaussianHead(in_features, num_actions, bounded_mean=True, min_log_std=-10.0)

    def distribution(self, obs: Tree) -> DiagonalGaussian:
        """Return the distribution over actions around (-1, 1) for normalised observations [B, ...]."""
        return cast(DiagonalGaussian, self.actor(obs))

    def value(self, obs: Tree) -> Tensor:
        """Return the values [B] of normalised observations [B, ...]."""
        value: Tensor = self.value_network(obs)
        return value.squeeze(-1)

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Sample within the bounds, or take the mean, in the env's scale."""
        distribution = self.distribution(obs)
        action = distribution.sample(generator).clamp(-1, 1) if explore else distribution.mode()
        return Decision(self.scale(action), extra={"log_prob": partial(distribution.log_prob, action)})


class Critic(nn.Module):
    """An ensemble of E action-value networks Q(obs, action), evaluated as batched matrix products.

    DDPG has one member, TD3, SAC and IQL two, REDQ ten; TQC's have K outputs, its quantiles. The members share the
    encoder, which has weights only where there are images or a user's own module. Actions are a Box of one axis.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams,
        *,
        num_members: int = 2,
        num_outputs: int = 1,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, net)
        in_features = self.encoder.out_features + leaf_shape(action_space)[0]
        self.ensemble = net.ensemble(num_members, in_features, num_outputs)

    def forward(self, obs: Tree, action: Tensor, num_members: int | None = None) -> Tensor:
        """Return the action values of normalised observations and actions in [-1, 1]: [E, B], or [E, B, K] if K > 1.

        With `num_members`, only of the first so many members.
        """
        features = torch.cat([self.encoder(obs), action], dim=-1)
        return self.ensemble(features, num_members)  # type: ignore[no-any-return]  # nn.Module

    def values(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the values [E, N, B], or [E, N, B, K], of actions [N, B, A] for encoded observations [B, F]."""
        features = features.expand(len(action), *features.shape)
        q: Tensor = self.ensemble(torch.cat([features, action], dim=-1).flatten(0, 1))
        return q.view(len(q), *action.shape[:2], *q.shape[2:])
