"""Rollouts and transitions of given observations, actions and rewards; every other field is plain, unless given too."""

from typing import Any

import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.tree import map_tree


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rollout(obs: Any, action: Tensor, reward: Tensor, **fields: Any) -> rl.Rollout:
    """Return a rollout [T, N] without ends, followed by zeros, in which every step is valid."""
    no = torch.zeros_like(reward, dtype=torch.bool)
    last, index = map_tree(lambda x: torch.zeros_like(x[0]), obs), torch.zeros(0, dtype=torch.int64)
    plain = {
        "terminated": no, "truncated": no, "valid": ~no, "last_obs": last, "final_index": index, "starts": no[0],
        "final_obs": map_tree(lambda x: x[:0], last),
    }  # fmt: skip
    return rl.Rollout(obs=obs, action=action, reward=reward, **(plain | fields))


@torch.no_grad()
def processed(algorithm: Any, data: rl.Rollout) -> Any:
    """Return what an update makes of a rollout before its first gradient step."""
    return algorithm.process(data)


def transitions(obs: Any, action: Tensor, reward: Tensor, **fields: Any) -> rl.Transitions:
    """Return transitions [B] to the same observations, without ends or discount, each of weight 1."""
    no, one = torch.zeros_like(reward, dtype=torch.bool), torch.ones_like(reward)
    plain = {
        "next_obs": obs, "terminated": no, "truncated": no, "discount": one, "index": no.long(), "weight": one,
    }  # fmt: skip
    return rl.Transitions(obs=obs, action=action, reward=reward, **(plain | fields))


def of_data(algorithm: Any, action: Tensor) -> dict[str, Any]:
    """Return `action` and `extra` of transitions with these first actions [..., B, A], as `sample` would draw them.

    ReBRAC has next actions of the data, FQL chunks, where any follow. Cal-QL has returns to go, of which half are not
    known yet.
    """
    follows = (action[..., 0] > 0).float()
    if isinstance(algorithm, rl.CalQL):
        return {"action": action, "extra": {"return_to_go": torch.where(follows > 0, action[..., 0], -torch.inf)}}
    if isinstance(algorithm, rl.ReBRAC):
        return {"action": action, "extra": {"next_action": action.flip(-2), "follows": follows}}
    if isinstance(algorithm, rl.FQL) and algorithm.params.chunk_length == 2:
        is_data = torch.stack([torch.ones_like(follows), follows], -1).unsqueeze(-1)
        return {"action": torch.stack([action, action.flip(-2)], -2), "extra": {"is_data": is_data}}
    return {"action": action}


def trained(algorithm: Any) -> Any:
    """Return the network that an algorithm's updates change: its policy, but FQE's critic."""
    return algorithm.critic if isinstance(algorithm, rl.FQE) else algorithm.policy


def collected(policy: rl.Policy, envs: Any, num_rows: int) -> rl.Rollout:
    """Return what a policy does in envs [num_rows, N]."""
    buffer = rl.RolloutBuffer(num_rows, envs.num_envs, envs.single_observation_space, envs.single_action_space)
    collector = rl.Collector(policy, envs, buffer)
    collector.collect(num_steps=num_rows * envs.num_envs)
    return collector.rollout()
