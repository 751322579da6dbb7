"""Target networks: the arithmetic of following, its interval, and what is never trained."""

import copy

import pytest
import torch
from torch import nn

from rltrainer.nets.target import TargetNetwork


class Scale(nn.Module):
    """One weight and one buffer."""

    offset: torch.Tensor

    def __init__(self, weight: float, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.register_buffer("offset", torch.tensor(offset))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x + self.offset


def weight_of(target: TargetNetwork) -> float:
    return float(target(torch.tensor(1.0)).item())


def test_target_moves_by_tau_in_place() -> None:
    online = Scale(1.0, offset=1.0)
    target = TargetNetwork(online, tau=0.25)
    parameter = target.network.weight
    with torch.no_grad():
        online.weight.fill_(3.0)
        online.offset.fill_(9.0)
    assert weight_of(target) == 2.0, "nothing moves before update"
    target.update(online)
    assert weight_of(target) == 1.5 + 9.0  # 0.75 * 1 + 0.25 * 3; buffers are copied
    target.update(online)
    assert weight_of(target) == 1.875 + 9.0  # 0.75 * 1.5 + 0.25 * 3
    assert target.network.weight is parameter
    assert online.weight.requires_grad
    assert online.weight.item() == 3.0
    copying = TargetNetwork(Scale(1.0), tau=1.0)
    copying.update(Scale(0.1))
    assert torch.equal(copying.network.weight, Scale(0.1).weight)


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_target_follows_at_every_interval_th_call(interval: int) -> None:
    target, online = TargetNetwork(Scale(0.0), tau=1.0, interval=interval), Scale(0.0)
    followed = []
    for call in range(1, 7):
        with torch.no_grad():
            online.weight.fill_(call)
        target.update(online)
        followed.append(weight_of(target))
    # interval 3: 0 0 3 3 3 6
    assert followed == [call // interval * interval for call in range(1, 7)]


def test_target_is_not_trained() -> None:
    target = TargetNetwork(Scale(2.0))
    x = torch.tensor(3.0, requires_grad=True)
    target(x).backward()
    assert not any(parameter.requires_grad for parameter in target.parameters())
    assert target.network.weight.grad is None
    assert x.grad is not None, "gradients pass through to the input"
    assert x.grad.item() == 2.0


def test_state_round_trip_keeps_weights_and_position_in_the_interval() -> None:
    target, online = TargetNetwork(Scale(1.0), tau=1.0, interval=3), Scale(7.0)
    target.update(online)
    target.update(online)
    restored = TargetNetwork(Scale(4.0), tau=1.0, interval=3)
    restored.load_state_dict(copy.deepcopy(target.state_dict()))
    assert weight_of(restored) == 1.0
    restored.update(online)
    assert weight_of(restored) == 7.0, "the third call, counted over both"


def test_target_stays_in_eval_mode_whatever_is_set() -> None:
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.target = TargetNetwork(nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5)))

    parent, online = Parent(), nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5))
    TargetNetwork(online)
    assert all(module.training for module in online.modules()), "the online network keeps its mode"
    assert not any(module.training for module in parent.target.modules())
    parent.train()
    parent.target.train()
    copied = copy.deepcopy(parent.target)
    for target in (parent.target, copied):
        assert not any(module.training for module in target.modules())
        assert torch.equal(target(torch.ones(3, 1)), target(torch.ones(3, 1)))


def test_batch_norm_of_a_target_takes_the_running_statistics_of_the_online_network() -> None:
    online = nn.Sequential(nn.BatchNorm1d(1))
    target = TargetNetwork(online, tau=0.5)
    for _ in range(200):
        online(torch.tensor([[1.0], [5.0]]))  # mean 3, unbiased variance 8
    target.update(online)
    assert target(torch.tensor([[3.0], [3.0 + 8**0.5]])).flatten().tolist() == pytest.approx([0.0, 1.0], abs=1e-4)
    assert int(target.network[0].num_batches_tracked) == 200, "targets move no statistics"
