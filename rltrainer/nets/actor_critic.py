"""Stochastic policies in the env's own scale: an actor, and an actor with a state-value critic."""

from functools import partial
from typing import Any, Unpack, cast

from gymnasium import spaces
from torch import Generator, Tensor, nn

from rltrainer.errors import SpaceError, field_error_text
from rltrainer.nets.distributions import Distribution
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.heads import StateDependentHead, ValueHead, explored, make_head, require_box
from rltrainer.nets.linear import Chain, hooks_of
from rltrainer.nets.mlp import MLP, TModule, orthogonal_
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import RewardScaler
from rltrainer.nets.policy import LOG_PROB, Decision, Policy, PolicyOptions
from rltrainer.spaces import Space, leaf_shape
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import FiniteFloat, Flag, PositiveInt, checked

SQRT_2 = 2**0.5


class ActorOptions(PolicyOptions, total=False):
    """Options of `Actor` that its subclasses hand on."""

    log_std_init: float
    orthogonal_init: bool
    use_sde: bool
    sde_sample_interval: int | None


class Actor(Policy):
    """A stochastic policy over a Discrete, MultiDiscrete, MultiBinary or one-axis Box space: for behaviour cloning.

    Args:
        log_std_init: logarithm of the standard deviation that a Gaussian starts with.
        orthogonal_init: initialise orthogonally, which on-policy methods learn fastest from; False leaves torch's.
        use_sde: explore a Box by noise that is a function of the observation (gSDE), see `StateDependentHead`.
        sde_sample_interval: steps between two draws of that function; None keeps it for an episode.
    """

    extra_specs = LOG_PROB

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        log_std_init: float = 0.0,
        orthogonal_init: bool = True,
        use_sde: bool = False,
        sde_sample_interval: int | None = None,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        log_std_init = checked(name, "log_std_init", log_std_init, FiniteFloat)
        self._is_orthogonal = checked(name, "orthogonal_init", orthogonal_init, Flag)
        self.use_sde, interval = require_box(name, use_sde, sde_sample_interval, action_space)
        encoder, layers = self._body(self.net_params)
        head: nn.Module = make_head(layers.out_features, action_space, name, log_std_init)
        if self.use_sde:
            head = StateDependentHead(layers.out_features, leaf_shape(action_space)[0], log_std_init, False, interval)
        # A small last layer starts near the uniform policy, so that no action is ruled out early.
        self.actor = Chain(encoder, layers, self._initialized(head, 0.01))

    def _body(self, net: NetParams, encoder: Encoder | None = None) -> tuple[Encoder, MLP]:
        """Return a new encoder, or the given one, and hidden layers behind it."""
        if encoder is None:
            encoder = Encoder(self.observation_space, net)
            encoder = encoder.orthogonal_(SQRT_2) if self._is_orthogonal else encoder
        return encoder, self._initialized(net.hidden_layers(encoder.out_features), SQRT_2)

    def _initialized(self, module: TModule, gain: float) -> TModule:
        return orthogonal_(module, gain) if self._is_orthogonal else module

    def distribution(self, obs: Tree, features: Tensor | None = None) -> Distribution:
        """Return the distribution over the allowed actions for normalised observations [B, ...].

        `features` [B, F] are the output of the actor's encoder, where it is known.
        """
        distribution: Any = self.actor(obs) if features is None else self.actor[1:](features)
        return distribution.masked(self.mask_of(obs)) if self.has_mask else distribution  # type: ignore[no-any-return]  # a head's

    def initial_state(self, num_envs: int) -> Tensor | None:
        """Return the memory of state-dependent noise; None without it."""
        return cast(StateDependentHead, self.actor[2]).initial_state(num_envs) if self.use_sde else None

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Sample an action, or take the likeliest one."""
        if explore and self.use_sde:
            return explored(self.actor, obs, state, generator)
        distribution = self.distribution(obs)
        action = distribution.sample(generator) if explore else distribution.mode()
        return Decision(action, extra={"log_prob": partial(distribution.log_prob, action)})


class ActorCritic(Actor):
    """An actor and a state-value critic, for on-policy algorithms.

    Args:
        critic_net: the critic's network, if it differs. Sizes, activation and encoder that are None are the actor's.
        share_encoder: actor and critic share one encoder, as is usual for images.
        normalize_reward: divide rewards by the running standard deviation of the discounted return.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        critic_net: NetParams | None = None,
        share_encoder: bool = False,
        normalize_reward: bool = False,
        **options: Unpack[ActorOptions],
    ) -> None:
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        share_encoder = checked(name, "share_encoder", share_encoder, Flag)
        net = self.critic_net_params(critic_net, "share_encoder" if share_encoder else None)
        self._shares_encoder = share_encoder
        encoder, layers = self._body(net, cast(Encoder, self.actor[0]) if share_encoder else None)
        self.critic = Chain(encoder, layers, self._initialized(ValueHead(layers.out_features, 1), 1.0))
        if checked(name, "normalize_reward", normalize_reward, Flag):
            self.reward_normalizer = RewardScaler()

    def shared_features(self, obs: Tree) -> tuple[Tensor, ...]:
        """Return the output [B, F] of an encoder that actor and critic share; nothing without one."""
        is_shared = self._shares_encoder and self.actor[0] is self.critic[0]  # indexing takes 2 us
        if not is_shared or any(hooks_of(self.actor) + hooks_of(self.critic)):
            return ()
        return (self.actor[0](obs),)

    def value(self, obs: Tree, features: Tensor | None = None) -> Tensor:
        """Return the values [B] of normalised observations [B, ...], from shared features if given."""
        value: Tensor = self.critic(obs) if features is None else self.critic[1:](features)
        return value.squeeze(-1)

    def evaluate(self, obs: Tree) -> tuple[Distribution, Tensor]:
        """Return `distribution` and `value`, with one pass through a shared encoder."""
        features = self.shared_features(obs)
        return self.distribution(obs, *features), self.value(obs, *features)


class DiscreteActorCritic(Actor):
    """A stochastic actor over a Discrete space, and E critics that value each of A choices: discrete SAC.

    `critic` maps normalised observations to action values [E, B, A]; its members share the encoder.

    Args:
        num_critics: E, critics of which targets take the least.
    """

    default_net = NetParams(hidden_sizes=(256, 256), activation=nn.ReLU)
    # Numbers that each critic gives for an action.
    num_outputs = 1

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        critic_net: NetParams | None = None,
        num_critics: int = 2,
        **options: Unpack[ActorOptions],
    ) -> None:
        super().__init__(observation_space, action_space, net, **options)
        name, rule = type(self).__name__, "must be Discrete, with at least two choices"
        if not isinstance(action_space, spaces.Discrete) or action_space.n < 2:
            raise SpaceError(field_error_text(name, "action_space", rule, action_space))
        num_critics = checked(name, "num_critics", num_critics, PositiveInt)
        self.num_actions, self.start = int(action_space.n), int(action_space.start)
        net = self.critic_net_params(critic_net)
        encoder = Encoder(observation_space, net)
        self.critic = nn.Sequential(encoder, net.ensemble(num_critics, encoder.out_features, self.num_actions))
