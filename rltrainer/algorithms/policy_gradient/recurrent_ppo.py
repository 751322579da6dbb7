"""PPO for policies with memory: it trains on sequences, each from the memory at its start."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Self, cast

import torch
from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch, shuffled
from rltrainer.algorithms.policy_gradient.ppo import PPO, PPOParams
from rltrainer.algorithms.recommended import OnPolicyFields, VectorEnv, look_at
from rltrainer.errors import ParamsError
from rltrainer.nets import RecurrentActorCritic
from rltrainer.nets.distributions import Distribution
from rltrainer.tree import map_tree
from rltrainer.types import Rollout
from rltrainer.updates.planned_step import autocast


@dataclasses.dataclass(slots=True)
class Sequences(OnPolicyBatch):
    """Batch of whole envs; flattened or a minibatch, the T steps of each of n envs, time first [T * n]."""

    begins: Tensor = dataclasses.field(kw_only=True)  # [T, N] bool: the first step of an episode
    state: Tensor = dataclasses.field(kw_only=True)  # [1, N, S], flattened [n, S]: the memory before the first row

    def of_envs(self, envs: Tensor) -> Self:
        """Return the steps of some envs [T * n]."""
        return self.map(lambda x: x[:, envs].flatten(0, 1))


class RecurrentPPO(PPO):
    """PPO whose policy has a memory: a minibatch is whole envs over the whole rollout.

    Each env's sequence starts from its memory at the start of the rollout. An update does not compute this memory
    again, so it comes from slightly older weights.
    """

    policy_class = RecurrentActorCritic  # type: ignore[assignment]  # it is let in instead of policies without memory
    policy: RecurrentActorCritic  # type: ignore[assignment]
    trains_recurrent = True
    columns = ("state",)

    def __init__(self, policy: RecurrentActorCritic, params: PPOParams | None = None) -> None:
        super().__init__(policy, params)  # type: ignore[arg-type]  # the methods below override PPO's that use it

    @classmethod
    def recommended(cls, envs: VectorEnv) -> OnPolicyFields:
        """Return fields of `OnPolicyTrainerParams` that train well: `**rl.RecurrentPPO.recommended(envs)`."""
        # 128 steps of each env, whole envs in at most 4 minibatches, 4 repetitions (CleanRL's PPO with an LSTM).
        num_envs, _ = look_at(envs, cls)
        return OnPolicyFields(
            collection_step_num_env_steps=128 * num_envs, batch_size=128 * -(-num_envs // 4),
            update_step_num_repetitions=4,
        )  # fmt: skip

    def process(self, rollout: Rollout) -> Sequences:
        """Estimate advantages and returns as PPO does, with one pass over each env's sequence."""
        policy = self.policy
        begins, num_envs = rollout.begins, len(rollout.starts)
        obs = policy.normalize(map_tree(lambda x: x.flatten(0, 1), rollout.obs))
        with autocast(self.device, self.plan.precision.amp):
            state = policy.next_state(obs, rollout.extra["state"][0], begins)
            value = policy.value(state).view(begins.shape)
            # A final observation is valued with the memory of its episode; the next episode resets it.
            others = map_tree(lambda *x: torch.cat(x), rollout.last_obs, rollout.final_obs)
            before = torch.cat([state[-num_envs:], state[rollout.final_index]])
            last, final = policy.value(policy.next_state(policy.normalize(others), before)).tensor_split([num_envs])
            samples = self.samples(rollout, value, rollout.successors(value, last, final))
            log_prob = rollout.extra.get("log_prob")
            extra = {name: column for name, column in rollout.extra.items() if name != "state"}
            if log_prob is None or self.params.desired_kl is not None:
                distribution = policy.distribution(state, policy.mask_of(obs))
                extra = self.with_old(extra, distribution, value.shape)
            if log_prob is None:
                log_prob = distribution.log_prob(rollout.action.flatten(0, 1)).view_as(value)
        own = {"log_prob": log_prob, "extra": extra, "begins": begins, "state": rollout.extra["state"][:1]}
        return Sequences(**(samples.fields() | own))

    def check_batch_size(self, batch_size: int | None, num_rows: int | None, num_envs: int = 1) -> None:
        """Raise a `ParamsError` unless minibatches hold whole envs, all of them if rollouts differ in length."""
        name = type(self).__name__
        if num_rows == 1:  # else a minibatch has several steps of each env
            super().check_batch_size(batch_size, num_rows, num_envs)
        if batch_size is None:
            return
        if num_rows is None:
            hint = "Collect env steps, not episodes, and with a Collector; or let batch_size=None take all envs."
            raise ParamsError(f"{name}: rollouts must be of one length for batch_size={batch_size}. {hint}")
        if batch_size % num_rows:
            rule = f"must be a multiple of {num_rows}, the steps of each env in a rollout, as a minibatch is whole envs"
            raise ParamsError.about(name, "batch_size", rule, batch_size, "None takes all envs.")

    def batches(self, samples: OnPolicyBatch, batch_size: int | None, repeat: int) -> Iterator[OnPolicyBatch]:
        """Yield whole envs in random order; the last minibatch is padded by envs of weight 0."""
        sequences, (num_rows, num_envs) = cast(Sequences, samples), samples.weight.shape
        self.check_batch_size(batch_size, num_rows, num_envs)
        size = num_envs if batch_size is None else min(batch_size // num_rows, num_envs)
        if size == num_envs:
            yield from itertools.repeat(sequences.flatten(), repeat)
            return
        # An env without a valid step has no mean.
        counted = sequences.weight.any(0).nonzero().squeeze(1)
        split = self._split(len(counted), size, num_envs)
        for index, is_real in shuffled(split, self.generator, repeat):
            for k, envs in enumerate(counted[index] if len(counted) else index):
                batch = sequences.of_envs(envs)
                if is_real is not None:
                    batch.weight = batch.weight * is_real[k].repeat(num_rows)
                yield batch

    def evaluate(self, batch: OnPolicyBatch) -> tuple[Distribution, Tensor]:
        """Return the distributions over actions and the values [T * n] of whole envs."""
        batch = cast(Sequences, batch)
        state = self.policy.next_state(batch.obs, batch.state, batch.begins.view(-1, len(batch.state)))
        return self.policy.distribution(state, self.policy.mask_of(batch.obs)), self.policy.value(state)
