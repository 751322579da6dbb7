"""The step of an optimizer, beside `backward` and torch's own optimizers."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.updates.optimizer import Optimizer

X = torch.arange(12.0).view(3, 4) / 10 - 0.5


class Pair(nn.Module):
    """Two matrices of random numbers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.p, self.q = (nn.Parameter(torch.randn(3, 4, generator=generator)) for _ in range(2))


class HandsOver(torch.autograd.Function):
    """The sum of a matrix times X, whose gradient is X itself, not a copy."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        return (matrix * X).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return X


LOSSES: dict[str, Callable[[Pair], Tensor]] = {
    "expanded": lambda pair: pair.p.sum() + 2 * pair.q.sum(),
    "transposed": lambda pair: (pair.p.t() @ X).square().sum() + (X.t() @ pair.q).square().sum(),
    "shared": lambda pair: (pair.p + pair.q).square().sum(),
    "shared and expanded": lambda pair: (pair.p + pair.q).sum(),
    "strided": lambda pair: pair.p[:, ::2].square().sum() + pair.q.permute(1, 0)[1:].square().sum(),
    "handed over": lambda pair: HandsOver.apply(pair.p) + HandsOver.apply(pair.q),  # type: ignore[no-untyped-call]
}
FACTORIES: dict[str, Any] = {
    "ours": None,
    "torch": lambda parameters: torch.optim.Adam(parameters),
    "fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
}


def backward_steps(pair: Pair, loss: Callable[[Pair], Tensor], max_grad_norm: float | None) -> None:
    """Take three steps as any PyTorch program would."""
    optimizer = torch.optim.Adam(pair.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(pair).backward()
        if max_grad_norm is not None:
            nn.utils.clip_grad_norm_(pair.parameters(), max_grad_norm)
        optimizer.step()


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for (name, value), expected in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(value, expected, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_any_strides_are_those_of_backward(name: str, factory: str, max_grad_norm: float | None) -> None:
    ours, reference, loss, before = Pair(), Pair(), LOSSES[name], X.clone()
    optimizer = Optimizer({"pair": ours}, 0.1, max_grad_norm, factory=FACTORIES[factory])
    for _ in range(3):
        optimizer.step(loss(ours))
    backward_steps(reference, loss, max_grad_norm)
    assert_same(ours, reference)
    assert torch.equal(X, before)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_parameter_of_any_strides_is_trained(factory: str) -> None:
    ours, reference = Pair(), Pair()
    for pair in (ours, reference):
        pair.p.data = pair.p.data.t().contiguous().t()
    optimizer = Optimizer({"pair": ours}, 0.1, 0.5, factory=FACTORIES[factory])
    for _ in range(3):
        optimizer.step(LOSSES["transposed"](ours))
    backward_steps(reference, LOSSES["transposed"], 0.5)
    assert_same(ours, reference)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("is_contiguous", [True, False])  # not: the way of graphs and devices
def test_a_frozen_parameter_is_left_alone_and_goes_on_when_it_is_trained_again(
    factory: str, is_contiguous: bool
) -> None:
    pair = Pair()
    if not is_contiguous:
        pair.q.data = pair.q.data.t().contiguous().t()
    optimizer = Optimizer({"pair": pair}, 0.1, factory=FACTORIES[factory])

    def moved() -> list[bool]:
        before = [p.detach().clone() for p in pair.parameters()]
        optimizer.step(LOSSES["shared"](pair))
        return [not torch.equal(p, old) for p, old in zip(pair.parameters(), before, strict=True)]

    assert moved() == [True, True]
    pair.p.requires_grad_(False)
    assert moved() == moved() == [False, True]
    pair.q.requires_grad_(False)
    assert moved() == [False, False]
    pair.requires_grad_(True)
    assert moved() == [True, True]


def test_the_moments_of_a_frozen_parameter_stay() -> None:
    for is_contiguous in (True, False):
        pair = Pair()
        if not is_contiguous:
            pair.q.data = pair.q.data.t().contiguous().t()
        optimizer = Optimizer({"pair": pair}, 0.1)
        optimizer.step(LOSSES["shared"](pair))
        before = optimizer.state_dict()["mean"].clone()
        pair.p.requires_grad_(False)
        optimizer.step(LOSSES["shared"](pair))
        after = optimizer.state_dict()["mean"]
        assert torch.equal(after[:12], before[:12])
        assert not torch.equal(after[12:], before[12:])


def test_a_bad_gradient_beside_a_frozen_parameter_is_named() -> None:
    pair = Pair()
    pair.p.requires_grad_(False)
    optimizer = Optimizer({"pair": pair}, 0.1)
    optimizer.step(LOSSES["shared"](pair) * float("nan"))
    assert optimizer.take_fault() == "the gradient of pair.q is not finite (loss = nan)"


SPACES = {
    "vector": gym.spaces.Box(-1, 1, (3,), np.float32),
    "chw": gym.spaces.Box(0, 255, (3, 36, 40), np.uint8),
    "hwc": gym.spaces.Box(0, 255, (36, 40, 3), np.uint8),
    "dict": gym.spaces.Dict(cam=gym.spaces.Box(0, 255, (36, 36, 1), np.uint8), mode=gym.spaces.Discrete(3)),
}
BOX, DISCRETE = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(3)
MAKERS: dict[str, tuple[Any, Any, Any]] = {
    "ppo": (rl.PPO, rl.ActorCritic, DISCRETE),
    "a2c": (rl.A2C, rl.ActorCritic, BOX),
    "dqn": (rl.DQN, rl.QNetwork, DISCRETE),
    "td3": (rl.TD3, rl.DeterministicActorCritic, BOX),
    "sac": (rl.SAC, rl.SquashedActorCritic, BOX),
    "iql": (rl.IQL, rl.GaussianActorCritic, BOX),
    "bc": (rl.BC, rl.Actor, DISCRETE),
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", MAKERS)
def test_every_network_is_trained_as_by_torch(name: str, space: str) -> None:
    ours, reference = (make(name, space, own) for own in (True, False))
    # One update: a step in a wrong place is 1e-3 away, and further updates would only add up roundings.
    update(ours, seed=0)
    update(reference, seed=0)
    for (key, value), expected in zip(ours.policy.named_parameters(), reference.policy.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


def make(name: str, space: str, own: bool) -> Any:
    algorithm, policy, action_space = MAKERS[name]
    rl.seed(1)
    params = algorithm(policy.for_spaces(SPACES[space], action_space, hidden_sizes=(8,))).params
    rl.seed(1)
    made = policy.for_spaces(SPACES[space], action_space, hidden_sizes=(8,))
    # A large epsilon: where a gradient is nearly 0, Adam's first step would be the sign of a rounding error.
    options = {"adam_eps": 1e-3} if own else {"optimizer": lambda p: torch.optim.Adam(p, eps=1e-3)}
    one = algorithm(made, type(params)(**options))
    one.seed(2)
    return one


def update(algorithm: Any, seed: int) -> None:
    rl.seed(seed)
    policy, rows = algorithm.policy, 12
    obs, next_obs = (batch(policy.observation_space, rows) for _ in range(2))
    no, weight = torch.zeros(rows, dtype=torch.bool), torch.ones(rows)
    action, reward = batch(policy.action_space, rows), torch.randn(rows)
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        grid = rl.tree.map_tree(lambda x: x.unflatten(0, (4, 3)), (obs, action, reward, no))
        last = rl.tree.map_tree(lambda x: x[:3], next_obs)
        none = rl.tree.map_tree(lambda x: x[:0], next_obs)
        rollout = rl.Rollout(
            *grid, grid[3], ~grid[3], last, none, torch.zeros(0, dtype=torch.int64), torch.zeros(3, dtype=torch.bool)
        )
        algorithm.update(rollout, batch_size=6, repeat=2)
        return
    algorithm.update(
        rl.Transitions(obs, action, reward, next_obs, no, no, 0.9 * weight, torch.zeros(rows).long(), weight)
    )


def batch(space: Any, rows: int) -> Any:
    if isinstance(space, gym.spaces.Dict):
        return {key: batch(part, rows) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Discrete):
        return torch.randint(0, int(space.n), (rows,))
    if space.dtype == np.uint8:
        return torch.randint(0, 256, (rows, *space.shape), dtype=torch.uint8)
    return torch.rand(rows, *space.shape) * 2 - 1
