"""The policy: what chooses actions, and the one object that algorithms and collectors share."""

import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Concatenate, ParamSpec, TypeGuard, TypeVar

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.errors import ParamsError, SpaceError, field_error_text
from rltrainer.field_rules import Flag, Sizes, checked, instance_of
from rltrainer.names import check_arguments
from rltrainer.nets.exploration import Exploration
from rltrainer.nets.mlp import Activation
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import ObsNormalizer
from rltrainer.plan import no_progress
from rltrainer.spaces import require_floats
from rltrainer.tree import Tree

Space = gym.Space[Any]
Options = ParamSpec("Options")
TPolicy = TypeVar("TPolicy")
Constructor = Callable[Concatenate[Space, Space, Options], TPolicy]
"""A policy's class to a type checker: what `for_envs` takes is what the constructor takes, written once."""
AnyNet = Annotated[NetParams, instance_of(NetParams)]


class Policy(nn.Module, ABC):
    """Chooses actions for observations. Holds networks and normalisers; owns no generator.

    A subclass implements `choose`. Move a policy with `.to(device)` before its algorithm is built.

    Args:
        observation_space: the space of one observation.
        action_space: the space of one action.
        net: the parts of its networks: sizes, activation, norm, dropout, encoders; None takes the class's defaults.
        hidden_sizes: units of each hidden layer, instead of those of `net`.
        activation: makes the activation after each hidden layer, instead of that of `net`.
        normalize_obs: standardise float observations by running statistics that are saved with the policy.

    Attributes:
        net_params: `net` with everything filled in: what a subclass builds its networks from.
    """

    default_net: ClassVar[NetParams] = NetParams(hidden_sizes=(64, 64), activation=nn.Tanh)
    """Sizes and activation of networks for which the user chose none."""
    _lowest: Tensor | None
    _highest: Tensor | None

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        net: NetParams | None = None,
        *,
        hidden_sizes: Sequence[int] | None = None,
        activation: Activation | None = None,
        normalize_obs: bool = False,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for field, space in (("observation_space", observation_space), ("action_space", action_space)):
            if not isinstance(space, gym.Space):
                hint = f"Build it with {name}.for_envs(envs)."
                raise SpaceError(field_error_text(name, field, "must be a gymnasium space", space, hint))
        normalize_obs = checked(name, "normalize_obs", normalize_obs, Flag)
        net = checked(name, "net", net, AnyNet | None)
        sizes = checked(name, "hidden_sizes", hidden_sizes, Sizes | None)
        own = {"hidden_sizes": sizes, "activation": activation}
        own = {field: value for field, value in own.items() if value is not None}
        self.net_params = dataclasses.replace(net or NetParams(), **own).with_defaults(self.default_net)
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_normalizer = ObsNormalizer(observation_space) if normalize_obs else None
        self.exploration: Exploration | None = None
        self.progress: Callable[[], float] = no_progress
        lowest, highest = _finite_bounds(action_space)
        # Not in the state: they follow from the space, and files of policies have never held them.
        self.register_buffer("_lowest", lowest, persistent=False)
        self.register_buffer("_highest", highest, persistent=False)

    @classmethod
    def for_spaces(
        cls: Constructor[Options, TPolicy],
        observation_space: Space,
        action_space: Space,
        *args: Options.args,
        **options: Options.kwargs,
    ) -> TPolicy:
        """Build the policy for an observation space and an action space; `options` go to the constructor.

        Raises:
            SpaceError: the policy cannot observe or act in such spaces.
            ParamsError: an option is unknown, or breaks its rule.
        """
        _check_options(cls, "for_spaces", (observation_space, action_space, *args), options)
        return cls(observation_space, action_space, *args, **options)

    @classmethod
    def for_envs(
        cls: Constructor[Options, TPolicy],
        envs: gym.vector.VectorEnv[Any, Any, Any],
        *args: Options.args,
        **options: Options.kwargs,
    ) -> TPolicy:
        """Build the policy for the spaces of a vector env; `options` go to the constructor.

        Raises:
            ParamsError: `envs` is no vector env, or an option is unknown or breaks its rule.
            SpaceError: the policy cannot observe or act in such spaces.
        """
        spaces = _spaces_of(cls, envs)
        _check_options(cls, "for_envs", (*spaces, *args), options)
        return cls(*spaces, *args, **options)

    @abstractmethod
    def choose(self, obs: Tree, explore: bool, generator: torch.Generator | None) -> Tensor:
        """Choose actions [N, ...] for normalised observations; `explore` samples where the policy is stochastic."""

    def critic_net_params(self, critic_net: NetParams | None) -> NetParams:
        """Return the parts of a critic: those of the actor, or a `critic_net` that takes what it leaves open from them.

        Raises:
            ParamsError: it is no `NetParams`.
        """
        critic_net = checked(type(self).__name__, "critic_net", critic_net, AnyNet | None)
        return self.net_params if critic_net is None else critic_net.with_defaults(self.net_params)

    def act(self, obs: Tree, *, explore: bool = False, generator: torch.Generator | None = None) -> Tensor:
        """Choose actions for raw observations, in the modes (train or eval) that the networks are in.

        Args:
            obs: tree [N, ...] on the policy's device.
            explore: sample, or add the exploration that the algorithm set; False chooses greedily.
            generator: source of randomness; None uses torch's global one.

        Returns:
            actions [N, ...] in the env's scale; those of a Box are within its bounds.

        Raises:
            NonFiniteError: the networks have no preference to choose by, but NaN.
        """
        action = self.decide(obs, explore=explore, generator=generator)
        return action if self._lowest is None else action.clamp(self._lowest, self._highest)

    def decide(self, obs: Tree, *, explore: bool = False, generator: torch.Generator | None = None) -> Tensor:
        """Choose as `act` does, without clipping to the bounds of a Box: what a rollout keeps, and collectors call.

        Returns:
            actions [N, ...] in the env's scale, as sampled.
        """
        if torch.is_grad_enabled():  # a collector has switched gradients off once for all its steps
            with torch.no_grad():
                return self.decide(obs, explore=explore, generator=generator)
        action = self.choose(self.normalize(obs), explore, generator)
        if explore and self.exploration is not None:
            action = self.exploration(action, self.action_space, self.progress(), generator)
        return action

    def __getstate__(self) -> dict[str, Any]:
        """Copy and pickle without the way back to a trainer, which holds envs, buffers and callbacks."""
        return self.__dict__ | {"progress": no_progress}

    def normalize(self, obs: Tree) -> Tree:
        """Standardise observations, if this policy does so."""
        return obs if self.obs_normalizer is None else self.obs_normalizer(obs)

    def scale(self, action: Tensor) -> Tensor:
        """Map actions from the scale of the networks to the env's."""
        return action

    def unscale(self, action: Tensor) -> Tensor:
        """Map actions from the env's scale to that of the networks; the inverse of `scale`."""
        return action

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


class UnitBoxPolicy(Policy):
    """Parent of policies whose networks act in (-1, 1)^A, the shape of squashed actions.

    Raises:
        SpaceError: the action space is not a bounded Box of floats of one axis with low < high.
    """

    action_low: Tensor
    action_high: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        net: NetParams | None = None,
        *,
        hidden_sizes: Sequence[int] | None = None,
        activation: Activation | None = None,
        normalize_obs: bool = False,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            net,
            hidden_sizes=hidden_sizes,
            activation=activation,
            normalize_obs=normalize_obs,
        )
        if not _is_unit_box_like(action_space):
            raise SpaceError(
                field_error_text(
                    type(self).__name__,
                    "action_space",
                    "must be a bounded Box of one axis with low < high",
                    action_space,
                    "Give the env such a Box with gymnasium.wrappers.TransformAction, or use another policy.",
                )
            )
        require_floats(type(self).__name__, action_space)
        self.register_buffer("action_low", torch.from_numpy(action_space.low.astype(np.float32)))
        self.register_buffer("action_high", torch.from_numpy(action_space.high.astype(np.float32)))

    def other_bounds(self, state: Mapping[str, Any], prefix: str = "") -> str | None:
        """Return a sentence if a state was saved by a policy with other bounds of actions, else None."""
        for name in ("action_low", "action_high"):
            saved, own = state.get(prefix + name), getattr(self, name)
            if isinstance(saved, Tensor) and saved.tolist() != own.tolist():
                return f"{prefix}{name}: expected {own.tolist()}, found {saved.tolist()}: actions have other bounds"
        return None

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Load no other bounds than those of the action space; the networks mean shares of them."""
        problem = self.other_bounds(state_dict, prefix)
        if problem:
            raise SpaceError(f"{type(self).__name__}.load_state_dict: {problem}. Nothing was loaded.")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def scale(self, action: Tensor) -> Tensor:
        """Map (-1, 1) to the bounds of the action space."""
        return torch.lerp(self.action_low, self.action_high, ((action + 1) * 0.5).to(self.action_low.dtype))

    def unscale(self, action: Tensor) -> Tensor:
        """Map the bounds of the action space to (-1, 1)."""
        return 2 * (action - self.action_low) / (self.action_high - self.action_low) - 1


def _spaces_of(policy_class: Any, envs: Any) -> tuple[Space, Space]:
    """Return the spaces of one of the envs."""
    if not isinstance(envs, type):  # whose attributes are no spaces yet
        observation_space = getattr(envs, "single_observation_space", None)
        action_space = getattr(envs, "single_action_space", None)
        if isinstance(observation_space, gym.Space) and isinstance(action_space, gym.Space):
            return observation_space, action_space
    hint = "Make one with rl.make_vec(env_id, num_envs=1)."
    if isinstance(envs, str):
        hint = f"Make one with rl.make_vec({envs!r}, num_envs=1)."
    elif isinstance(envs, gym.Env):
        hint = "It is a single env: make several with rl.make_vec(env_id_or_factory, num_envs=1)."
    owner = f"{policy_class.__name__}.for_envs"
    raise ParamsError(field_error_text(owner, "envs", "must be a gymnasium VectorEnv", envs, hint))


def _check_options(policy_class: Any, method: str, args: tuple[Any, ...], options: Any) -> None:
    owner = f"{policy_class.__name__}.{method}"
    if inspect.isabstract(policy_class):
        raise ParamsError(
            f"{owner}: {policy_class.__name__} is abstract. Build one of its subclasses: ActorCritic, ..."
        )
    check_arguments(owner, policy_class, args, options, "option")


def _is_unit_box_like(space: gym.Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether an affine map takes (-1, 1)^A to the space and back."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
        return False
    # Beyond float32, the map would be infinite.
    width = space.high.astype(np.float64) - space.low
    return bool(((width > 0) & (width <= np.finfo(np.float32).max)).all())


def _finite_bounds(space: gym.Space[Any]) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Return the least and the greatest float32 numbers within a Box; None where there is nothing to clip to."""
    if not isinstance(space, spaces.Box) or not np.isfinite([space.low, space.high]).any():
        return None, None
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    # The float32 nearest to a bound of another format may lie beyond it.
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    return torch.from_numpy(low), torch.from_numpy(high)
