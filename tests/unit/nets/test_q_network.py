"""Action values of discrete choices."""

import numpy as np
import torch
from gymnasium import spaces

from rltrainer.nets import QNetwork
from rltrainer.nets.q_network import DuelingHead

OBS = spaces.Box(-1.0, 1.0, (1,), np.float32)


def test_dueling_head_by_hand() -> None:
    head = DuelingHead(1, 3)
    with torch.no_grad():
        head.value.weight.fill_(10.0)
        head.value.bias.fill_(0.0)
        head.advantage.weight.copy_(torch.tensor([[1.0], [2.0], [6.0]]))
        head.advantage.bias.fill_(0.0)
    # V = 10, A = 1, 2, 6 with mean 3; then twice that.
    assert head(torch.tensor([[1.0], [2.0]])).tolist() == [[8.0, 9.0, 13.0], [16.0, 18.0, 26.0]]


def test_dueling_values_do_not_change_with_a_shift_of_the_advantages() -> None:
    head = DuelingHead(4, 3)
    features = torch.randn(5, 4)
    before = head(features)
    with torch.no_grad():
        head.advantage.bias += 7.0
    torch.testing.assert_close(head(features), before)


def test_network_is_dueling_only_if_asked() -> None:
    assert isinstance(QNetwork(OBS, spaces.Discrete(3), dueling=True).critic[2], DuelingHead)
    assert isinstance(QNetwork(OBS, spaces.Discrete(3)).critic[2], torch.nn.Linear)


def test_the_choice_of_the_highest_value_is_taken_from_the_spaces_start() -> None:
    policy = QNetwork(OBS, spaces.Discrete(3, start=-1), hidden_sizes=())
    with torch.no_grad():
        policy.critic[2].weight.copy_(torch.tensor([[1.0], [0.0], [-1.0]]))
        policy.critic[2].bias.copy_(torch.tensor([0.0, 0.5, 0.0]))
    # Values (x, 0.5, -x): the first for x = 1, the middle for x = 0, the last for x = -1.
    action = policy.act(torch.tensor([[1.0], [0.0], [-1.0]]))
    assert action.tolist() == [-1, 0, 1]
    assert policy.unscale(action).tolist() == [0, 1, 2]
