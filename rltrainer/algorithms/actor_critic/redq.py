"""REDQ (Chen et al. 2021, Randomized Ensembled Double Q-Learning: Learning Fast Without a Model)."""

import dataclasses

import torch
from torch import Tensor

from rltrainer.algorithms.actor_critic.sac import SAC, SACNoise, SACParams
from rltrainer.errors import ParamsError
from rltrainer.nets import SquashedActorCritic
from rltrainer.types import Transitions
from rltrainer.validation.field_rules import PositiveFloat, PositiveInt, Scheduled


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class REDQParams(SACParams):
    """Hyperparameters of REDQ. The paper takes its target entropies from MBPO: -1 for Hopper, -3 for other robots."""

    critic_lr: PositiveFloat | Scheduled = 3e-4
    num_target_critics: PositiveInt = 2
    """Members M of the ensemble whose lowest value is the target, sampled again for each gradient step."""
    actor_update_interval: PositiveInt = 20
    """Gradient steps of the critics for each one of actor and temperature: the paper's G, their number per env step."""


@dataclasses.dataclass(slots=True, kw_only=True)
class REDQNoise(SACNoise):
    """Random numbers of one gradient step, [B, A] for actions."""

    members: Tensor  # critics of the target, int64 [M]; the same for the whole batch


class REDQ(SAC):
    """SAC with many critics and many gradient steps per env step; targets from random few critics limit the bias.

    Its policy is `SquashedActorCritic.for_envs(envs, num_critics=10)`, as in the paper; fewer critics than a target
    takes are a `ParamsError`.
    """

    params_class = REDQParams
    params: REDQParams
    recommended_steps_per_sample, recommended_num_warmup_steps = 20.0, 5000  # the paper's appendix A

    def __init__(self, policy: SquashedActorCritic, params: REDQParams | None = None) -> None:
        super().__init__(policy, params)
        if policy.num_critics < self.params.num_target_critics:
            rule = f"must be at least num_target_critics ({self.params.num_target_critics})"
            raise ParamsError.about("REDQ.policy", "num_critics", rule, policy.num_critics)
        self.num_critic_steps = torch.zeros((), dtype=torch.int64)  # in its files whatever the interval

    def sample_noise(self, batch: Transitions) -> REDQNoise:
        """Sample the noise of the actions and the members of the target."""
        noise = super().sample_noise(batch)
        members = torch.randperm(self.policy.num_critics, generator=self.generator, device=self.device)
        members = self.plan.ranks.gather(members[: self.params.num_target_critics], is_equal=True)[0]
        return REDQNoise(action=noise.action, next_action=noise.next_action, members=members)

    def target_value(self, q: Tensor, noise: REDQNoise) -> Tensor:
        """Return the lowest value of the sampled critics [B] (algorithm 1)."""
        return q[noise.members].amin(0)

    def actor_value(self, q: Tensor) -> Tensor:
        """Return the mean value of all critics [B] (algorithm 1)."""
        return q.mean(0)
