"""The action-value ensemble over observations and actions."""

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from rltrainer.nets.continuous import Critic
from rltrainer.nets.net_params import NetParams

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
NET = NetParams(hidden_sizes=(5,), activation=nn.ReLU)


def test_members_see_features_and_action() -> None:
    critic = Critic(spaces.Dict({"a": spaces.Discrete(3), "b": BOX}), BOX, NET, num_members=4)
    obs = {"a": torch.tensor([2]), "b": torch.tensor([[0.1, 0.2]])}
    q = critic(obs, torch.tensor([[0.3, 0.4]]))
    assert q.shape == (4, 1)
    by_hand = critic.ensemble(torch.tensor([[0.0, 0.0, 1.0, 0.1, 0.2, 0.3, 0.4]]))
    assert torch.equal(q, by_hand)


def test_gradients_reach_the_action() -> None:
    action = torch.zeros(3, 2, requires_grad=True)
    Critic(BOX, BOX, NET)(torch.zeros(3, 2), action).sum().backward()
    assert action.grad is not None
    assert action.grad.abs().sum() > 0


def test_several_outputs_and_several_actions_are_those_of_one_by_one() -> None:
    critic = Critic(BOX, BOX, NET, num_members=3, num_outputs=4)
    obs, action = torch.rand(6, 2), torch.rand(7, 6, 2)
    q = critic.values(critic.encoder(obs), action)
    assert q.shape == (3, 7, 6, 4)
    for n in range(7):
        torch.testing.assert_close(q[:, n], critic(obs, action[n]))
    assert Critic(BOX, BOX, NET).values(obs, action).shape == (2, 7, 6)


def test_outputs_of_each_member() -> None:
    """Member e's K numbers are those of its own last layer, in its order."""
    critic = Critic(BOX, BOX, NET, num_members=3, num_outputs=4)
    obs, action = torch.rand(6, 2), torch.rand(6, 2)
    q = critic(obs, action)
    assert q.shape == (3, 6, 4)
    first, _, last = critic.ensemble.layers
    features = (torch.cat([obs, action], 1) @ first.weight[1] + first.bias[1]).relu()
    torch.testing.assert_close(q[1], features @ last.weight[1] + last.bias[1])


def test_some_members_are_the_first_ones() -> None:
    critic = Critic(BOX, BOX, NET, num_members=3)
    obs, action = torch.rand(6, 2), torch.rand(6, 2)
    torch.testing.assert_close(critic(obs, action, num_members=2), critic(obs, action)[:2])
