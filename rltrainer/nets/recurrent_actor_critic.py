"""An actor and a critic with a memory of the episode."""

from functools import partial
from typing import Any, Unpack

from torch import Generator, Tensor, nn

from rltrainer.nets.distributions import Distribution
from rltrainer.nets.heads import ValueHead, make_head
from rltrainer.nets.mlp import SQRT_2, orthogonal_
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import RewardScaler
from rltrainer.nets.policy import LOG_PROB, Decision, PolicyOptions
from rltrainer.nets.recurrent import CellName, RecurrentEncoder, RecurrentPolicy
from rltrainer.spaces import Space
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import FiniteFloat, Flag, checked


class RecurrentActorCritic(RecurrentPolicy):
    """An actor and a state-value critic with memory, for `RecurrentPPO`: encoder, recurrent cell, hidden layers, head.

    The memory [N, S] holds the actor's cell, then the critic's. Raises as `Actor` does.

    Args:
        cell: "gru" or "lstm".
        cell_size: size of a cell's output.
        share_cell: let actor and critic share one encoder and cell.
        critic_net, log_std_init, normalize_reward: see `ActorCritic`.
    """

    extra_specs = LOG_PROB

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *,
        cell: CellName = "gru", cell_size: int = 64, share_cell: bool = False, critic_net: NetParams | None = None,
        log_std_init: float = 0.0, normalize_reward: bool = False, **options: Unpack[PolicyOptions],
    ) -> None:  # fmt: skip
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        log_std_init = checked(name, "log_std_init", log_std_init, FiniteFloat)
        self.actor_memory = self.make_memory(self.net_params, cell, cell_size)
        layers = orthogonal_(self.net_params.hidden_layers(cell_size), SQRT_2)
        head = make_head(layers.out_features, action_space, name, log_std_init)
        # A small last layer starts near the uniform policy, so that no action is ruled out early.
        self.actor = nn.Sequential(layers, orthogonal_(head, 0.01))
        share_cell = checked(name, "share_cell", share_cell, Flag)
        net = self.critic_net_params(critic_net, "share_cell" if share_cell else None)
        self.critic_memory = self.actor_memory
        if not share_cell:
            self.critic_memory = self.make_memory(net, cell, cell_size)
        layers = orthogonal_(net.hidden_layers(cell_size), SQRT_2)
        self.critic = nn.Sequential(layers, orthogonal_(ValueHead(layers.out_features, 1), 1.0))
        if checked(name, "normalize_reward", normalize_reward, Flag):
            self.reward_normalizer = RewardScaler()

    def distribution(self, state: Tensor, mask: Tensor | None = None) -> Distribution:
        """Return the distribution over the allowed actions for the memory after an observation [B, S]."""
        distribution: Any = self.actor(self.actor_memory.cell.output(state))
        return distribution if mask is None else distribution.masked(mask)  # type: ignore[no-any-return]  # a head's

    def value(self, state: Tensor) -> Tensor:
        """Return the values [B] for the memory after an observation [B, S]."""
        of_critic = state[..., -self.critic_memory.cell.memory_size :]
        value: Tensor = self.critic(self.critic_memory.cell.output(of_critic))
        return value.squeeze(-1)

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Advance the memory [N, S], and sample actions [N, ...] or take the likeliest ones."""
        state = self.next_state(obs, state)
        distribution = self.distribution(state, mask)
        action = distribution.sample(generator) if explore else distribution.mode()
        return Decision(action, state, {"log_prob": partial(distribution.log_prob, action)})

    def memories(self) -> list[RecurrentEncoder]:
        """Return the encoders with memory, the actor's first, each once."""
        return list(dict.fromkeys([self.actor_memory, self.critic_memory]))
