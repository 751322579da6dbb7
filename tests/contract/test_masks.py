"""Every algorithm for discrete actions obeys masks: what is not allowed changes nothing, and is not changed itself."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from tests import batches
from tests.fakes import built

OBS = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), position=gym.spaces.Box(-1.0, 1.0, (4,), np.float32))
ALGORITHMS: list[Any] = [
    rl.PPO, rl.A2C, rl.IMPALA, rl.TRPO, rl.RecurrentPPO, rl.REINFORCE, rl.DiscreteSAC, rl.DQN, rl.DoubleDQN,
    rl.DiscreteCQL, rl.C51, rl.QRDQN, rl.BC, rl.PQN, rl.Distillation, rl.RecurrentPQN,
]  # fmt: skip
FORBIDDEN = 1
"""The place of the action that no observation allows."""


def obs_batch(*shape: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    mask = torch.tensor([1, 0, 1], dtype=torch.int8).expand(*shape, 3).contiguous()
    return {"action_mask": mask, "position": torch.rand((*shape, 4), generator=generator) * 2 - 1}


def updated(algorithm_class: Any, preference: float, allows: int | None = None) -> dict[str, torch.Tensor]:
    """Return the parameters after two updates, given what is preferred, the row of the forbidden action apart.

    `allows` is whether the masks of successors allow everything or nothing; None leaves them as they are.
    """
    rl.seed(7)
    policy_class = rl.Actor if algorithm_class in (rl.BC, rl.Distillation) else algorithm_class.policy_class
    options = {"cell": "lstm"} if policy_class in (rl.RecurrentActorCritic, rl.RecurrentQNetwork) else {}
    spaces = (OBS, gym.spaces.Discrete(3, start=2))
    policy = policy_class.for_spaces(*spaces, hidden_sizes=(16,), normalize_obs=True, **options)
    (head,) = (m for m in policy.modules() if isinstance(m, nn.Linear) and m.out_features % 3 == 0)
    with torch.no_grad():
        head.bias.view(3, -1)[FORBIDDEN] += preference
    before = [p.detach().view(3, -1)[FORBIDDEN].clone() for p in (head.weight, head.bias)]
    algorithm = built(algorithm_class, policy)
    algorithm.seed(3)
    g = torch.Generator().manual_seed(1)
    shape = (6, 2) if isinstance(algorithm, rl.OnPolicyAlgorithm) else (16,)
    action = 2 + 2 * torch.randint(2, shape, generator=g)
    reward = torch.rand(shape, generator=g)
    for _ in range(2):
        obs = obs_batch(*shape, generator=g)
        if isinstance(algorithm, rl.OnPolicyAlgorithm):
            extra = {name: torch.zeros(*shape, *policy.columns[name][0]) for name in algorithm.columns}
            given = {"last_obs": obs_batch(2, generator=g), "starts": torch.ones(2, dtype=torch.bool), "extra": extra}
            algorithm.update(batches.rollout(obs, action, reward, **given), batch_size=6, repeat=2)
        else:
            given = {"next_obs": obs_batch(*shape, generator=g), "discount": torch.full(shape, 0.9)}
            if allows is not None:
                given["next_obs"]["action_mask"].fill_(allows)
            algorithm.update(batches.transitions(obs, action, reward, **given))
    for p, row in zip((head.weight, head.bias), before, strict=True):
        assert torch.equal(p.detach().view(3, -1)[FORBIDDEN], row), "it is not changed itself"
        with torch.no_grad():
            p.view(3, -1)[FORBIDDEN] = 0
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_not_allowed_has_no_part_in_updates(algorithm: Any) -> None:
    plain, preferring = updated(algorithm, 0.0), updated(algorithm, 50.0)
    for key, value in plain.items():
        assert torch.equal(value, preferring[key]), key


@pytest.mark.parametrize("algorithm", [each for each in ALGORITHMS if issubclass(each, rl.OffPolicyAlgorithm)])
def test_a_successor_that_allows_nothing_is_worth_the_best_of_all_actions(algorithm: Any) -> None:
    """At a time limit an env may allow nothing more, and the target bootstraps."""
    nothing, everything = (updated(algorithm, 50.0, allows) for allows in (0, 1))
    for key, value in nothing.items():
        assert torch.equal(value, everything[key]), key
