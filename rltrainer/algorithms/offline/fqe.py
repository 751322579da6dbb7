"""FQE, fitted Q evaluation (Le et al. 2019, Batch Policy Learning under Constraints; 1903.08738)."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rltrainer.algorithms.off_policy_algorithm import OffPolicyAlgorithm, OffPolicyParams
from rltrainer.algorithms.recommended import offline_fields
from rltrainer.data import ReplayBuffer
from rltrainer.nets import NetParams
from rltrainer.nets.actor_critic import Critic
from rltrainer.nets.policy import AnyNet, Policy
from rltrainer.nets.target import TargetNetwork
from rltrainer.spaces import num_choices
from rltrainer.tree import Tree, map_tree
from rltrainer.types import Transitions, UpdateResult
from rltrainer.validation.field_rules import UnitFloat, checked


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class FQEParams(OffPolicyParams):
    """Hyperparameters of FQE."""

    tau: UnitFloat = 0.05
    """Step of the target critic towards the online one. It takes some 5 / (tau * (1 - gamma)) gradient steps until
    values have spread over the horizon: 10,000 with the defaults."""


class FQE(OffPolicyAlgorithm):
    """Estimates the value of a policy from data alone: trains a critic of its greedy actions, and not the policy.

    Args:
        policy: the policy, of any class without memory; it must not change any more.
        params: hyperparameters.
        net: parts of the critic; None takes two layers of 256.
    """

    params_class = FQEParams
    params: FQEParams
    recommended = classmethod(offline_fields)

    def __init__(self, policy: Policy, params: FQEParams | None = None, net: NetParams | None = None) -> None:
        super().__init__(policy, params)
        policy.eval()  # as it acts
        net = checked("FQE", "net", net, AnyNet | None) or NetParams()
        net = net.with_defaults(NetParams(hidden_sizes=(256, 256), activation=nn.ReLU))
        space, choices = policy.action_space, num_choices(policy.action_space)
        # The least and the number of the choices, of which the critic sees each as a one among zeros; none for a Box.
        self.choices: list[tuple[int, int]] = []
        if choices is not None:
            starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), len(choices))
            self.choices = [(int(start), n) for start, n in zip(starts, choices, strict=True)]
            space = gym.spaces.Box(0, 1, (sum(choices),), np.float32)
        self.critic = self._placed(Critic(policy.observation_space, space, net, 1))
        self.target_critic = TargetNetwork(self.critic, self.params.tau)
        self.optimizer = self.make_optimizer(self.params, critic=self.critic)

    def prepare(self, buffer: ReplayBuffer) -> None:
        """Leave the policy's statistics as they are."""

    def _step(self, batch: Transitions, noise: Any) -> UpdateResult:
        return self.gradient_step(batch, noise)  # in the rewards' own scale

    def gradient_step(self, batch: Transitions, noise: Any) -> UpdateResult:
        """Train the critic on reward + discount * Q'(s', a') for the policy's action a' (algorithm 3)."""
        with torch.no_grad():
            next_obs = self.policy.with_open_masks(batch.next_obs, batch.terminated)
            next_q = self._q(self.target_critic, next_obs, self.policy.act(next_obs))
        td_error = batch.reward + batch.discount * next_q - self._q(self.critic, batch.obs, batch.action)
        loss = (td_error.square() * batch.weight).mean()
        self.optimizer.step(loss)
        self.target_critic.update(self.critic)
        return UpdateResult({"loss": loss.detach()}, td_error=td_error.detach())

    def _q(self, critic: nn.Module, obs: Tree, action: Tensor) -> Tensor:
        """Return the values [B] of raw observations [B, ...] and actions of the env [B, ...]."""
        if self.choices:
            pairs = zip(action.reshape(len(action), -1).unbind(1), self.choices, strict=True)
            action = torch.cat(
                [x.unsqueeze(1) - start == torch.arange(n, device=x.device) for x, (start, n) in pairs], 1
            ).to(self.policy.weight_dtype)
        else:
            action = self.policy.unscale(action)
        q: Tensor = critic(self.policy.normalize(obs), action)
        return q.squeeze(0)

    @torch.no_grad()
    def value(self, obs: Tree) -> Tensor:
        """Return the policy's discounted return from raw observations, as estimated: a tree [B, ...] to [B]."""
        obs = map_tree(lambda x: torch.as_tensor(x, device=self.device), obs)
        return self._q(self.critic, obs, self.policy.act(obs))

    def initial_value(self, buffer: ReplayBuffer) -> float:
        """Return the mean value of the observations with which the episodes of a buffer start."""
        return float(self.value(buffer.initial_observations()).mean())
