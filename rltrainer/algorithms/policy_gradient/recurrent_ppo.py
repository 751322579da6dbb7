"""PPO for policies with memory: it trains on sequences, each from the memory at its start."""

from typing import cast

import torch
from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch, Sequences
from rltrainer.algorithms.policy_gradient.ppo import PPO, PPOParams
from rltrainer.algorithms.recommended import whole_envs
from rltrainer.nets import RecurrentActorCritic
from rltrainer.nets.distributions import Distribution
from rltrainer.tree import map_tree
from rltrainer.types import Rollout
from rltrainer.updates.planned_step import autocast


class RecurrentPPO(PPO):
    """PPO whose policy has a memory: a minibatch is whole envs over the whole rollout.

    Each env's sequence starts from its memory at the start of the rollout. An update does not compute this memory
    again, so it comes from slightly older weights.
    """

    policy_class = RecurrentActorCritic  # type: ignore[assignment]  # it is let in instead of policies without memory
    policy: RecurrentActorCritic  # type: ignore[assignment]
    trains_recurrent = True
    columns = ("state",)
    recommended = classmethod(whole_envs)

    def __init__(self, policy: RecurrentActorCritic, params: PPOParams | None = None) -> None:
        super().__init__(policy, params)  # type: ignore[arg-type]  # the methods below override PPO's that use it
        if self.params.symmetry is not None:
            self.params.raise_invalid("symmetry", "must be None, as the memory of a mirrored sequence is not known")

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

    def evaluate(self, batch: OnPolicyBatch) -> tuple[Distribution, Tensor]:
        """Return the distributions over actions and the values [T * n] of whole envs."""
        batch = cast(Sequences, batch)
        state = batch.memory(self.policy)
        return self.policy.distribution(state, self.policy.mask_of(batch.obs)), self.policy.value(state)
