"""`predict`, NumPy in and NumPy out, and `forward`, what a module is called and exported by."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError
from rltrainer.nets.policy import Decision

OBS = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(np.array([-2.0, 0.0]), np.array([-1.0, 0.5]), dtype=np.float64)
IMAGE = spaces.Box(0, 255, (36, 36, 3), np.uint8)
TREE = spaces.Dict(
    cam=IMAGE,
    pair=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2))),
    pos=spaces.Box(-1, 1, (), np.float64),
    two=spaces.MultiDiscrete([2, 3]),
)


def policy_for(action_space: Any, observation_space: Any = OBS, **options: Any) -> Any:
    rl.seed(1)
    return rl.ActorCritic(observation_space, action_space, hidden_sizes=(4,), **options)


@pytest.mark.parametrize("action_space", [
    BOX,
    spaces.Box(-1, 1, (2,), np.float16),
    spaces.Box(-np.inf, np.inf, (1,), np.float32),
    spaces.Discrete(3, start=5),
    spaces.MultiDiscrete([2, 3], dtype=np.int32),
    spaces.MultiBinary(3),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("explore", [False, True])
def test_one_observation_or_several(action_space: Any, explore: bool) -> None:
    policy = policy_for(action_space)
    obs = np.random.default_rng(1).uniform(-1, 1, (50, 3)).astype(np.float32)
    many = policy.predict(obs, explore=explore, generator=torch.Generator().manual_seed(1))
    one = policy.predict(obs[0], explore=explore, generator=torch.Generator().manual_seed(1))
    for action in (one, *many):
        assert action_space.contains(action), action
        assert action.dtype == action_space.dtype
    expected = policy.eval().act(torch.from_numpy(obs), explore=explore, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(many, expected.numpy(), rtol=1e-3)
    if not explore:
        np.testing.assert_allclose(one, many[0], rtol=1e-6)  # a product of one row may round otherwise


def test_trees_of_arrays_numbers_and_lists() -> None:
    policy = policy_for(spaces.Discrete(2), TREE, normalize_obs=True)
    samples = [TREE.sample() for _ in range(4)]
    many = gym.vector.utils.concatenate(TREE, samples, gym.vector.utils.create_empty_array(TREE, 4))
    actions = policy.predict(many)
    assert actions.shape == (4,)
    assert [policy.predict(sample) for sample in samples] == actions.tolist()
    plain = {"pos": 0.5, "two": [1, 2], "pair": [3, (True, False)], "cam": np.zeros((36, 36, 3), np.uint8)}
    assert policy.predict(plain) in (0, 1)  # any order of keys


@pytest.mark.parametrize(("space", "obs"), [
    (OBS, [0.1, 0.2, 0.3]),
    (OBS, np.array([0.1, 0.2, 0.3])),  # float64
    (OBS, np.array([1, 0, 1])),
    (spaces.Discrete(3, start=1), 2),
    (spaces.Discrete(3), np.int32(2)),
    (spaces.MultiBinary(2), np.array([1, 0])),
    (spaces.Box(-1, 1, (), np.float32), 0.5),
])  # fmt: skip
def test_lists_arrays_and_tensors_of_near_dtypes(space: Any, obs: Any) -> None:
    policy = policy_for(BOX, space)
    assert policy.predict(obs).shape == (2,)
    several = np.stack([obs, obs])
    several.flags.writeable = False
    assert policy.predict(several).shape == policy.predict(torch.from_numpy(several.copy())).shape == (2, 2)


class ModeSeen(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.modes = [self.training, torch.is_grad_enabled()]
        return x


def test_modes_and_statistics_are_left_as_they_were() -> None:
    policy = policy_for(BOX, activation=ModeSeen, normalize_obs=True)
    policy.critic.eval()
    before = [module.training for module in policy.modules()]
    policy.predict(np.ones((9, 3)))
    assert policy.actor[1].activations[0].modes == [False, False]
    with pytest.raises(SpaceError):
        policy.predict(np.zeros(4))
    assert [module.training for module in policy.modules()] == before
    assert policy.obs_normalizer.moments["0"].count == 0


def test_what_only_the_critic_sees_may_be_missing() -> None:
    space = spaces.Dict(near=OBS, far=spaces.Dict(a=OBS, b=spaces.Discrete(2)))
    nets = {"net": rl.NetParams(keys=("near",)), "critic_net": rl.NetParams(keys=("far",))}
    policy = policy_for(BOX, space, **nets, normalize_obs=True)
    full = space.sample()
    np.testing.assert_array_equal(policy.predict({"near": full["near"]}), policy.predict(full))
    assert policy.predict({"near": np.zeros((4, 3))}).shape == (4, 2)
    with pytest.raises(SpaceError, match=r"^ActorCritic.predict: obs: expected a dict with the keys \['near', 'far'\]"):
        policy.predict({"far": full["far"]})


def test_masks_are_obeyed() -> None:
    space = spaces.Dict(a=OBS, action_mask=spaces.MultiBinary(3))
    policy = policy_for(spaces.Discrete(3, start=1), space)
    for choice in range(3):
        obs = {"a": np.zeros(3), "action_mask": np.eye(3, dtype=np.int8)[choice]}
        assert policy.predict(obs) == policy.predict(obs, explore=True) == choice + 1
    policy = policy_for(spaces.MultiDiscrete([2, 3]), spaces.Dict(a=OBS, action_mask=spaces.MultiBinary(5)))
    assert policy.predict({"a": np.zeros(3), "action_mask": [0, 1, 0, 0, 1]}).tolist() == [1, 2]
    with pytest.raises(SpaceError, match=r'^ActorCritic.predict: obs\["action_mask"\]: allows no action$'):
        policy.predict({"a": np.zeros(3), "action_mask": [1, 1, 0, 0, 0]})
    with pytest.raises(SpaceError, match=r'obs\["action_mask"\]: allows no action in row 1$'):
        policy.predict({"a": np.zeros((3, 3)), "action_mask": [[1, 0, 0, 0, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]})


class Counts(rl.Actor):
    """Remembers how often it acted, and says so."""

    def initial_state(self, num_envs: int) -> Tensor:
        return torch.zeros(num_envs, 1)

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> Decision:
        return Decision(state.expand(-1, 2).clone(), state + 1)


def test_a_policy_with_memory() -> None:
    policy = Counts(OBS, spaces.Box(0, 1.5, (2,), np.float32))
    obs, state = np.zeros(3), None
    for step in range(3):
        action, state = policy.predict(obs, state)
        assert action.tolist() == [min(step, 1.5)] * 2
        assert (state.dtype, state.tolist()) == (np.float32, [step + 1.0])
    action, state = policy.predict(np.zeros((4, 3)), np.arange(4.0)[:, None])
    assert action[:, 0].tolist() == [0, 1, 1.5, 1.5]
    assert state.tolist() == [[1], [2], [3], [4]]
    for wrong in (np.zeros(2), np.zeros((1, 1)), np.zeros(0)):
        with pytest.raises(ParamsError, match=r"^Counts.predict.state: must have the shape \(1,\); got "):
            policy.predict(obs, wrong)
    with pytest.raises(ParamsError, match=r"^Counts.predict.state: must have the shape \(4, 1\); got "):
        policy.predict(np.zeros((4, 3)), np.zeros(1))
    with pytest.raises(ParamsError, match="^ActorCritic.predict.state: must be None, as it has no memory; got "):
        policy_for(BOX).predict(obs, np.zeros(1))


class Drifts(Counts):
    """Remembers for its exploration only."""

    @property
    def is_recurrent(self) -> bool:
        return False

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> Decision:
        return super().decide(obs, torch.zeros(len(obs), 1) if state is None else state, mask, explore, generator)


def test_memory_that_greedy_actions_do_without_is_not_asked_for() -> None:
    policy = Drifts(OBS, spaces.Box(0, 1.5, (2,), np.float32))
    assert policy.predict(np.zeros(3)).tolist() == [0, 0]
    action, state = policy.predict(np.zeros(3), np.ones(1), explore=True)
    assert (action.tolist(), state.tolist()) == ([1, 1], [2])


# forward


def test_a_policy_is_called_as_a_module() -> None:
    policy, obs = policy_for(BOX), torch.rand(5, 3)
    assert torch.equal(policy(obs), policy.act(obs))
    recurrent = Counts(OBS, BOX)
    action, state = recurrent(obs, torch.ones(5, 1))
    assert (action.shape, state.tolist()) == ((5, 2), [[2.0]] * 5)
