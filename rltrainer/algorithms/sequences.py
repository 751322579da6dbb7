"""Sequences on policy: what whole envs did over a rollout, each from the memory at its start."""

import dataclasses
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.nets.recurrent import RecurrentPolicy
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Rollout


@dataclasses.dataclass(slots=True)
class Sequences(OnPolicyBatch):
    """Batch of whole envs; flattened or a minibatch, the T steps of each of n envs, time first [T * n]."""

    begins: Tensor = dataclasses.field(kw_only=True)  # [T, N] bool: the first step of an episode
    state: Tensor = dataclasses.field(kw_only=True)  # [1, N, S], flattened [n, S]: the memory before the first row

    @classmethod
    def of_samples(cls, samples: OnPolicyBatch, rollout: Rollout) -> Self:
        """Return the samples of a rollout with what starts its memories."""
        extra = {name: column for name, column in samples.extra.items() if name != "state"}
        return cls(**samples.fields() | {"extra": extra, "begins": rollout.begins, "state": rollout.extra["state"][:1]})

    def of_envs(self, envs: Tensor) -> Self:
        """Return the steps of some envs [T * n]."""
        return self.map(lambda x: x[:, envs].flatten(0, 1))

    def memory(self, policy: RecurrentPolicy) -> Tensor:
        """Return a policy's memory after each step [T * n, S], from the memory before the first row."""
        return policy.next_state(self.obs, self.state, self.begins.view(-1, len(self.state)))


def values_of(
    policy: RecurrentPolicy, rollout: Rollout, value_of: Callable[[Tree, Tensor], Tensor]
) -> tuple[Tree, Tensor, Tensor, Tensor]:
    """Return normalised observations and the memories after them [T * N], and V(obs) and V(next_obs) [T, N].

    `value_of` takes observations, a tree [B, ...], and the memories after them [B, S].
    """
    begins, num_envs = rollout.begins, len(rollout.starts)
    obs = policy.normalize(map_tree(lambda x: x.flatten(0, 1), rollout.obs))
    state = policy.next_state(obs, rollout.extra["state"][0], begins)
    value = value_of(obs, state).view(begins.shape)
    # A final observation is valued with the memory of its episode; the next episode resets it.
    others = policy.normalize(map_tree(lambda *x: torch.cat(x), rollout.last_obs, rollout.final_obs))
    before = torch.cat([state[-num_envs:], state[rollout.final_index]])
    last, final = value_of(others, policy.next_state(others, before)).tensor_split([num_envs])
    return obs, state, value, rollout.successors(value, last, final)
