"""Encoders: the features that they make of each kind of space, and encoders of the user's."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError, SpaceError
from rltrainer.nets.encoder import ConvEncoder, Encoder, FlatEncoder
from rltrainer.nets.net_params import NetParams
from rltrainer.nets.normalizer import warn_once
from rltrainer.state.state_file import write_state
from tests.batches import transitions


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-1.0, 1.0, shape, np.float32)


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


NESTED = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((box(1), box(2)))})
TWO_ROWS = spaces.MultiDiscrete(np.array([[2, 2], [2, 3]]))
INT8 = torch.int8


@pytest.mark.parametrize(("space", "obs", "features"), [
    (box(3), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), [[1, 2, 3], [4, 5, 6]]),
    (box(2, 2), torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), [[1, 2, 3, 4]]),
    (box(), torch.tensor([5.0, 6.0]), [[5], [6]]),
    (box(2), torch.ones(1, 2, dtype=torch.float64), [[1, 1]]),
    (image(2), torch.tensor([[0, 255]], dtype=torch.uint8), [[0, 1]]),
    (spaces.Discrete(3, start=5), torch.tensor([5, 7]), [[1, 0, 0], [0, 0, 1]]),
    (spaces.MultiDiscrete([2, 3], start=[0, 1]), torch.tensor([[1, 1], [0, 3]]), [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
    (TWO_ROWS, torch.tensor([[[1, 0], [0, 2]]]), [[0, 1, 1, 0, 1, 0, 0, 0, 1]]),
    (spaces.MultiBinary([2, 2]), torch.tensor([[[0, 1], [1, 1]]], dtype=INT8), [[0, 1, 1, 1]]),
    # The keys of an observation may come in another order than those of the space.
    (NESTED, {"b": (torch.tensor([[7.0]]), torch.tensor([[8.0, 9.0]])), "a": torch.tensor([1])}, [[0, 1, 7, 8, 9]]),
])  # fmt: skip
def test_features_by_hand(space: Any, obs: Any, features: list[list[float]]) -> None:
    encoder = Encoder(space)
    assert encoder.out_features == len(features[0])
    assert encoder(obs).dtype == torch.float32
    assert encoder(obs).tolist() == features


@pytest.mark.parametrize("shape", [(3, 36, 40), (36, 40, 3), (84, 84, 4)])
def test_images_become_512_features_beside_numbers(shape: tuple[int, ...]) -> None:
    encoder = Encoder(spaces.Dict({"cam": image(*shape), "pos": box(2)}))
    assert encoder.out_features == 514
    obs = {"cam": torch.zeros(2, *shape, dtype=torch.uint8), "pos": torch.tensor([[5.0, 6.0]] * 2)}
    assert encoder(obs).shape == (2, 514)
    assert encoder(obs)[0, 512:].tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    ("make", "first", "num_features"), [(ConvEncoder, (3, 36, 40), 512), (rl.SmallConvEncoder, (4, 10, 9), 128)]
)
def test_either_channel_axis_and_scale_give_the_same_features(make: Any, first: Any, num_features: int) -> None:
    of_first, of_last = make(image(*first)), make(image(*first[1:], first[0]))
    of_floats = make(spaces.Box(0, 1, first, np.float32))
    for other in (of_last, of_floats):
        other.load_state_dict(of_first.state_dict())
    picture = torch.randint(0, 256, (2, *first), dtype=torch.uint8)
    features = of_first(picture)
    assert features.shape == (2, num_features)
    assert features.abs().sum() > 0
    torch.testing.assert_close(of_last(picture.movedim(1, -1)), features)
    torch.testing.assert_close(of_floats(picture.float() / 255), features)


# Small images

SMALL = NetParams(encoder=rl.SmallConvEncoder, hidden_sizes=())


@pytest.mark.parametrize("space", [spaces.Box(0, 1, (3, 2, 9)), spaces.Box(0, 1, (9, 9)), spaces.Discrete(3)])
def test_other_spaces_of_small_images_are_errors(space: Any) -> None:
    with pytest.raises(SpaceError, match="^SmallConvEncoder.space: must be a Box of three axes, at least 3 x 3; got "):
        rl.SmallConvEncoder(space)
    assert rl.SmallConvEncoder(spaces.Box(0, 1, (10, 10, 10), np.bool_)).channels_last  # MinAtar's Seaquest


def test_a_file_names_the_small_encoder(tmp_path: Path) -> None:
    policy = rl.QNetwork.for_spaces(image(10, 9, 4), spaces.Discrete(3), SMALL)
    policy.save(tmp_path / "policy.safetensors")
    loaded = rl.load_policy(tmp_path / "policy.safetensors")
    obs = np.random.default_rng(1).integers(256, size=(5, 10, 9, 4), dtype=np.uint8)
    np.testing.assert_array_equal(loaded.predict(obs), policy.predict(obs))


@pytest.mark.parametrize("game", ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"])
def test_minatar_is_played(game: str) -> None:
    pytest.importorskip("minatar")
    envs = rl.make_vec(f"MinAtar/{game}-v1", 2, seed=1, wrappers=[])
    policy = rl.QNetwork.for_envs(envs, SMALL)
    buffer = rl.ReplayBuffer(200, envs.single_observation_space, envs.single_action_space, num_envs=2)
    rl.Collector(policy, envs, buffer).collect(num_steps=200)
    batch = buffer.sample(64)
    assert batch.obs.dtype == torch.bool
    assert batch.obs.any()
    assert policy.critic(batch.obs).shape == (64, envs.single_action_space.n)  # type: ignore[attr-defined]  # Discrete


def test_minatar_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(rl.errors.MissingExtraError, match=r'pip install "rltrainer\[minatar\]"'):
        rl.make_vec("MinAtar/Breakout-v1", 2)


# An encoder of the user's that sees the whole observation

OBS = spaces.Dict(
    image=image(4, 4, 1), where=spaces.Tuple([spaces.Discrete(4, start=1), box(2)]), noise=spaces.Box(0, 1)
)
BOX, DISCRETE = box(2), spaces.Discrete(3)
MASKED = spaces.Dict({**OBS.spaces, "action_mask": spaces.MultiBinary(3)})


class Product(nn.Module):
    """The mean of an image times a position: no function of the features of single leaves."""

    def __init__(self, space: spaces.Dict) -> None:
        super().__init__()
        assert isinstance(space, spaces.Dict)
        self.keys = list(space.spaces)
        self.gain = nn.Parameter(torch.ones(()))
        self.seen: Any = None

    def forward(self, obs: dict[str, Any]) -> Tensor:
        self.seen = obs
        choice, position = obs["where"]
        brightness = obs["image"].float().mean((1, 2, 3)) * choice
        return brightness[:, None] * position * self.gain


def observations(num: int = 5, space: spaces.Dict = OBS) -> dict[str, Any]:
    g = torch.Generator().manual_seed(1)
    obs = {
        "noise": torch.rand(num, 1, generator=g),
        "where": (torch.randint(1, 5, (num,), generator=g), torch.rand(num, 2, generator=g)),
        "image": torch.randint(0, 256, (num, 4, 4, 1), generator=g).to(torch.uint8),
    }
    return obs | ({"action_mask": torch.ones(num, 3, dtype=INT8)} if "action_mask" in space.spaces else {})


@pytest.mark.parametrize("space", [OBS, MASKED])
@pytest.mark.parametrize("keys", [None, ("image", "where")])
def test_it_is_given_the_visible_parts_as_they_are_stored(space: spaces.Dict, keys: Any) -> None:
    encoder = Encoder(space, NetParams(obs_encoder=Product, keys=keys))
    part: Any = encoder.parts[0]
    assert encoder.out_features == 2
    assert set(part.keys) == set(part.seen) == ({"image", "where"} if keys else {"image", "noise", "where"})
    obs = observations(space=space)
    brightness = obs["image"].float().mean((1, 2, 3)) * obs["where"][0]
    torch.testing.assert_close(encoder(obs), brightness[:, None] * obs["where"][1])
    assert part.seen["image"] is obs["image"]
    assert list(part.seen) == [key for key in space.spaces if key in part.keys]


def test_an_observation_without_parts_has_one_too() -> None:
    encoder = Encoder(BOX, NetParams(obs_encoder=lambda space: nn.Linear(space.shape[0], 7)))
    assert encoder.out_features == 7
    assert encoder(torch.zeros(3, 2)).shape == (3, 7)


@pytest.mark.parametrize(("cls", "action_space", "options"), [
    (rl.ActorCritic, DISCRETE, {}), (rl.ActorCritic, DISCRETE, {"share_encoder": True}),
    (rl.RecurrentActorCritic, DISCRETE, {}), (rl.QNetwork, DISCRETE, {}),
    (rl.DeterministicActorCritic, BOX, {"normalize_obs": True}),
])  # fmt: skip
def test_policies_take_it(cls: Any, action_space: Any, options: dict[str, Any]) -> None:
    policy = cls(OBS, action_space, NetParams(obs_encoder=Product, hidden_sizes=(4,)), **options)
    found = [module for module in policy.modules() if isinstance(module, Product)]
    assert {module.gain for module in found} <= set(policy.parameters())
    assert len(found) == (1 if "share_encoder" in options or cls is rl.QNetwork else 2)
    state = (policy.initial_state(5),) if policy.is_recurrent else ()
    action = policy.act(observations(), *state)
    assert len(action[0] if state else action) == 5


def test_actor_and_critic_may_have_encoders_of_either_kind() -> None:
    net, critic_net = NetParams(obs_encoder=Product), NetParams(encoder=FlatEncoder, keys=("noise",))
    policy = rl.ActorCritic(OBS, DISCRETE, net, critic_net=critic_net)
    assert [type(part) for part in policy.critic[0].parts] == [FlatEncoder]
    assert rl.ActorCritic(OBS, DISCRETE, net, critic_net=NetParams(hidden_sizes=(3,))).critic[0].sees_whole


def test_a_file_names_it(tmp_path: Path) -> None:
    policy = rl.ActorCritic(OBS, DISCRETE, NetParams(obs_encoder=Product, hidden_sizes=(4,)))
    policy.save(tmp_path / "policy.safetensors")
    with pytest.raises(CheckpointError, match=r"NetParams.obs_encoder: the file only names 'Product'"):
        rl.load_policy(tmp_path / "policy.safetensors")
    loaded = rl.load_policy(tmp_path / "policy.safetensors", classes=[Product])
    torch.testing.assert_close(loaded.act(observations()), policy.act(observations()))


@pytest.mark.parametrize(("made", "keys", "text"), [
    (lambda space: None, None, "got None (NoneType)"),
    (lambda space: nn.Linear(3, 2), None, "of two observations it makes TypeError: linear(): argument"),
    (lambda space: nn.Identity(), None, "of two observations it makes <dict>"),
    (Product, ("image",), "of two observations it makes KeyError: 'where'"),
])  # fmt: skip
def test_its_output_is_tried(made: Any, keys: Any, text: str) -> None:
    with pytest.raises(ParamsError) as caught:
        Encoder(OBS, NetParams(obs_encoder=made, keys=keys))
    rule = "NetParams.obs_encoder: must make a module from [B, ...] to float [B, F] for the observation, Dict('image': "
    assert str(caught.value).startswith(rule)
    assert f"; {text}" in str(caught.value)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3, 1)])
def test_bytes_that_are_no_image_are_scaled_unless_they_were_not_when_saved(
    shape: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    space, action = spaces.Dict(few=spaces.Box(0, 3, (1,), np.uint8), ram=image(*shape)), torch.tensor([0, 1])
    warn_once.cache_clear()
    algorithm: Any = rl.DQN(rl.QNetwork(space, spaces.Discrete(2), hidden_sizes=(8,)))
    assert [text.partition(" reach ")[0] for text in caplog.messages] == [f'obs["ram"], {image(*shape)}: these bytes']
    obs = {"few": torch.full((2, 1), 3, dtype=torch.uint8), "ram": torch.arange(0, 240, 20, dtype=torch.uint8)}
    obs["ram"] = obs["ram"].reshape(2, *shape)
    expected = torch.cat([obs["few"].float(), obs["ram"].flatten(1) / 255], 1)
    assert torch.allclose(algorithm.policy.critic[0](obs), expected)
    state = algorithm.state_dict()
    for part in (state["policy"], state["target_critic"]):  # as it was saved before
        assert [part.pop(key) for key in list(part) if key.endswith(".scale")] == [torch.tensor(1 / 255)]
    write_state(tmp_path / "file", "algorithm", state)
    expected[:, 1:] *= 255
    for strict in (True, False):
        algorithm.load(tmp_path / "file", strict=strict)
        for each in (algorithm, rl.load(tmp_path / "file", strict=strict)):
            assert torch.equal(each.policy.critic[0](obs), expected)
            assert torch.equal(each.target_critic.network[0](obs), expected)
            assert each.update(transitions(obs, action, torch.ones(2))).metrics
        policy: Any = rl.load_policy(tmp_path / "file", strict=strict)
        assert torch.equal(policy.critic[0](obs), expected)
