"""FQL (Park et al. 2025, Flow Q-Learning; 2502.02538), with chunks of actions (Li et al. 2025; 2507.07969)."""

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.recommended import offline_fields
from rltrainer.data import ReplayBuffer
from rltrainer.errors import ReplayBufferError
from rltrainer.nets import FlowActorCritic, NetParams
from rltrainer.nets.target import TargetNetwork
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import Flag, PositiveFloat, PositiveInt, UnitFloat


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FQLParams(OffPolicyParams):
    """Hyperparameters of FQL. With chunks `n_step` must be left out: a target sums the rewards of a chunk."""

    alpha: PositiveFloat = 1.0
    """Weight of the actor's distance to the flow, against the value: 0.03 to 10 with `normalize_q`, else 3 to 1,000."""
    normalize_q: Flag = True
    """Divide the actor's value by its mean magnitude, so that `alpha` does not depend on the scale of rewards."""
    chunk_length: PositiveInt = 1
    """Actions that are chosen at once and played without looking: 5 in Q-chunking. The policy has the same."""
    num_flow_steps: PositiveInt = 10
    """Euler steps from noise to an action of the flow."""
    tau: UnitFloat = 0.005
    """Step of the target critics towards the online ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_length > 1:
            self._must_be_left_out("n_step", why="With chunks, targets look chunk_length steps ahead.")


@dataclasses.dataclass(slots=True, kw_only=True)
class FQLNoise:
    """Random numbers of one gradient step; z is standard normal, a number for each of a chunk's [B, H A]."""

    next_z: Tensor  # of the target's chunk
    flow_z: Tensor  # where the flow starts
    time: Tensor  # of the flow, uniform [B, 1]
    z: Tensor  # of the actor's chunk


class FQL(OffPolicyAlgorithm):
    """Q-learning with an actor that stays close to a flow model of the data, which may have several modes.

    Batches hold chunks of H = `chunk_length` actions [B, H, A], or single ones [B, A], and the reward of all of them.
    A chunk that an end cuts short counts as it is: the target has the rewards before the end, and the last observation
    unless the episode was terminated. The flow learns none of the actions behind the end.
    """

    policy_class = FlowActorCritic
    params_class = FQLParams
    policy: FlowActorCritic
    params: FQLParams
    recommended = classmethod(offline_fields)
    trains_recurrent = True  # the memory of a chunk, which no update needs
    shared_options = ("chunk_length",)
    # The authors' critics normalise after the activation, `NetParams` before it.
    policy_options: ClassVar[dict[str, Any]] = {"hidden_sizes": (512,) * 4, "critic_net": NetParams(norm="layer")}

    def __init__(self, policy: FlowActorCritic, params: FQLParams | None = None) -> None:
        super().__init__(policy, params)
        self.chunk_length = self.params.chunk_length
        self.n_step *= self.chunk_length
        self.actor, self.flow, self.critic = policy.actor, policy.flow, policy.critic
        self.target_critic = TargetNetwork(policy.critic, self.params.tau)
        self.actor_optimizer = self.make_optimizer(self.params, actor=policy.actor)
        self.flow_optimizer = self.make_optimizer(self.params, flow=policy.flow)
        self.critic_optimizer = self.make_optimizer(self.params, critic=policy.critic)

    def check_data(self, buffer: ReplayBuffer) -> None:
        """Raise a `ReplayBufferError` if no trajectory is as long as a chunk."""
        if (longest := buffer.longest_trajectory()) < self.chunk_length:
            rule = f"must be at most {longest}, the longest trajectory of the data"
            raise ReplayBufferError.about("FQLParams", "chunk_length", rule, self.chunk_length)

    def sample(self, buffer: ReplayBuffer, batch_size: int, num_batches: int | None = None) -> Transitions:
        """Return transitions [B] or [K, B]; with chunks their actions, and `is_data` [..., H, 1] of each action."""
        if self.chunk_length == 1:
            return super().sample(buffer, batch_size, num_batches)
        buffer.follow(self.plan.progress, self.plan.ranks)
        options: Any = {"n_step": self.n_step, "gamma": self.gamma, "num_batches": num_batches}
        rows = buffer.sample_sequences(batch_size, self.chunk_length, **options)
        time = rows.reward.dim() - 2
        is_data = (rows.weight.movedim(time, -1) > 0).float().unsqueeze(-1)  # weights behind an end are 0
        chunk = rows.action.movedim(time, -2)
        return dataclasses.replace(rows.row(0), action=chunk, extra={"is_data": is_data})

    def sample_noise(self, batch: Transitions) -> FQLNoise:
        """Sample noise for flow, actor and target; a `ReplayBufferError` if the actions are no chunks."""
        like = batch.action.flatten(1)
        if like.shape[1] != self.chunk_length * len(self.policy.action_low):
            found = list(batch.action.shape)
            raise self.transitions_error(f"must have chunks of {self.chunk_length} actions; got actions {found}")
        z = [torch.empty_like(like).normal_(generator=self.generator) for _ in range(3)]
        time = torch.empty_like(like[:, :1]).uniform_(generator=self.generator)
        return FQLNoise(next_z=z[0], flow_z=z[1], time=time, z=z[2])

    def gradient_step(self, batch: Transitions, noise: FQLNoise) -> UpdateResult:
        """Train critics, flow and actor once each; the actor by both after their steps, the authors' before them."""
        critic_loss, td_error = self.critic_loss(batch, self.critic_target(batch, noise))
        self.critic_optimizer.step(critic_loss)
        flow_loss = self.flow_loss(batch, noise)
        self.flow_optimizer.step(flow_loss)
        actor_loss = self.actor_loss(batch, noise)
        self.actor_optimizer.step(actor_loss)
        self.target_critic.update(self.critic)
        losses = {"critic_loss": critic_loss, "flow_loss": flow_loss, "actor_loss": actor_loss}
        return UpdateResult({name: loss.detach() for name, loss in losses.items()}, td_error=td_error)

    @torch.no_grad()
    def critic_target(self, batch: Transitions, noise: FQLNoise) -> Tensor:
        """Return reward + discount * mean_i Q_i(s', mu(s', z')) [B]; s' follows the chunk, there is no target actor."""
        next_action = self.actor(batch.next_obs, noise.next_z).clamp(-1, 1)
        # The mean, where the authors take the least in AntMaze.
        next_q: Tensor = self.target_critic(batch.next_obs, next_action).mean(0)
        return batch.reward + batch.discount * next_q

    def critic_loss(self, batch: Transitions, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean squared errors of the critics, summed, and their mean absolute error [B] without gradient."""
        td_error: Tensor = target - self.critic(batch.obs, batch.action.flatten(1))
        return (td_error.square() * batch.weight).mean(-1).sum(), td_error.detach().abs().mean(0)

    def flow_loss(self, batch: Transitions, noise: FQLNoise) -> Tensor:
        """Return the mean [] of (v(s, x_t, t) - (a - z))^2 on the straight line x_t = (1 - t) z + t a."""
        action, z, time = batch.action.flatten(1), noise.flow_z, noise.time
        velocity = self.flow(batch.obs, (1 - time) * z + time * action, time)
        error = (velocity - (action - z)).square().view_as(batch.action) * batch.extra.get("is_data", 1.0)
        loss: Tensor = error.flatten(1).mean(1) * batch.weight
        return loss.mean()

    def actor_loss(self, batch: Transitions, noise: FQLNoise) -> Tensor:
        """Return the mean [] of alpha (mu(s, z) - flow(s, z))^2 - mean_i Q_i(s, mu(s, z)) / mean |mean_i Q_i|."""
        with torch.no_grad():  # the value shapes the actor alone: the flow stays a model of the data
            flow = self.policy.flow_chunk(batch.obs, noise.z, self.params.num_flow_steps)
        action = self.actor(batch.obs, noise.z)
        q: Tensor = self.critic(batch.obs, action.clamp(-1, 1)).mean(0)
        scale = self.reduce.mean(q.detach().abs().mean()) if self.params.normalize_q else 1.0
        loss: Tensor = self.params.alpha * (action - flow).square().mean(1) - q / scale
        return (loss * batch.weight).mean()
