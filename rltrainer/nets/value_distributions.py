"""Policies that know the distribution of each action's return, and act by its mean."""

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

import torch
from torch import Tensor

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.q_network import QNetwork, QNetworkOptions
from rltrainer.spaces import Space
from rltrainer.validation.field_rules import FiniteFloat, Rule, checked, is_int

Several = Annotated[int, Rule("an integer of at least 2", lambda v: is_int(v) and v >= 2)]


class CategoricalQNetwork(QNetwork):
    """Returns as probabilities of fixed atoms, evenly spaced from `v_min` to `v_max`: C51.

    Args:
        num_atoms: K; `critic` returns logits [B, A, K].
        v_min: the lowest atom. The atoms must cover the discounted returns of the env, as they are clipped to them.
        v_max: the highest atom; -10 to 10 are for the rewards of Atari games, clipped to [-1, 1].
        options: see `QNetwork`.

    Raises:
        ParamsError: `v_max` is not greater than `v_min`.
    """

    support: Tensor
    """The atoms [K]."""

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        num_atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        **options: Unpack[QNetworkOptions],
    ) -> None:
        name = type(self).__name__
        num_atoms = checked(name, "num_atoms", num_atoms, Several)
        super().__init__(observation_space, action_space, net, num_outputs=num_atoms, **options)
        low, high = checked(name, "v_min", v_min, FiniteFloat), checked(name, "v_max", v_max, FiniteFloat)
        if high <= low:
            raise ParamsError(field_error_text(name, "v_max", f"must be greater than v_min ({low!r})", high))
        self.register_buffer("support", torch.linspace(low, high, num_atoms))

    def other_bounds(self, state: Mapping[str, Any], prefix: str = "") -> str | None:
        """Return a sentence if a state was saved by a policy with other atoms, else None."""
        saved, own = state.get(f"{prefix}support"), self.support
        if not isinstance(saved, Tensor) or saved.shape != own.shape or torch.allclose(saved.to(own), own):
            return None
        limits = [f"[{float(atoms[0]):g}, {float(atoms[-1]):g}]" for atoms in (own, saved)]
        return f"{prefix}support: expected atoms in {limits[0]}, found others, in {limits[1]}"

    def expectation(self, output: Tensor) -> Tensor:
        """Return the means [...] of the distributions that logits [..., K] are of."""
        return output.softmax(-1) @ self.support


class QuantileQNetwork(QNetwork):
    """Returns as quantiles, at the midpoints of K equal shares: QR-DQN.

    Args:
        num_quantiles: K; `critic` returns quantiles [B, A, K].
        options: see `QNetwork`.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        num_quantiles: int = 200,
        **options: Unpack[QNetworkOptions],
    ) -> None:
        num_quantiles = checked(type(self).__name__, "num_quantiles", num_quantiles, Several)
        super().__init__(observation_space, action_space, net, num_outputs=num_quantiles, **options)
