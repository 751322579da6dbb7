"""PPO for policies with memory: it trains on sequences, each from the memory at its start."""

from typing import cast

from torch import Tensor

from rltrainer.algorithms.minibatches import OnPolicyBatch
from rltrainer.algorithms.policy_gradient.ppo import PPO, PPOParams
from rltrainer.algorithms.recommended import whole_envs
from rltrainer.algorithms.sequences import Sequences, values_of
from rltrainer.nets import RecurrentActorCritic
from rltrainer.nets.distributions import Distribution
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
        with autocast(self.device, self.plan.precision.amp):
            obs, state, value, next_value = values_of(policy, rollout, lambda _, state: policy.value(state))
            samples = self.samples(rollout, value, next_value)
            self.add_old(samples, lambda: policy.distribution(state, policy.mask_of(obs)))
        return Sequences.of_samples(samples, rollout)

    def evaluate(self, batch: OnPolicyBatch) -> tuple[Distribution, Tensor]:
        """Return the distributions over actions and the values [T * n] of whole envs."""
        state = cast(Sequences, batch).memory(self.policy)
        return self.policy.distribution(state, self.policy.mask_of(batch.obs)), self.policy.value(state)
