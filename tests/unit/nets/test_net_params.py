"""Networks from parts: what policies are built of, and what is invalid."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.nets.actor_critic import Critic
from rltrainer.nets.encoder import Encoder, FlatEncoder
from rltrainer.nets.mlp import Dropout, PerMember
from rltrainer.nets.net_params import NetParams

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
DICT = spaces.Dict(velocity=spaces.Box(-1.0, 1.0, (2,), np.float32), position=OBS)
IMAGE = spaces.Box(0, 255, (10, 10, 4), np.uint8)


def widths(module: nn.Module) -> list[tuple[int, int]]:
    return [(layer.in_features, layer.out_features) for layer in module.modules() if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize(
    ("cls", "sizes"),
    [(rl.Actor, 64), (rl.ActorCritic, 64), (rl.DeterministicActorCritic, 256), (rl.GaussianActorCritic, 256)],
)
def test_what_is_left_out_is_the_policys(cls: Any, sizes: int) -> None:
    policy = cls(OBS, BOX, NetParams(norm="layer"))
    assert widths(policy.actor)[:2] == [(3, sizes), (sizes, sizes)]
    assert policy.net_params == dataclasses.replace(cls.default_net, norm="layer")


def test_shortcuts_go_before_the_net() -> None:
    policy = rl.Actor(OBS, BOX, NetParams(hidden_sizes=(9,), activation=nn.ELU, norm="layer"), hidden_sizes=[5])
    assert policy.net_params == NetParams(hidden_sizes=(5,), activation=nn.ELU, norm="layer")
    assert widths(policy.actor) == [(3, 5), (5, 2)]


@pytest.mark.parametrize("cls", [rl.ActorCritic, rl.SquashedActorCritic, rl.GaussianActorCritic])
def test_a_critic_of_its_own(cls: Any) -> None:
    """Sizes and activation that it leaves open are the actor's; norm and dropout are as they are written."""
    policy = cls(OBS, BOX, NetParams(hidden_sizes=(5,), activation=nn.ELU, norm="layer"), critic_net=NetParams())
    assert any(isinstance(module, nn.LayerNorm) for module in policy.actor.modules())
    assert not any(isinstance(module, nn.LayerNorm) for module in policy.critic.modules())
    assert any(isinstance(module, nn.ELU) for module in policy.critic.modules())
    policy = cls(OBS, BOX, hidden_sizes=(5,), critic_net=NetParams(hidden_sizes=(7, 6), activation=nn.SiLU))
    assert (3, 5) in widths(policy.actor)
    shapes = {tuple(p.shape) for p in policy.critic.parameters()}
    assert {(7, 3), (6, 7)} <= shapes or {(2, 5, 7), (2, 7, 6)} <= shapes  # an ensemble sees the action too
    if cls is rl.GaussianActorCritic:
        assert widths(policy.value_network) == [(3, 7), (7, 6), (6, 1)]


def test_norm_and_dropout_stand_before_the_activation() -> None:
    torch.manual_seed(1)
    layers = NetParams(hidden_sizes=(8,), activation=nn.Tanh, norm="layer", dropout=0.5).hidden_layers(3)
    x = torch.randn(4, 3)
    hidden = F.linear(x, layers.layers[0].weight, layers.layers[0].bias)
    torch.testing.assert_close(layers.eval()(x), F.layer_norm(hidden, (8,)).tanh())
    dropout, *_ = layers.activations[0]
    assert isinstance(dropout, Dropout)
    mask = dropout.train()(torch.ones(4, 8))
    dropout.num_masks -= 1
    torch.testing.assert_close(layers.train()(x), F.layer_norm(hidden * mask, (8,)).tanh())


def test_members_of_an_ensemble_have_norms_and_masks_of_their_own() -> None:
    """LN([1, 3]) = [-0.999995, 0.999995]: mean 2, variance 1, and 1e-5 under the root."""
    net = NetParams(hidden_sizes=(2,), activation=nn.Identity, norm="layer", dropout=0.5)
    ensemble = net.ensemble(2, 2)
    parts = next(module for module in ensemble.modules() if isinstance(module, PerMember))
    assert parts[0][1](torch.tensor([[1.0, 3.0]])).tolist()[0] == pytest.approx([-0.999995, 0.999995], abs=1e-6)
    assert parts[0][0].num_masks != parts[1][0].num_masks
    assert ensemble(torch.randn(5, 2)).shape == (2, 5)


def test_outputs_of_action_values() -> None:
    """K outputs of each action; dueling subtracts the mean over actions of each output."""
    for dueling in (False, True):
        policy = rl.QNetwork(OBS, spaces.Discrete(4), hidden_sizes=(5,), dueling=dueling, num_outputs=3)
        assert policy.critic(torch.randn(6, 3)).shape == (6, 4, 3)
    head = policy.critic[2]
    with torch.no_grad():
        head.advantage.weight.zero_()
        head.advantage.bias.copy_(torch.arange(12.0))  # action a, output k: 3 a + k; the mean over a is 4.5 + k
        head.value.weight.zero_()
        head.value.bias.copy_(torch.tensor([10.0, 20.0, 30.0]))
    expected = [[5.5, 15.5, 25.5], [8.5, 18.5, 28.5], [11.5, 21.5, 31.5], [14.5, 24.5, 34.5]]
    assert policy.critic(torch.zeros(1, 3)).tolist() == [expected]


def test_log_std_and_initialisation_of_gaussians() -> None:
    policy = rl.ActorCritic(OBS, BOX, log_std_init=-2, orthogonal_init=False)
    assert policy.distribution(torch.randn(1, 3)).log_std.tolist() == [-2.0, -2.0]
    weight = policy.actor[1].layers[1].weight.detach()
    assert weight.abs().max() <= 1 / 8  # as nn.Linear starts: 1 / sqrt(64)
    assert not torch.allclose(weight @ weight.T, 2 * torch.eye(64), atol=1e-2)


def test_initial_weights_are_drawn_in_the_order_they_always_were() -> None:
    """A head before its layers for action values, after them for actors."""
    rl.seed(3)
    head, first, second = nn.Linear(128, 4), nn.Linear(3, 128), nn.Linear(128, 128)
    rl.seed(3)
    _, layers, own_head = rl.QNetwork(OBS, spaces.Discrete(4)).critic
    assert torch.equal(own_head.weight, head.weight)
    assert torch.equal(layers.layers[0].weight, first.weight)
    assert torch.equal(layers.layers[1].weight, second.weight)
    rl.seed(3)
    first, second, head = nn.Linear(3, 256), nn.Linear(256, 256), nn.Linear(256, 2)
    rl.seed(3)
    _, layers, own_head = rl.DeterministicActorCritic(OBS, BOX).actor
    assert torch.equal(own_head[0].weight, head.weight)
    assert torch.equal(layers.layers[1].weight, second.weight)


# Keys


def test_an_asymmetric_critic() -> None:
    net, critic_net = NetParams(keys=["position"]), NetParams(keys=["velocity", "position"])
    policy = rl.SquashedActorCritic(DICT, BOX, net, critic_net=critic_net, hidden_sizes=(5,))
    assert widths(policy.actor)[0] == (3, 5)
    one = {"position": torch.randn(2, 3), "velocity": torch.zeros(2, 2)}
    other = one | {"velocity": torch.ones(2, 2)}
    action = torch.rand(2, 2)
    assert torch.equal(policy.act(one), policy.act(other))
    assert not torch.equal(policy.critic(one, action), policy.critic(other, action))


def test_features_are_in_the_order_of_the_space() -> None:
    encoder = Encoder(spaces.Dict(a=BOX, b=spaces.Discrete(2), c=OBS), NetParams(keys=("c", "a")))
    obs = {"c": torch.tensor([[1.0, 2.0, 3.0]]), "b": torch.tensor([0]), "a": torch.tensor([[4.0, 5.0]])}
    assert encoder(obs).tolist() == [[4.0, 5.0, 1.0, 2.0, 3.0]]


# Encoders of the user's


class Small(nn.Module):
    """For MinAtar's 10 x 10 x 4."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.conv = nn.Conv2d(space.shape[2], 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.uint8  # bytes, as they are stored
        return self.conv(x.float().permute(0, 3, 1, 2)).relu().flatten(1)


def test_a_users_encoder_starts_as_the_user_made_it_and_none_leaves_a_leaf_to_ours() -> None:
    def zeros(space: Any) -> nn.Module | None:
        if len(space.shape) != 3:
            return None
        made = Small(space)
        nn.init.zeros_(made.conv.weight)
        return made

    policy = rl.ActorCritic(spaces.Dict(image=IMAGE, position=OBS), spaces.Discrete(3), NetParams(encoder=zeros))
    encoder = policy.actor[0]
    assert [type(part) for part in encoder.parts] == [Small, FlatEncoder]
    assert not encoder.parts[0].conv.weight.any()
    assert encoder.out_features == 1027  # 16 channels of 8 x 8, and 3
    assert all(module.training for module in policy.modules())  # trying left the mode
    obs = {"image": torch.zeros(2, 10, 10, 4, dtype=torch.uint8), "position": torch.randn(2, 3)}
    assert torch.equal(encoder(obs)[:, 1024:], obs["position"])


class Reads(nn.Module):
    """An encoder that looks at what it is tried with, and returns what it was told."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.result, self.batch_norm = result, nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Any:
        self.x = x
        return self.batch_norm(torch.zeros(len(x), 1)) if self.result is None else self.result


@pytest.mark.parametrize(("space", "value"), [
    (spaces.Box(2.0, 3.0, (2,), np.float64), [2.0, 2.0]), (spaces.Box(-3, -1, (1,), np.int8), [-1]),
    (spaces.Discrete(3, start=5), 5), (spaces.MultiDiscrete([2, 3], start=[4, 7]), [4, 7]),
    (spaces.MultiBinary(2), [0, 0]),
])  # fmt: skip
def test_it_is_tried_with_values_of_the_space(space: Any, value: Any) -> None:
    encoder = Encoder(space, NetParams(encoder=lambda _: Reads()))
    part = encoder.parts[0]
    assert part.x.tolist() == [value, value]
    assert space.contains(part.x[0].numpy().astype(space.dtype))
    assert int(part.batch_norm.num_batches_tracked) == 0  # tried in eval mode
    assert not encoder.is_vector


@pytest.mark.parametrize(("made", "text"), [
    (3, "got 3 (int)"),
    (nn.ReLU, "got <class 'torch.nn.modules.activation.ReLU'> (type)"),
    (Reads(torch.zeros(2, 3, 4)), "of torch.float32 [2, 2] it makes torch.float32 [2, 3, 4]"),
    (Reads(torch.zeros(2)), "of torch.float32 [2, 2] it makes torch.float32 [2]"),
    (Reads(torch.zeros(1, 6)), "of torch.float32 [2, 2] it makes torch.float32 [1, 6]"),
    (Reads(torch.zeros(2, 6, dtype=torch.int64)), "of torch.float32 [2, 2] it makes torch.int64 [2, 6]"),
    (Reads("text"), "of torch.float32 [2, 2] it makes 'text'"),
    (nn.Linear(5, 3), "of torch.float32 [2, 2] it makes RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
])  # fmt: skip
def test_encoders_of_the_wrong_width(made: Any, text: str) -> None:
    with pytest.raises(ParamsError) as caught:
        Encoder(spaces.Dict(a=BOX), NetParams(encoder=lambda space: made))
    rule = 'must make a module from [B, ...] to float [B, F] for obs["a"], Box(-1.0, 1.0, (2,), float32); '
    assert str(caught.value).startswith(f"NetParams.encoder: {rule}{text}")


# The params themselves


def test_what_no_default_fills_in_must_be_given() -> None:
    with pytest.raises(ParamsError, match="^NetParams.hidden_sizes: must be given to build a network; got None"):
        NetParams(activation=nn.ReLU).hidden_layers(3)
    with pytest.raises(ParamsError, match="^NetParams.activation: must be given to build a network; got None"):
        Critic(OBS, BOX, NetParams(hidden_sizes=(3,)))


def test_sequences_become_tuples() -> None:
    assert NetParams(hidden_sizes=[np.int64(3)], keys=["a"]) == NetParams(hidden_sizes=(3,), keys=("a",))
    assert json.loads(NetParams(hidden_sizes=[3]).to_json())["fields"]["hidden_sizes"] == [3]
