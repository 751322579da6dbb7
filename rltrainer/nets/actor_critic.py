"""Policies with an actor: stochastic ones in the env's own scale, and actors in (-1, 1)^A for off-policy methods."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, TypeGuard, Unpack, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from rltrainer.errors import ParamsError, SpaceError
from rltrainer.nets.blocks import HiddenLayers, SideBySide, has_unit_rows, make_output
from rltrainer.nets.distributions import DiagonalGaussian, Distribution, SquashedGaussian
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.heads import GaussianHead, SquashedGaussianHead, StateDependentHead, ValueHead, make_head
from rltrainer.nets.linear import Chain, Linear, hooks_of
from rltrainer.nets.mlp import MLP, SQRT_2, TModule, orthogonal_
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.noise import DrawnNumbers, RepeatedNoise
from rltrainer.nets.normalizer import RewardScaler
from rltrainer.nets.policy import LOG_PROB, Decision, Policy, PolicyOptions
from rltrainer.nets.q_network import Several, make_support, mean_of_atoms, other_atoms
from rltrainer.spaces import Space, leaf_shape, require_floats
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import FiniteFloat, Flag, PositiveInt, checked


class ActorOptions(PolicyOptions, total=False):
    """Options of `Actor` that its subclasses hand on."""

    log_std_init: float
    orthogonal_init: bool
    use_sde: bool
    sde_sample_interval: int | None


def _checked_sde(policy: Policy, use_sde: object, sample_interval: object) -> tuple[bool, Any]:
    """Return the checked options of a policy with gSDE; a `ParamsError` if they do not fit."""
    owner, action_space = type(policy).__name__, policy.action_space
    use_sde = checked(owner, "use_sde", use_sde, Flag)
    sample_interval = checked(owner, "sde_sample_interval", sample_interval, PositiveInt | None)
    if use_sde and not isinstance(action_space, spaces.Box):
        rule = f"must be False where actions are no Box, but {action_space}"
        raise ParamsError.about(owner, "use_sde", rule, use_sde)
    if sample_interval is not None and not use_sde:
        raise ParamsError.about(owner, "sde_sample_interval", "must be None without use_sde=True", sample_interval)
    return bool(use_sde), sample_interval


# These two are methods of the policies whose last module may be a `StateDependentHead`.
def _initial_noise(self: Any, num_envs: int) -> Tensor | None:
    """Return the memory of state-dependent or repeated noise; None without either."""
    if self.use_sde:
        return self.actor[2].initial_state(num_envs)  # type: ignore[no-any-return]  # a module's
    return None if self.noise_repeat == 1 else self.noise.initial_state(num_envs)


def _decide_by_distribution(
    self: Any, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
) -> Decision:
    """Sample an action of the policy's `distribution`, maybe by noise with a memory, or take the likeliest one."""
    if explore and self.use_sde:
        features, head = self.actor[:-1](obs), self.actor[-1]
        state = head.initial_state(len(features)) if state is None else state
        distribution, action, state = head.explore(features, state, generator)
    elif explore and self.noise_repeat > 1:
        distribution = self.distribution(obs)
        state = self.noise.initial_state(len(distribution.mean)) if state is None else state
        noise, state = self.noise.step(state, generator)
        action = distribution.sample(cast(Generator, DrawnNumbers([noise])))
    else:
        distribution, state = self.distribution(obs), None
        action = distribution.sample(generator) if explore else distribution.mode()
    return Decision(self.scale(action), state, {"log_prob": partial(distribution.log_prob, action)})


class Actor(Policy):
    """A stochastic policy over a Discrete, MultiDiscrete, MultiBinary or one-axis Box space: for behaviour cloning.

    Another space raises a `SpaceError`, a wrong option a `ParamsError`.

    Args:
        log_std_init: logarithm of the standard deviation that a Gaussian starts with.
        orthogonal_init: initialise orthogonally, which on-policy methods learn fastest from; False leaves torch's.
        use_sde: explore a Box by noise that is a function of the observation (gSDE), see `StateDependentHead`.
        sde_sample_interval: steps between two draws of that function; None keeps it for an episode.
    """

    extra_specs = LOG_PROB
    initial_state = _initial_noise
    decide = _decide_by_distribution

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        log_std_init: float = 0.0, orthogonal_init: bool = True, use_sde: bool = False,
        sde_sample_interval: int | None = None, **options: Unpack[PolicyOptions],
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        log_std_init = checked(name, "log_std_init", log_std_init, FiniteFloat)
        self._is_orthogonal = checked(name, "orthogonal_init", orthogonal_init, Flag)
        self.use_sde, interval = _checked_sde(self, use_sde, sde_sample_interval)
        encoder, layers = self._body(self.net_params)
        head: nn.Module = make_head(layers.out_features, action_space, name, log_std_init)
        if self.use_sde:
            head = StateDependentHead(layers.out_features, leaf_shape(action_space)[0], log_std_init, False, interval)
        # A small last layer starts near the uniform policy, so that no action is ruled out early.
        self.actor = Chain(encoder, layers, self._initialized(head, 0.01))

    def _body(self, net: NetParams, encoder: Encoder | None = None) -> tuple[Encoder, MLP | HiddenLayers]:
        """Return a new encoder, or the given one, and hidden layers behind it."""
        if encoder is None:
            encoder = Encoder(self.observation_space, net)
            encoder = encoder.orthogonal_(SQRT_2) if self._is_orthogonal else encoder
        return encoder, self._initialized(net.hidden_layers(encoder.out_features), SQRT_2)

    def _initialized(self, module: TModule, gain: float) -> TModule:
        return orthogonal_(module, gain) if self._is_orthogonal else module

    def distribution(self, obs: Tree, features: Tensor | None = None) -> Distribution:
        """Return the distribution over the allowed actions for normalised observations [B, ...].

        `features` [B, F], if known, are the output of the actor's encoder.
        """
        distribution: Any = self.actor(obs) if features is None else self.actor[1:](features)
        return distribution.masked(self.mask_of(obs)) if self.has_mask else distribution  # type: ignore[no-any-return]  # a head's


class ActorCritic(Actor):
    """An actor and a state-value critic, for on-policy algorithms. Raises as `Actor` does.

    Args:
        critic_net: the critic's network, if it differs. Sizes, activation and encoder that are None are the actor's.
        share_encoder: actor and critic share one encoder, as is usual for images.
        normalize_reward: divide rewards by the running standard deviation of the discounted return.
    """

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        critic_net: NetParams | None = None, share_encoder: bool = False, normalize_reward: bool = False,
        **options: Unpack[ActorOptions],
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        self._shares_encoder = checked(name, "share_encoder", share_encoder, Flag)
        net = self.critic_net_params(critic_net, "share_encoder" if self._shares_encoder else None)
        encoder, layers = self._body(net, cast(Encoder, self.actor[0]) if self._shares_encoder else None)
        self.critic = Chain(encoder, layers, self._initialized(ValueHead(layers.out_features, 1), 1.0))
        if checked(name, "normalize_reward", normalize_reward, Flag):
            self.reward_normalizer = RewardScaler()

    def shared_features(self, obs: Tree) -> tuple[Tensor, ...]:
        """Return the output [B, F] of the encoder that actor and critic share; an empty tuple without one."""
        is_shared = self._shares_encoder and self.actor[0] is self.critic[0]  # indexing takes 2 us
        if not is_shared or any(hooks_of(self.actor) + hooks_of(self.critic)):
            return ()
        return (self.actor[0](obs),)

    def value(self, obs: Tree, features: Tensor | None = None) -> Tensor:
        """Return the values [B] of normalised observations [B, ...], from shared features if given."""
        value: Tensor = self.critic(obs) if features is None else self.critic[1:](features)
        return value.squeeze(-1)

    def evaluate(self, obs: Tree) -> tuple[Distribution, Tensor]:
        """Return `distribution` and `value` [B] of observations [B, ...], with one pass through a shared encoder."""
        features = self.shared_features(obs)
        return self.distribution(obs, *features), self.value(obs, *features)


class DiscreteActorCritic(Actor):
    """A stochastic actor over a Discrete space, and E critics that value each of A choices: discrete SAC.

    `critic` maps normalised observations to action values [E, B, A]; its members share the encoder. A space that is not
    Discrete, or has one choice, raises a `SpaceError`.

    Args:
        num_critics: E, critics of which targets take the least.
    """

    default_net = NetParams(hidden_sizes=(256, 256), activation=nn.ReLU)
    num_outputs = 1  # numbers that each critic gives for an action

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        critic_net: NetParams | None = None, num_critics: int = 2, **options: Unpack[ActorOptions],
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, net, **options)
        name, rule = type(self).__name__, "must be Discrete, with at least two choices"
        if not isinstance(action_space, spaces.Discrete) or action_space.n < 2:
            raise SpaceError.about(name, "action_space", rule, action_space)
        num_critics = checked(name, "num_critics", num_critics, PositiveInt)
        self.num_actions, self.start = int(action_space.n), int(action_space.start)
        net = self.critic_net_params(critic_net)
        encoder = Encoder(observation_space, net)
        self.critic = nn.Sequential(encoder, net.ensemble(num_critics, encoder.out_features, self.num_actions))


class ContinuousOptions(PolicyOptions, total=False):
    """Options of `ContinuousActorCritic` that its subclasses hand on."""

    critic_net: NetParams | None
    num_critics: int
    normalize_reward: bool


class SquashedOptions(ContinuousOptions, total=False):
    """Options of `SquashedActorCritic` that its subclasses hand on."""

    use_sde: bool
    sde_sample_interval: int | None
    log_std_init: float | None
    smooth_log_std: bool
    noise_repeat: int


class ContinuousActorCritic(Policy):
    """An actor in (-1, 1)^A and an ensemble of critics; a subclass adds the actor's head.

    The ensemble has `num_critics` (E) members with `num_outputs` (K) outputs for an action, such as quantiles: `critic`
    returns [E, B, K]. For `critic_net` and `normalize_reward` see `ActorCritic`. Actions are a bounded Box of one axis;
    another space raises a `SpaceError`.
    """

    default_net = NetParams(hidden_sizes=(256, 256), activation=nn.ReLU)
    keeps_dtype = (*Policy.keeps_dtype, "action_low", "action_high")
    action_low: Tensor
    action_high: Tensor
    has_value_network: ClassVar[bool] = False  # whether there is a state-value network like the critics

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        critic_net: NetParams | None = None, num_critics: int = 2, num_outputs: int = 1,
        normalize_reward: bool = False, **options: Unpack[PolicyOptions],
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        if not _is_unit_box_like(action_space):
            rule = "must be a bounded Box of one axis with low < high"
            hint = "Give the env such a Box with gymnasium.wrappers.TransformAction, or use another policy."
            raise SpaceError.about(name, "action_space", rule, action_space, hint)
        require_floats(name, action_space)
        self.register_buffer("action_low", torch.from_numpy(action_space.low.astype(np.float32)))
        self.register_buffer("action_high", torch.from_numpy(action_space.high.astype(np.float32)))
        # A hook and no override of `load_state_dict`, which is called on the outermost module alone.
        self.register_load_state_dict_pre_hook(_refuse_other_bounds)  # type: ignore[no-untyped-call]  # PyTorch's
        self.num_critics = checked(name, "num_critics", num_critics, PositiveInt)
        self.num_outputs = checked(name, "num_outputs", num_outputs, PositiveInt)
        if checked(name, "normalize_reward", normalize_reward, Flag):
            self.reward_normalizer = RewardScaler()
        self._make_networks(self.net_params, self.critic_net_params(critic_net))

    def _make_networks(self, net: NetParams, critic_net: NetParams) -> None:
        self.actor = self._chain(net, self._make_head)
        self.critic = Critic(self.observation_space, self.action_space, critic_net, self.num_critics, self.num_outputs)
        if self.has_value_network:
            self.value_network = self._chain(critic_net, lambda in_features, _: ValueHead(in_features, 1))

    def _chain(self, net: NetParams, make_head: Any) -> Chain:
        encoder = Encoder(self.observation_space, net)
        layers = net.hidden_layers(encoder.out_features)
        return Chain(encoder, layers, make_head(layers.out_features, len(self.action_low)))

    def _make_head(self, in_features: int, num_actions: int) -> nn.Module:
        """Return the last module of the actor that `_make_networks` builds."""
        raise NotImplementedError(f"{type(self).__name__} must override _make_head")

    def other_bounds(self, state: Mapping[str, Any], prefix: str = "") -> str | None:
        """Return the text of an error if a saved state has other bounds of actions, else None."""
        for name in ("action_low", "action_high"):
            saved, own = state.get(prefix + name), getattr(self, name)
            if isinstance(saved, Tensor) and saved.tolist() != own.tolist():
                return f"{prefix}{name}: expected {own.tolist()}, found {saved.tolist()}: actions have other bounds"
        return None

    def scale(self, action: Tensor) -> Tensor:
        """Map actions [..., A] from (-1, 1) to the bounds of the action space."""
        return torch.lerp(self.action_low, self.action_high, ((action + 1) * 0.5).to(self.action_low.dtype))

    def unscale(self, action: Tensor) -> Tensor:
        """Map actions [..., A] from the bounds of the action space to (-1, 1)."""
        width = self.action_high.to(action.dtype) - self.action_low
        return 2 * (action - self.action_low) / width - 1


def _refuse_other_bounds(policy: ContinuousActorCritic, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
    """Raise a `SpaceError` for a saved state with other bounds of actions: the actor's outputs are shares of them."""
    if problem := policy.other_bounds(state, prefix):
        raise SpaceError(f"{type(policy).__name__}.load_state_dict: {problem}. The policy is unchanged.")


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
        """Take the actor's actions [N, A], in the env's scale; exploration is added later."""
        return Decision(self.scale(self.actor(obs)))


class SquashedActorCritic(ContinuousActorCritic):
    """A tanh-squashed Gaussian actor: SAC and algorithms that build on it.

    For `use_sde` and `sde_sample_interval` see `Actor`. `log_std_init`, from -20 to 2, is the logarithm of the standard
    deviation that the normal, or the noise of `use_sde`, starts with for any observation. None starts that noise at -3,
    and leaves the normal's as it is initialised: near 0, and different for each observation. `smooth_log_std` keeps the
    logarithm between its limits by a tanh, which has a gradient everywhere, instead of clipping it. `noise_repeat` is
    the largest number of steps that an env keeps the normal's noise for, see `RepeatedNoise`; 1 draws it at each step.
    """

    extra_specs = LOG_PROB
    initial_state = _initial_noise
    decide = _decide_by_distribution
    log_std_min: ClassVar[float] = -20.0

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        num_outputs: int = 1, use_sde: bool = False, sde_sample_interval: int | None = None,
        log_std_init: float | None = None, smooth_log_std: bool = False, noise_repeat: int = 1,
        **options: Unpack[ContinuousOptions],
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, net, num_outputs=num_outputs, **options)
        name, head = type(self).__name__, cast(SquashedGaussianHead, self.actor[2])
        self.use_sde, interval = _checked_sde(self, use_sde, sde_sample_interval)
        head.is_smooth = checked(name, "smooth_log_std", smooth_log_std, Flag)
        if self.use_sde and head.is_smooth:
            raise ParamsError.about(name, "smooth_log_std", "must be False with use_sde", smooth_log_std)
        log_std_init = checked(name, "log_std_init", log_std_init, FiniteFloat | None)
        if self.use_sde:
            in_features = cast(MLP, self.actor[1]).out_features
            log_std = -3.0 if log_std_init is None else log_std_init
            self.actor[2] = StateDependentHead(in_features, len(self.action_low), log_std, True, interval)
        elif log_std_init is not None:
            head.start_at(log_std_init, name)
        self.noise_repeat = checked(name, "noise_repeat", noise_repeat, PositiveInt)
        if self.noise_repeat > 1:
            if self.use_sde:
                raise ParamsError.about(name, "noise_repeat", "must be 1 with use_sde=True", noise_repeat)
            self.noise = RepeatedNoise(len(self.action_low), self.noise_repeat)

    def _make_head(self, in_features: int, num_actions: int) -> nn.Module:
        head = SquashedGaussianHead(in_features, num_actions, self.log_std_min)
        if has_unit_rows(norm := self.net_params.norm):  # an output layer each for mean and standard deviation
            head.linear = SideBySide(make_output(norm, in_features, num_actions) for _ in range(2))
        return head

    def distribution(self, obs: Tree, batch_stats: bool = False) -> SquashedGaussian:
        """Return the distribution over actions in (-1, 1) for normalised observations [B, ...].

        `batch_stats` uses the statistics of the batch, and lets the running ones follow, where the actor has such.
        """
        return cast(SquashedGaussian, self.actor(obs, True) if batch_stats else self.actor(obs))


class CategoricalActorCritic(SquashedActorCritic):
    """A `SquashedActorCritic` with critics that are distributions of the return: XQC, SimbaV2.

    `critic` returns logits [E, B, K] of `num_atoms` (K) fixed atoms, evenly spaced from `v_min` to `v_max`. They must
    cover the discounted returns, which are clipped to them: give `normalize_reward=True`. Limits that are not in order
    raise a `ParamsError`.

    Args:
        limit_returns: with `normalize_reward`, divide rewards by more where the largest return would not fit.
    """

    support: Tensor  # the atoms [K]
    expectation = mean_of_atoms
    log_std_min = -10.0

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        num_atoms: int = 101, v_min: float = -5.0, v_max: float = 5.0, limit_returns: bool = True,
        **options: Unpack[SquashedOptions],
    ) -> None:  # fmt: skip
        name = type(self).__name__
        num_atoms = checked(name, "num_atoms", num_atoms, Several)
        super().__init__(observation_space, action_space, net, num_outputs=num_atoms, **options)
        self.register_buffer("support", make_support(name, num_atoms, v_min, v_max))
        if checked(name, "limit_returns", limit_returns, Flag) and self.reward_normalizer is not None:
            self.reward_normalizer = RewardScaler(limit=max(abs(v_min), abs(v_max)))

    def other_bounds(self, state: Mapping[str, Any], prefix: str = "") -> str | None:
        """Return the text of an error if a saved state has other bounds of actions or other atoms, else None."""
        return super().other_bounds(state, prefix) or other_atoms(self, state, prefix)


class GaussianActorCritic(ContinuousActorCritic):
    """A Gaussian actor with a mean in (-1, 1), critics, and a state-value network of the same layers: IQL."""

    extra_specs = LOG_PROB
    has_value_network = True

    def _make_head(self, in_features: int, num_actions: int) -> nn.Module:
        return GaussianHead(in_features, num_actions, bounded_mean=True, least=-10.0)

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
        """Sample actions [N, A] within the bounds, or take the means, in the env's scale."""
        distribution = self.distribution(obs)
        action = distribution.sample(generator).clamp(-1, 1) if explore else distribution.mode()
        return Decision(self.scale(action), extra={"log_prob": partial(distribution.log_prob, action)})


class Critic(nn.Module):
    """An ensemble of E action-value networks Q(obs, action), evaluated as batched matrix products.

    DDPG has one member, TD3, SAC and IQL have two, REDQ has ten. Each member of TQC has K outputs, its quantiles. The
    members share the encoder, which has weights for images or in a user's module. Actions are a Box of one axis.
    """

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams, num_members: int = 2, num_outputs: int = 1
    ) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, net)
        in_features = self.encoder.out_features + leaf_shape(action_space)[0]
        self.ensemble = net.ensemble(num_members, in_features, num_outputs)

    def forward(
        self, obs: Tree, action: Tensor, num_members: int | None = None, batch_stats: bool = False
    ) -> Tensor:  # fmt: skip
        """Return the action values of normalised observations and actions in [-1, 1]: [E, B], or [E, B, K] if K > 1.

        `num_members` evaluates the first members only. `batch_stats` uses the statistics of the batch, and lets the
        running ones follow, where the members have such.
        """
        features = torch.cat([self.encoder(obs), action], dim=-1)
        return self.ensemble(features, num_members, batch_stats)  # type: ignore[no-any-return]  # nn.Module

    def values(self, features: Tensor, action: Tensor) -> Tensor:
        """Return the values [E, N, B], or [E, N, B, K], of actions [N, B, A] for encoded observations [B, F]."""
        features = features.expand(len(action), *features.shape)
        q: Tensor = self.ensemble(torch.cat([features, action], dim=-1).flatten(0, 1))
        return q.view(len(q), *action.shape[:2], *q.shape[2:])
