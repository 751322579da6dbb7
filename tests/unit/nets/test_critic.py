"""The action-value ensemble over observations and actions."""

import numpy as np
import torch
from gymnasium import spaces

from rltrainer.nets.critic import Critic

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


def test_members_see_features_and_action() -> None:
    critic = Critic(spaces.Dict({"a": spaces.Discrete(3), "b": BOX}), BOX, hidden_sizes=(5,), num_members=4)
    obs = {"a": torch.tensor([2]), "b": torch.tensor([[0.1, 0.2]])}
    q = critic(obs, torch.tensor([[0.3, 0.4]]))
    assert q.shape == (4, 1)
    by_hand = critic.ensemble(torch.tensor([[0.0, 0.0, 1.0, 0.1, 0.2, 0.3, 0.4]]))
    assert torch.equal(q, by_hand)


def test_gradients_reach_the_action() -> None:
    action = torch.zeros(3, 2, requires_grad=True)
    Critic(BOX, BOX)(torch.zeros(3, 2), action).sum().backward()
    assert action.grad is not None
    assert action.grad.abs().sum() > 0
