"""ReBRAC: both penalties by hand, and the data's next actions, which sequences give."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from tests.fakes import OBS_SPACE
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, batch
from tests.unit.collect.test_collector import BOX


class FixedActor(nn.Module):
    def __init__(self, *action: float) -> None:
        super().__init__()
        self.action = torch.tensor([action])

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.action


def make(num_actions: int = 1, **params: Any) -> Any:
    space = gym.spaces.Box(-1.0, 1.0, (num_actions,), np.float32)
    policy = rl.DeterministicActorCritic.for_spaces(OBS_SPACE, space, hidden_sizes=(8,))
    return rl.ReBRAC(policy, rl.ReBRACParams(**params))


def test_both_penalties_by_hand() -> None:
    algorithm, data = make(2, actor_bc_coef=0.01, critic_bc_coef=0.02, target_noise=0.0), batch([1.0], [0.99])
    data.action = torch.tensor([[0.1, 0.3]])
    algorithm.actor = algorithm.target_actor = FixedActor(0.5, -0.5)
    algorithm.critic = algorithm.target_critic = FixedCritic([[3.0], [2.0]])
    # The squared distance is .16 + .64 = .8: .01 * .8 - 2 / 2, and 1 + .99 (2 - .02 * .8).
    assert float(algorithm.actor_loss(data)) == pytest.approx(-0.992)
    data.extra = {"next_action": data.action, "follows": torch.ones(1)}
    assert algorithm.critic_target(data, algorithm.sample_noise(data)).tolist() == pytest.approx([2.96416])
    data.extra["follows"] = torch.zeros(1)  # no action of the data is known behind a trajectory's end
    assert algorithm.critic_target(data, algorithm.sample_noise(data)).tolist() == pytest.approx([2.98])


def test_actions_of_an_env_are_compared_in_the_scale_of_the_policy() -> None:
    space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    algorithm: Any = rl.ReBRAC(
        rl.DeterministicActorCritic.for_spaces(OBS_SPACE, space), rl.ReBRACParams(target_noise=0)
    )
    algorithm.target_actor, algorithm.target_critic = FixedActor(0.5), FixedCritic([[0.0], [0.0]])
    data = batch([0.0], [1.0])
    data.extra = {"next_action": torch.tensor([[1.0]]), "follows": torch.ones(1)}
    assert algorithm.critic_target(data, algorithm.sample_noise(data)).tolist() == [0.0]  # 1 of 2 is 0.5 of 1


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_the_next_actions_are_those_of_the_data(n_step: int, is_mixed: bool) -> None:
    """Actions count the rows; the third row ends its episode, and the last one has no successor yet."""
    buffer = rl.ReplayBuffer(10, OBS_SPACE, BOX, seed=0)
    obs, no = np.zeros((1, 2), np.float32), np.zeros(1, bool)
    for row in range(6):
        buffer.add(obs, np.float32([[row / 10]]), [0.0], obs, no, np.array([row == 2]))
    source = rl.MixedBuffer(rl.ReplayBuffer(5, OBS_SPACE, BOX), buffer) if is_mixed else buffer
    algorithm = make(n_step=n_step)
    drawn, several = algorithm.sample(source, 50), algorithm.sample(source, 50, 3)
    assert (drawn.action.shape, several.action.shape) == ((50, 1), (3, 50, 1))
    for each in (drawn, several[2]):
        row, after = (each.action[:, 0] * 10).round(), (each.extra["next_action"][:, 0] * 10).round()
        follows = (row + n_step <= 2) | ((row > 2) & (row + n_step <= 5))
        assert torch.equal(each.extra["follows"], follows.float())
        assert torch.equal(after[follows], row[follows] + n_step)
    assert algorithm.update_from(source, 8, 2).metrics
