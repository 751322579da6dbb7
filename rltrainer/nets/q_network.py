"""The policy of value-based algorithms: one action value per choice, and the best choice is taken."""

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from rltrainer.errors import ParamsError, SpaceError
from rltrainer.nets.distributions import best_choice, excluded
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.heads import ValueHead
from rltrainer.nets.linear import Chain
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import RewardScaler
from rltrainer.nets.policy import Decision, Policy, PolicyOptions
from rltrainer.spaces import Space, require_few_choices
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import FiniteFloat, Flag, PositiveInt, Rule, checked, is_int


class DuelingHead(nn.Module):
    """Q = V + A - mean(A) over actions (Wang et al. 2016, Dueling Network Architectures, eq. 9), for each output."""

    def __init__(self, in_features: int, num_actions: int, num_outputs: int = 1) -> None:
        super().__init__()
        self.value = ValueHead(in_features, 1, num_outputs)
        self.advantage = ValueHead(in_features, num_actions, num_outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Map [B, in_features] to [B, A], or to [B, A, K] where K > 1."""
        advantage: Tensor = self.advantage(features)
        value: Tensor = self.value(features)
        return value + advantage - advantage.mean(1, keepdim=True)


def require_discrete(name: str, space: Space) -> spaces.Discrete:
    """Return an action space that is Discrete and has few choices; another one is a `SpaceError`."""
    if not isinstance(space, spaces.Discrete):
        hint = "ActorCritic takes several choices at once, DeterministicActorCritic and SquashedActorCritic a Box."
        raise SpaceError.about(name, "action_space", "must be Discrete", space, hint)
    require_few_choices(name, space)
    return space


class QNetworkOptions(PolicyOptions, total=False):
    """Options of `QNetwork` that its subclasses hand on."""

    dueling: bool
    normalize_reward: bool


class QNetwork(Policy):
    """Action values of a Discrete space (another one raises a `SpaceError`); acts greedily.

    Args:
        dueling: separate value and advantage streams (Wang et al. 2016).
        num_outputs: K numbers for each action, whose mean is its value: `critic` returns [B, A, K].
        normalize_reward: see `ActorCritic`; for training in envs.
    """

    default_net = NetParams(hidden_sizes=(128, 128), activation=nn.ReLU)

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        dueling: bool = False, num_outputs: int = 1, normalize_reward: bool = False,
        **options: Unpack[PolicyOptions],
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        action_space = require_discrete(name, action_space)
        self.num_outputs = checked(name, "num_outputs", num_outputs, PositiveInt)
        if checked(name, "normalize_reward", normalize_reward, Flag):
            self.reward_normalizer = RewardScaler()
        self.start = int(action_space.start)
        encoder = Encoder(observation_space, self.net_params)
        make_head = DuelingHead if checked(name, "dueling", dueling, Flag) else ValueHead
        # The head is made before the layers below it: another order would draw other initial weights.
        head = make_head(self.net_params.layer_sizes(encoder.out_features)[-1], int(action_space.n), self.num_outputs)
        self.critic = Chain(encoder, self.net_params.hidden_layers(encoder.out_features), head)

    def q_values(self, obs: Tree, output: Tensor | None = None) -> Tensor:
        """Return the action values [B, A] for normalised observations [B, ...]; actions that are not allowed get -1e8.

        `output` comes from another critic of this shape, such as the target network; None evaluates `critic`.
        """
        values, mask = self.expectation(self.critic(obs) if output is None else output), self.mask_of(obs)
        return values if mask is None else excluded(values, mask)

    def expectation(self, output: Tensor) -> Tensor:
        """Return the values [...] of outputs [..., K]: the mean of several, as of quantiles."""
        return output if self.num_outputs == 1 else output.mean(-1)

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Take the choice of the highest value [N]."""
        return Decision(self.scale(best_choice(self.q_values(obs))))

    def scale(self, action: Tensor) -> Tensor:
        """Map positions [...] in the critic's output to the space's choices."""
        return action + self.start if self.start else action

    def unscale(self, action: Tensor) -> Tensor:
        """Map the space's choices [...] to positions in the critic's output."""
        return action - self.start if self.start else action


Several = Annotated[int, Rule("an integer of at least 2", lambda v: is_int(v) and v >= 2)]


# Of policies with critics that are distributions over fixed atoms, evenly spaced; the last two are methods.
def make_support(owner: str, num_atoms: int, v_min: float, v_max: float) -> Tensor:
    """Return the atoms [K]; a `ParamsError` in the name of `owner` if their limits are not in order."""
    low, high = checked(owner, "v_min", v_min, FiniteFloat), checked(owner, "v_max", v_max, FiniteFloat)
    if high <= low:
        raise ParamsError.about(owner, "v_max", f"must be greater than v_min ({low!r})", high)
    return torch.linspace(low, high, num_atoms)


def other_atoms(self: Any, state: Mapping[str, Any], prefix: str = "") -> str | None:
    """Return the text of an error if a saved state has other atoms, else None."""
    saved, own = state.get(f"{prefix}support"), self.support
    if not isinstance(saved, Tensor) or saved.shape != own.shape or torch.allclose(saved.to(own), own):
        return None
    limits = [f"[{float(atoms[0]):g}, {float(atoms[-1]):g}]" for atoms in (own, saved)]
    return f"{prefix}support: expected atoms in {limits[0]}, found others, in {limits[1]}"


def mean_of_atoms(self: Any, output: Tensor) -> Tensor:
    """Return the means [...] of the distributions with logits [..., K]."""
    return output.softmax(-1) @ self.support  # type: ignore[no-any-return]  # a buffer


class CategoricalQNetwork(QNetwork):
    """Returns as probabilities of `num_atoms` (K) fixed atoms, evenly spaced from `v_min` to `v_max`: C51.

    `critic` returns logits [B, A, K]. The atoms must cover the discounted returns of the env, which are clipped to
    them; -10 to 10 fit the rewards of Atari games, clipped to [-1, 1]. Limits that are not
    in order raise a `ParamsError`.
    """

    # The atoms [K].
    support: Tensor
    other_bounds = other_atoms
    expectation = mean_of_atoms

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        num_atoms: int = 51, v_min: float = -10.0, v_max: float = 10.0, **options: Unpack[QNetworkOptions],
    ) -> None:  # fmt: skip
        name = type(self).__name__
        num_atoms = checked(name, "num_atoms", num_atoms, Several)
        super().__init__(observation_space, action_space, net, num_outputs=num_atoms, **options)
        self.register_buffer("support", make_support(name, num_atoms, v_min, v_max))


class QuantileQNetwork(QNetwork):
    """Returns as `num_quantiles` (K) quantiles, at the midpoints of equal shares: QR-DQN; `critic` is [B, A, K].

    Raises as `QNetwork` does.
    """

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        num_quantiles: int = 200, **options: Unpack[QNetworkOptions],
    ) -> None:  # fmt: skip
        num_quantiles = checked(type(self).__name__, "num_quantiles", num_quantiles, Several)
        super().__init__(observation_space, action_space, net, num_outputs=num_quantiles, **options)
