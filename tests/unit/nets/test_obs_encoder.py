"""An encoder of the user's that sees the whole observation."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.nets.encoder import Encoder, FlatEncoder
from rltrainer.nets.net_params import NetParams

IMAGE = spaces.Box(0, 255, (4, 4, 1), np.uint8)
OBS = spaces.Dict(
    image=IMAGE, where=spaces.Tuple([spaces.Discrete(4, start=1), spaces.Box(-1.0, 1.0, (2,))]), noise=spaces.Box(0, 1)
)
BOX, DISCRETE = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3)
MASKED = spaces.Dict({**OBS.spaces, "action_mask": spaces.MultiBinary(3)})
KEYS = ("image", "where")


class Still(gym.Env[Any, Any]):
    """Shows random observations; rewards 1 at random."""

    observation_space, action_space = OBS, DISCRETE

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(self.np_random.integers(2)), False, False, {}


class Product(nn.Module):
    """The mean of an image times a position: features of leaves alone could not tell it."""

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
    return obs | ({"action_mask": torch.ones(num, 3, dtype=torch.int8)} if "action_mask" in space.spaces else {})


@pytest.mark.parametrize("space", [OBS, MASKED])
@pytest.mark.parametrize("keys", [None, KEYS])
def test_it_is_given_the_parts_that_are_seen_as_they_are_stored(space: spaces.Dict, keys: Any) -> None:
    encoder = Encoder(space, NetParams(obs_encoder=Product, keys=keys))
    part: Any = encoder.parts[0]
    assert encoder.out_features == 2
    assert set(part.keys) == set(part.seen) == ({"image", "where"} if keys else {"image", "noise", "where"})
    obs = observations(space=space)
    brightness = obs["image"].float().mean((1, 2, 3)) * obs["where"][0]
    torch.testing.assert_close(encoder(obs), brightness[:, None] * obs["where"][1])
    assert part.seen["image"] is obs["image"]
    assert part.seen["image"].dtype == torch.uint8
    assert list(part.seen) == [key for key in space.spaces if key in part.keys]


def test_an_observation_without_parts_has_one_too() -> None:
    encoder = Encoder(BOX, NetParams(obs_encoder=lambda space: nn.Linear(space.shape[0], 7)))
    assert encoder.out_features == 7
    assert encoder(torch.zeros(3, 2)).shape == (3, 7)


@pytest.mark.parametrize(
    ("cls", "action_space", "options"),
    [
        (rl.ActorCritic, DISCRETE, {}),
        (rl.ActorCritic, DISCRETE, {"share_encoder": True}),
        (rl.RecurrentActorCritic, DISCRETE, {}),
        (rl.QNetwork, DISCRETE, {}),
        (rl.SquashedActorCritic, BOX, {}),
        (rl.DeterministicActorCritic, BOX, {"normalize_obs": True}),
    ],
)
def test_policies_take_it(cls: Any, action_space: Any, options: dict[str, Any]) -> None:
    policy = cls(OBS, action_space, NetParams(obs_encoder=Product, hidden_sizes=(4,)), **options)
    found = [module for module in policy.modules() if isinstance(module, Product)]
    assert len(found) == (1 if "share_encoder" in options or cls is rl.QNetwork else 2)
    state = (policy.initial_state(5),) if policy.is_recurrent else ()
    action = policy.act(observations(), *state)
    assert len(action[0] if state else action) == 5


def test_a_critic_with_encoders_of_leaves_beside_an_actor_with_one_for_all() -> None:
    net, critic_net = NetParams(obs_encoder=Product), NetParams(encoder=FlatEncoder, keys=("noise",))
    policy = rl.ActorCritic(OBS, DISCRETE, net, critic_net=critic_net)
    assert [type(part) for part in policy.critic[0].parts] == [FlatEncoder]
    assert rl.ActorCritic(OBS, DISCRETE, net, critic_net=NetParams(hidden_sizes=(3,))).critic[0].sees_whole
    with pytest.raises(ParamsError, match=r"^ActorCritic.share_encoder: must be False where the critic has an encoder"):
        rl.ActorCritic(OBS, DISCRETE, net, critic_net=NetParams(encoder=FlatEncoder), share_encoder=True)


def test_it_trains() -> None:
    rl.seed(1)
    policy = rl.ActorCritic(OBS, DISCRETE, NetParams(obs_encoder=Product, hidden_sizes=(4,)), share_encoder=True)
    algorithm = rl.PPO(policy)
    before = policy.actor[0].parts[0].gain.item()
    envs = rl.make_vec(Still, 2)
    algorithm.run_training(
        rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(policy, envs),
            epoch_num_steps=16,
            max_epochs=1,
            batch_size=8,
            collection_step_num_env_steps=16,
            show_progress=False,
            verbose=False,
        )
    )
    assert policy.actor[0].parts[0].gain.item() != before


def test_a_file_names_it(tmp_path: Path) -> None:
    policy = rl.ActorCritic(OBS, DISCRETE, NetParams(obs_encoder=Product, hidden_sizes=(4,)))
    policy.save(tmp_path / "policy.safetensors")
    with pytest.raises(CheckpointError, match=r"NetParams.obs_encoder: the file only names 'Product'"):
        rl.load_policy(tmp_path / "policy.safetensors")
    loaded = rl.load_policy(tmp_path / "policy.safetensors", classes=[Product])
    torch.testing.assert_close(loaded.act(observations()), policy.act(observations()))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (None, "got None (NoneType)"),
        (nn.Linear(3, 2), "of two observations it makes TypeError: linear(): argument"),
        (nn.Identity(), "of two observations it makes <dict>"),
    ],
)
def test_what_it_makes_is_tried(made: Any, text: str) -> None:
    with pytest.raises(ParamsError) as caught:
        Encoder(OBS, NetParams(obs_encoder=lambda space: made))
    rule = "NetParams.obs_encoder: must make a module from [B, ...] to float [B, F] for the observation, Dict('image': "
    assert str(caught.value).startswith(rule)
    assert f"; {text}" in str(caught.value)


def test_a_part_that_is_not_there_is_named() -> None:
    with pytest.raises(ParamsError, match=r"of two observations it makes KeyError: 'where'$"):
        Encoder(OBS, NetParams(obs_encoder=Product, keys=("image",)))


def test_there_is_one_or_the_other() -> None:
    with pytest.raises(ParamsError) as caught:
        NetParams(encoder=FlatEncoder, obs_encoder=Product)
    assert str(caught.value).startswith(
        "NetParams.obs_encoder: must be None where there is an encoder for each leaf; got <class '"
    )
