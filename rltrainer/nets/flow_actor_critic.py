"""A policy with a generative model of actions: flow matching, and an actor that makes an action in one step."""

from typing import Any, Unpack

import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from rltrainer.nets.actor_critic import ContinuousActorCritic, ContinuousOptions, Critic
from rltrainer.nets.encoder import Encoder
from rltrainer.nets.linear import Linear
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.noise import draw_like
from rltrainer.nets.policy import Decision
from rltrainer.nets.weight_dtype import full_precision
from rltrainer.spaces import Space
from rltrainer.tree import Tree, leaves
from rltrainer.validation.field_rules import PositiveInt, checked


class FlowActorCritic(ContinuousActorCritic):
    """Critics of chunks of actions, an actor from noise to a chunk, and a flow that models the data's chunks: FQL.

    A chunk is H actions in a row, H * A numbers in (-1, 1). `actor(obs, z)` maps normal noise [B, H A] to chunks in one
    step, `flow(obs, x, t)` is the velocity that carries noise at t = 0 to chunks of the data at t = 1. Greedy actions
    take z = 0. The env gets a chunk's actions one by one; with H > 1 the policy has a memory of those that are left.

    Args:
        chunk_length: H.
    """

    default_net = NetParams(hidden_sizes=(256, 256), activation=nn.GELU)
    actor: Any
    flow: "VectorField"

    def __init__(
        self, observation_space: Space, action_space: Space, net: NetParams | None = None, *, chunk_length: int = 1,
        **options: Unpack[ContinuousOptions],
    ) -> None:  # fmt: skip
        # First: the networks that the parent makes have the size of a chunk.
        self.chunk_length = checked(type(self).__name__, "chunk_length", chunk_length, PositiveInt)
        super().__init__(observation_space, action_space, net, **options)

    def _make_networks(self, net: NetParams, critic_net: NetParams) -> None:
        size = self.chunk_length * len(self.action_low)
        self.actor, self.flow = (VectorField(self.observation_space, net, n, size) for n in (size, size + 1))
        chunks = spaces.Box(-1.0, 1.0, (size,))
        self.critic = Critic(self.observation_space, chunks, critic_net, self.num_critics, self.num_outputs)

    def flow_chunk(self, obs: Tree, z: Tensor, num_steps: int) -> Tensor:
        """Return chunks [B, H A] from noise, by Euler steps along the flow: x += flow(obs, x, t) / num_steps."""
        features, x = self.flow.encoder(obs), z
        for step in range(num_steps):
            time = torch.full_like(z[:, :1], step / num_steps)
            x = x + self.flow.velocity(features, x, time) / num_steps
        return x.clamp(-1, 1)

    def initial_state(self, num_envs: int) -> Tensor | None:
        """Return the memory at the start of an episode [num_envs, 1 + H A]: the number of actions left, and they."""
        if self.chunk_length == 1:
            return None
        return torch.zeros(num_envs, 1 + self.chunk_length * len(self.action_low), device=self.device)

    def decide(
        self, obs: Tree, state: Tensor | None, mask: Tensor | None, explore: bool, generator: Generator | None
    ) -> Decision:
        """Take the next actions [N, A] of the chunks; where none is left, of a new chunk, from noise or z = 0."""
        num_envs, num_actions = len(leaves(obs)[0]), len(self.action_low)
        z = torch.zeros(num_envs, self.chunk_length * num_actions, device=self.device)
        chunk = self.actor(obs, draw_like(z, generator, "normal_") if explore else z).clamp(-1, 1)
        state = self.initial_state(num_envs) if state is None else state
        if state is None:
            return Decision(self.scale(chunk))
        num_left, is_over = state[:, :1], state[:, :1] == 0
        chunk = torch.where(is_over, chunk, state[:, 1:])
        num_left = torch.where(is_over, self.chunk_length, num_left) - 1
        # The next action comes first; behind those that are left, played ones follow, which nobody reads.
        return Decision(self.scale(chunk[:, :num_actions]), torch.cat([num_left, chunk.roll(-num_actions, 1)], 1))


class VectorField(nn.Module):
    """A vector [B, size] for each observation and `num_inputs` further numbers, such as noise and time."""

    def __init__(self, observation_space: Space, net: NetParams, num_inputs: int, size: int) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, net)
        self.layers = net.hidden_layers(self.encoder.out_features + num_inputs)
        self.head = Linear(self.layers.out_features, size)

    def forward(self, obs: Tree, *numbers: Tensor) -> Tensor:
        """Return vectors [B, size] for normalised observations [B, ...] and numbers [B, ...]."""
        return self.velocity(self.encoder(obs), *numbers)

    def velocity(self, features: Tensor, *numbers: Tensor) -> Tensor:
        """Return the same for the output of the encoder."""
        return full_precision(self.head(self.layers(torch.cat([features, *numbers], -1))))
