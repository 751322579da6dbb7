"""Sequences on policy: what whole envs did over a rollout, each from the memory at its start."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Self, cast

import torch
from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch, shuffled
from rltrainer.algorithms.on_policy_algorithm import OnPolicyAlgorithm
from rltrainer.algorithms.recommended import OnPolicyFields, VectorEnv, look_at
from rltrainer.errors import ParamsError
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


def states_of(policy: RecurrentPolicy, batch: OnPolicyBatch) -> Tensor:
    """Return the memory after each observation [T * n] of a minibatch of whole envs."""
    batch = cast(Sequences, batch)
    return policy.next_state(batch.obs, batch.state, batch.begins.view(-1, len(batch.state)))


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


def recommended_fields(cls: type[Any], envs: VectorEnv) -> OnPolicyFields:
    """Return the recommended fields of an algorithm that trains on sequences."""
    # 128 steps of each env, whole envs in at most 4 minibatches, 4 repetitions (CleanRL's PPO with an LSTM).
    num_envs, _ = look_at(envs, cls)
    return OnPolicyFields(
        collection_step_num_env_steps=128 * num_envs, batch_size=128 * -(-num_envs // 4),
        update_step_num_repetitions=4,
    )  # fmt: skip


def check_whole_envs(name: str, batch_size: int | None, num_rows: int | None) -> None:
    """Raise a `ParamsError` unless minibatches hold whole envs, all of them if rollouts differ in length."""
    if batch_size is None:
        return
    if num_rows is None:
        hint = "Collect env steps, not episodes, and with a Collector; or let batch_size=None take all envs."
        raise ParamsError(f"{name}: rollouts must be of one length for batch_size={batch_size}. {hint}")
    if batch_size % num_rows:
        rule = f"must be a multiple of {num_rows}, the steps of each env in a rollout, as a minibatch is whole envs"
        raise ParamsError.about(name, "batch_size", rule, batch_size, "None takes all envs.")


def batches_of_envs(
    algorithm: OnPolicyAlgorithm, samples: OnPolicyBatch, batch_size: int | None, repeat: int
) -> Iterator[OnPolicyBatch]:
    """Yield whole envs in random order; the last minibatch is padded by envs of weight 0."""
    sequences, (num_rows, num_envs) = cast(Sequences, samples), samples.weight.shape
    algorithm.check_batch_size(batch_size, num_rows, num_envs)
    size = num_envs if batch_size is None else min(batch_size // num_rows, num_envs)
    if size == num_envs:
        yield from itertools.repeat(sequences.flatten(), repeat)
        return
    # An env without a valid step has no mean.
    counted = sequences.weight.any(0).nonzero().squeeze(1)
    split = algorithm.split(len(counted), size, num_envs)
    for index, is_real in shuffled(split, algorithm.generator, repeat):
        for k, envs in enumerate(counted[index] if len(counted) else index):
            batch = sequences.of_envs(envs)
            if is_real is not None:
                batch.weight = batch.weight * is_real[k].repeat(num_rows)
            yield batch
