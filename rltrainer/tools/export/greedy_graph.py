"""A policy as one graph of tensors, from raw observations to greedy actions, for any number of them.

own_policy   a copy of the policy: in eval mode, on the CPU, without gradients
GreedyGraph  what `policy.predict` does, from tensor to tensor: normalise, mask, decide, clip, cast
trace        its graph, as PyTorch sees it act on two observations, with a symbol for how many there are
"""

import copy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.algorithms.meant_policy import Player, policy_of
from rltrainer.errors import ExportError, without_addresses
from rltrainer.nets.linear import large_products_by
from rltrainer.nets.policy import Policy
from rltrainer.spaces import leaf_shape, leaf_spaces, stored_dtype
from rltrainer.tools.export.examples import check_keys, draw_observations, draw_state, to_tensors
from rltrainer.tools.export.quiet import quiet
from rltrainer.tree import Tree, leaves, map_tree

NUM_EXAMPLES = 2
"""Observations that a graph is traced with: PyTorch would take a number of 0 or 1 for a constant."""


def own_policy(owner: str, player: Player) -> Policy:
    """Return a copy of the policy that is meant: on the CPU, in eval mode, without gradients; see `policy_of`."""
    return copy.deepcopy(policy_of(owner, player)).to("cpu").eval().requires_grad_(False)


class GreedyGraph(nn.Module):
    """The work of `policy.predict`, from tensor to tensor."""

    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy, space, tree = policy, policy.action_space, leaf_spaces(policy.observation_space)
        self.dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
        self.is_clipped = isinstance(space, spaces.Box) and self.dtype is not torch.float32  # float32 is so already
        if isinstance(space, spaces.Box):
            self.register_buffer("low", torch.from_numpy(space.low.copy()))
            self.register_buffer("high", torch.from_numpy(space.high.copy()))
        self.unseen = {key: map_tree(_zeros, tree[key]) for key in policy.unseen_keys}

    def forward(self, obs: Tree, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return actions [N, ...] in the dtype of their space; for a state [N, S], with the next one.

        Args:
            obs: raw, tree [N, ...], without the keys that only the critic sees.
            state: what a policy with memory remembers.
        """
        if self.unseen:
            size = leaves(obs)[0].shape[0]
            obs = obs | map_tree(lambda zeros: zeros.expand(size, *zeros.shape[1:]), self.unseen)
        if state is None:
            return self._in_space(self.policy.act(obs))
        action, state = self.policy.act(obs, state)
        return self._in_space(action), state

    def _in_space(self, action: Tensor) -> Tensor:
        action = action.to(self.dtype)
        return action.clamp(self.low, self.high) if self.is_clipped else action


def _zeros(space: Any) -> Tensor:
    return torch.zeros((1, *leaf_shape(space)), dtype=stored_dtype(space))


def trace(owner: str, policy: Policy) -> torch.export.ExportedProgram:
    """Return the graph of the greedy policy, for any number of observations.

    Args:
        owner: who asks, for the error's text.
        policy: in eval mode, on the CPU.

    Raises:
        ExportError: some code of its networks is more than a graph of tensors, or a key of its observations cannot be
            in the name of an input.
    """
    check_keys(owner, policy.observation_space)
    example = to_tensors(draw_observations(policy, NUM_EXAMPLES))
    args = (example, *(to_tensors(state) for state in draw_state(policy, NUM_EXAMPLES)))
    batch = torch.export.Dim("batch", min=1)
    shapes = map_tree(lambda _: {0: batch}, args)
    # oneDNN is asked for by an operator of ours, which nobody knows where the graph runs.
    with torch.no_grad(), large_products_by("torch"), quiet():
        try:
            # Strict: code is read, not only run, so that `len(x)` is no constant, and `if x.sum() > 0` is found.
            graph = GreedyGraph(policy)
            program = torch.export.export(graph, args, dynamic_shapes=shapes, strict=True)
        except Exception as error:  # whatever a user's module raises where it meets tensors without numbers
            problem = f"{owner}: {type(policy).__name__} is no graph of tensors: {cause_of(error)}"
            hint = "Its modules must do the same for all numbers and any number of observations: torch.where, not if."
            raise ExportError(f"{problem}. {hint}") from error
    return _without_what_is_not_used(program)


def cause_of(error: BaseException) -> str:
    """Return in one line what was wrong first: an exporter wraps errors in errors, with pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = (line.strip() for line in without_addresses(str(error)).splitlines())
    return f"{type(error).__name__}: {next(filter(None, lines), '')}".rstrip(":. ")


def _without_what_is_not_used(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Leave out critics, and the lines of code with their paths that each operation came from."""
    signature = program.graph_signature
    used = {*signature.inputs_to_parameters.values(), *signature.inputs_to_buffers.values()}
    for name in program.state_dict.keys() - used:
        del program.state_dict[name]
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program
