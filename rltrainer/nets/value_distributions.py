"""Policies that know the distribution of each action's return, and act by its mean."""

from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import torch
from torch import Tensor

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.field_rules import FiniteFloat, Rule, checked, is_int
from rltrainer.nets.mlp import Activation
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.q_network import QNetwork

Several = Annotated[int, Rule("an integer of at least 2", lambda v: is_int(v) and v >= 2)]


class CategoricalQNetwork(QNetwork):
    """Returns as probabilities of fixed atoms, evenly spaced from `v_min` to `v_max`: C51.

    Args:
        observation_space: the space of one observation.
        action_space: a Discrete space.
        net: see `QNetwork`.
        hidden_sizes: see `Policy`.
        activation: see `Policy`.
        dueling: see `QNetwork`; for each atom.
        num_atoms: K; `critic` returns logits [B, A, K].
        v_min: the lowest atom. The atoms must cover the discounted returns of the env, as they are clipped to them.
        v_max: the highest atom; -10 to 10 are for the rewards of Atari games, clipped to [-1, 1].
        normalize_obs: see `Policy`.

    Raises:
        SpaceError: the action space is not Discrete.
        ParamsError: `v_max` is not greater than `v_min`.
    """

    support: Tensor
    """The atoms [K]."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        net: NetParams | None = None,
        *,
        hidden_sizes: Sequence[int] | None = None,
        activation: Activation | None = None,
        dueling: bool = False,
        num_atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        normalize_obs: bool = False,
    ) -> None:
        name = type(self).__name__
        super().__init__(
            observation_space,
            action_space,
            net,
            hidden_sizes=hidden_sizes,
            activation=activation,
            dueling=dueling,
            num_outputs=checked(name, "num_atoms", num_atoms, Several),
            normalize_obs=normalize_obs,
        )
        low, high = checked(name, "v_min", v_min, FiniteFloat), checked(name, "v_max", v_max, FiniteFloat)
        if high <= low:
            raise ParamsError(field_error_text(name, "v_max", f"must be greater than v_min ({low!r})", high))
        self.register_buffer("support", torch.linspace(low, high, self.num_outputs))

    def expectation(self, output: Tensor) -> Tensor:
        """Return the means [...] of the distributions that logits [..., K] are of."""
        return output.softmax(-1) @ self.support


class QuantileQNetwork(QNetwork):
    """Returns as quantiles: QR-DQN.

    Args:
        observation_space: the space of one observation.
        action_space: a Discrete space.
        net: see `QNetwork`.
        hidden_sizes: see `Policy`.
        activation: see `Policy`.
        dueling: see `QNetwork`; for each quantile.
        num_quantiles: K; `critic` returns quantiles [B, A, K], at the midpoints of K equal shares.
        normalize_obs: see `Policy`.

    Raises:
        SpaceError: the action space is not Discrete.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        net: NetParams | None = None,
        *,
        hidden_sizes: Sequence[int] | None = None,
        activation: Activation | None = None,
        dueling: bool = False,
        num_quantiles: int = 200,
        normalize_obs: bool = False,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            net,
            hidden_sizes=hidden_sizes,
            activation=activation,
            dueling=dueling,
            num_outputs=checked(type(self).__name__, "num_quantiles", num_quantiles, Several),
            normalize_obs=normalize_obs,
        )
