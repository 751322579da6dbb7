"""An actor and a critic that remember what they saw in an episode."""

from functools import partial
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from rltrainer.field_rules import FiniteFloat, Flag, PositiveInt, checked
from rltrainer.nets.decision import LOG_PROB, Decision
from rltrainer.nets.distributions import Distribution
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.heads import ValueHead, make_head
from rltrainer.nets.mlp import MLP, orthogonal_
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import RewardScaler
from rltrainer.nets.policy import Policy, PolicyOptions
from rltrainer.nets.recurrent import GRU, LSTM, RecurrentCell
from rltrainer.spaces import Space
from rltrainer.tree import Tree, leaves

SQRT_2 = 2**0.5
CellName = Literal["gru", "lstm"]


class RecurrentActorCritic(Policy):
    """An actor and a state-value critic with memory, for `RecurrentPPO`: encoder, recurrent cell, hidden layers, head.

    What an env is remembered by, [N, S], is the memory of the actor's cell and, beside it, of the critic's.

    Args:
        cell: "gru" (Cho et al. 2014) or "lstm" (Hochreiter & Schmidhuber 1997).
        cell_size: numbers that a cell hands on to the layers behind it.
        share_cell: actor and critic share one encoder and one cell.
        critic_net: see `ActorCritic`.
        log_std_init: see `Actor`.
        normalize_reward: see `ActorCritic`.
        options: see `Policy`; layers behind the cell are 64-64 and ReLU by default: its output is bounded, and tanh on
            top of that saturates where returns are large.

    Raises:
        SpaceError: the action space is no Discrete, nor a MultiDiscrete, MultiBinary or Box of one axis.
        ParamsError: an option breaks its rule.
    """

    extra_specs = LOG_PROB
    default_net = NetParams(hidden_sizes=(64, 64), activation=nn.ReLU)

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        net: NetParams | None = None,
        *,
        cell: CellName = "gru",
        cell_size: int = 64,
        share_cell: bool = False,
        critic_net: NetParams | None = None,
        log_std_init: float = 0.0,
        normalize_reward: bool = False,
        **options: Unpack[PolicyOptions],
    ) -> None:
        super().__init__(observation_space, action_space, net, **options)
        name = type(self).__name__
        log_std_init = checked(name, "log_std_init", log_std_init, FiniteFloat)
        make_cell: type[RecurrentCell] = GRU if checked(name, "cell", cell, CellName) == "gru" else LSTM
        size, net = checked(name, "cell_size", cell_size, PositiveInt), self.net_params
        self.actor_memory = RecurrentEncoder(Encoder(observation_space, net), make_cell, size)
        layers = _layers(net, size)
        head = make_head(layers.out_features, action_space, name, log_std_init)
        # A small last layer starts near the uniform policy, so that no action is ruled out early.
        self.actor = nn.Sequential(layers, orthogonal_(head, 0.01))
        share_cell = checked(name, "share_cell", share_cell, Flag)
        net = self.critic_net_params(critic_net, "share_cell" if share_cell else None)
        self.critic_memory = self.actor_memory
        if not share_cell:
            self.critic_memory = RecurrentEncoder(Encoder(observation_space, net), make_cell, size)
        layers = _layers(net, size)
        self.critic = nn.Sequential(layers, orthogonal_(ValueHead(layers.out_features, 1), 1.0))
        if checked(name, "normalize_reward", normalize_reward, Flag):
            self.reward_normalizer = RewardScaler()

    def initial_state(self, num_envs: int) -> Tensor:
        """Return nothing, which is what is remembered at the start of an episode: zeros [num_envs, S]."""
        size = sum(part.cell.memory_size for part in self._memories())
        return torch.zeros(num_envs, size, device=self.device)

    def remember(self, obs: Tree, state: Tensor, begins: Tensor | None = None) -> Tensor:
        """Return what is remembered after each of some observations.

        Args:
            obs: normalised, a tree [L * N, ...]: what N envs saw one after the other, time first.
            state: [N, S], what was remembered before the first row.
            begins: [L, N] bool, where an episode begins; None for one row in which none does.

        Returns:
            [L * N, S].
        """
        if begins is None:
            begins = torch.zeros(1, len(state), dtype=torch.bool, device=state.device)
        memories, state = self._memories(), state.to(self.weight_dtype)
        before = torch.split(state, [part.cell.memory_size for part in memories], -1)
        return torch.cat([part(obs, memory, begins) for part, memory in zip(memories, before, strict=True)], -1)

    def distribution(self, state: Tensor, mask: Tensor | None = None) -> Distribution:
        """Return the distribution over actions, those that are allowed, for what is remembered after an observation.

        Args:
            state: [B, S].
            mask: [B, A] bool, see `mask_of`; None where all are allowed.
        """
        distribution: Any = self.actor(self.actor_memory.cell.output(state))
        return distribution if mask is None else distribution.masked(mask)  # type: ignore[no-any-return]  # a head's

    def value(self, state: Tensor) -> Tensor:
        """Return the values [B] of what is remembered after an observation [B, S]."""
        of_critic = state[..., -self.critic_memory.cell.memory_size :]
        value: Tensor = self.critic(self.critic_memory.cell.output(of_critic))
        return value.squeeze(-1)

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: torch.Generator | None
    ) -> Decision:
        """Remember, and sample an action or take the likeliest one."""
        state = self.remember(obs, self.initial_state(len(leaves(obs)[0])) if state is None else state)
        distribution = self.distribution(state, mask)
        action = distribution.sample(generator) if explore else distribution.mode()
        return Decision(action, state, {"log_prob": partial(distribution.log_prob, action)})

    def _memories(self) -> list["RecurrentEncoder"]:
        """Return the modules that remember, the actor's first, each once."""
        return list(dict.fromkeys([self.actor_memory, self.critic_memory]))


class RecurrentEncoder(nn.Module):
    """An encoder and the cell that remembers what it sees.

    Args:
        encoder: from an observation to features.
        make_cell: the class of the cell.
        size: of the cell's output.
    """

    def __init__(self, encoder: Encoder, make_cell: type[RecurrentCell], size: int) -> None:
        super().__init__()
        self.encoder = encoder.orthogonal_(SQRT_2)
        self.cell = orthogonal_(make_cell(encoder.out_features, size), 1.0)

    def forward(self, obs: Tree, memory: Tensor, begins: Tensor) -> Tensor:
        """Return the memory after each row [L * N, S], given a tree [L * N, ...], [N, S] and [L, N]."""
        features: Tensor = self.encoder(obs)
        memories: Tensor = self.cell(features.view(*begins.shape, -1), memory, begins)
        return memories.flatten(0, 1)


def _layers(net: NetParams, size: int) -> MLP:
    return orthogonal_(net.hidden_layers(size), SQRT_2)
