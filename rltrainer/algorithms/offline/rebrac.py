"""ReBRAC (Tarasov et al. 2023, Revisiting the Minimalist Approach to Offline Reinforcement Learning; 2305.09836)."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from rltrainer.algorithms.actor_critic.td3 import TD3, TD3Params
from rltrainer.algorithms.recommended import offline_fields
from rltrainer.data import ReplayBuffer
from rltrainer.nets import DeterministicActorCritic, NetParams
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import NonNegativeFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ReBRACParams(TD3Params):
    """Hyperparameters of ReBRAC. The paper has batches of 1,024, and tunes both weights for each data set."""

    actor_bc_coef: NonNegativeFloat = 0.01
    """Weight of the actor's distance to the data: 0.001 to 0.1 in the paper."""
    critic_bc_coef: NonNegativeFloat = 0.01
    """Weight of the next action's distance to the data in the critics' target: 0 to 0.1 in the paper."""


class ReBRAC(TD3):
    """TD3 whose actor and target both stay close to the data; its critics have layer normalisation.

    Its updates need the data's next actions, which `sample` and `update_from` draw beside the transitions.
    """

    params_class = ReBRACParams
    params: ReBRACParams
    recommended = classmethod(offline_fields)  # type: ignore[assignment]  # another trainer's
    sampled_columns: ClassVar[dict[str, str]] = {"next_action": "next actions of the data"}
    # The authors' code normalises after the activation, `NetParams` before it, as RLPD does.
    policy_options: ClassVar[dict[str, Any]] = {"hidden_sizes": (256,) * 3, "critic_net": NetParams(norm="layer")}

    def __init__(self, policy: DeterministicActorCritic, params: ReBRACParams | None = None) -> None:
        super().__init__(policy, params)

    def sample(self, buffer: ReplayBuffer, batch_size: int, num_batches: int | None = None) -> Transitions:
        """Return transitions [B] or [K, B]; `extra` has the data's `next_action`, and `follows`: 0 where it has none.

        A trajectory's last transition has none, so nothing is subtracted from its target.
        """
        buffer.follow(self.plan.progress, self.plan.ranks)
        n, axis = self.n_step, 0 if num_batches is None else 1
        options: Any = {"n_step": n, "gamma": self.gamma, "num_batches": num_batches}
        rows = buffer.sample_sequences(batch_size, n + 1, **options)
        follows = (rows.weight.select(axis, n) > 0).float()  # its weight behind a trajectory's end is 0
        extra = {"next_action": rows.action.select(axis, n), "follows": follows}
        return dataclasses.replace(rows.row(0), extra=extra)

    @torch.no_grad()
    def critic_target(self, batch: Transitions, noise: Any) -> Tensor:
        """Return reward + discount * (min_i Q_i(s', a') - b2 |a' - a' of the data|^2) [B]."""
        next_action = (self.target_actor(batch.next_obs) + noise.target_noise).clamp(-1, 1)
        next_q = self.target_value(self.target_critic(batch.next_obs, next_action), noise)
        distance = (next_action - self.policy.unscale(batch.extra["next_action"])).square().sum(-1)
        penalty = self.params.critic_bc_coef * distance * batch.extra["follows"]
        next_value: Tensor = next_q - penalty
        return batch.reward + batch.discount * next_value

    def actor_loss(self, batch: Transitions) -> Tensor:
        """Return the mean [] of b1 |pi(s) - a|^2 - min_i Q_i(s, pi(s)) / mean |min_i Q_i|."""
        action = self.actor(batch.obs)
        q: Tensor = self.critic(batch.obs, action).amin(0)
        distance = (action - batch.action).square().sum(-1)
        # The scale makes b1 independent of the scale of rewards.
        loss: Tensor = self.params.actor_bc_coef * distance - q / self.reduce.mean(q.detach().abs().mean())
        return (loss * batch.weight).mean()
