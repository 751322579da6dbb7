"""Action values with a memory of the episode."""

from typing import Unpack

from torch import Generator, Tensor

from rltrainer.nets.distributions import best_choice, excluded
from rltrainer.nets.heads import ValueHead
from rltrainer.nets.linear import Chain
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import RewardScaler
from rltrainer.nets.policy import Decision, PolicyOptions
from rltrainer.nets.q_network import DuelingHead, require_discrete
from rltrainer.nets.recurrent import CellName, RecurrentEncoder, RecurrentPolicy
from rltrainer.spaces import Space
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import Flag, checked


class RecurrentQNetwork(RecurrentPolicy):
    """Action values of a Discrete space with memory, for `RecurrentPQN`: encoder, recurrent cell, hidden layers, head.

    The memory [N, S] is the cell's. Raises as `QNetwork` does.

    Args:
        cell, cell_size: see `RecurrentActorCritic`.
        dueling, normalize_reward: see `QNetwork`.
    """

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        cell: CellName = "gru", cell_size: int = 64, dueling: bool = False, normalize_reward: bool = False,
        **options: Unpack[PolicyOptions],
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        space = require_discrete(name, action_space)
        self.start = int(space.start)
        self.memory = self.make_memory(self.net_params, cell, cell_size)
        layers = self.net_params.hidden_layers(cell_size)
        make_head = DuelingHead if checked(name, "dueling", dueling, Flag) else ValueHead
        self.critic = Chain(layers, make_head(layers.out_features, int(space.n)))
        if checked(name, "normalize_reward", normalize_reward, Flag):
            self.reward_normalizer = RewardScaler()

    def q_values(self, state: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the values [B, A] for the memory after an observation [B, S]; of actions not allowed, -1e8."""
        values: Tensor = self.critic(self.memory.cell.output(state))
        return values if mask is None else excluded(values, mask)

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Advance the memory [N, S], and take the choice of the highest value [N]."""
        state = self.next_state(obs, state)
        return Decision(best_choice(self.q_values(state, mask)) + self.start, state)

    def unscale(self, action: Tensor) -> Tensor:
        """Map the space's choices [...] to positions in the critic's output."""
        return action - self.start

    def memories(self) -> list[RecurrentEncoder]:
        """Return the one encoder with memory."""
        return [self.memory]
