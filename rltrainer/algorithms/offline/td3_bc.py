"""TD3+BC (Fujimoto & Gu 2021, A Minimalist Approach to Offline Reinforcement Learning)."""

import dataclasses

from torch import Tensor

from rltrainer.algorithms.actor_critic.td3 import TD3, TD3Params
from rltrainer.algorithms.recommended import offline_fields
from rltrainer.data import ReplayBuffer
from rltrainer.nets import DeterministicActorCritic
from rltrainer.nets.normalizer import running_moments
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import NonNegativeFloat, PositiveFloat, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TD3BCParams(TD3Params):
    """Hyperparameters of TD3+BC. The paper also normalises observations: `normalize_obs=True` of the policy."""

    lr: PositiveFloat | Scheduled = 3e-4
    alpha: PositiveFloat = 2.5
    """Weight of the value against staying close to the data."""
    obs_std_eps: NonNegativeFloat = 1e-3
    """Added to the standard deviations by which a policy with `normalize_obs=True` divides (section 5)."""


class TD3BC(TD3):
    """TD3 whose actor also imitates the data."""

    params_class = TD3BCParams
    params: TD3BCParams
    recommended = classmethod(offline_fields)  # type: ignore[assignment]  # another trainer's

    def __init__(self, policy: DeterministicActorCritic, params: TD3BCParams | None = None) -> None:
        super().__init__(policy, params)

    def prepare(self, buffer: ReplayBuffer) -> None:
        """Take the statistics of the data; they include the epsilon, also in the policy's file."""
        super().prepare(buffer)
        if self.policy.obs_normalizer is not None:
            # Section 5: an observation that hardly varies in the data must not be divided by a very small number.
            for moments in running_moments(self.policy.obs_normalizer):
                moments.var.copy_((moments.var.sqrt() + self.params.obs_std_eps).square())

    def actor_loss(self, batch: Transitions) -> Tensor:
        """Return the mean [] of -lambda Q(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / mean |Q| (eq. 5)."""
        action = self.actor(batch.obs)
        q = self.critic(batch.obs, action, num_members=1)[0]
        # lambda makes the value's term independent of the scale of rewards.
        scale = self.params.alpha / self.reduce.mean(q.detach().abs().mean())
        imitation = (action - batch.action).square().mean(-1)
        loss: Tensor = imitation - scale * q
        return (loss * batch.weight).mean()
