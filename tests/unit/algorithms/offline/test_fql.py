"""FQL: each loss by hand, chunks of the data and their ends, and a bandit with two modes."""

import contextlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms.offline.fql import FQLNoise
from rltrainer.errors import ReplayBufferError
from tests import batches
from tests.fakes import OBS_SPACE, counting_envs
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, batch


def make(num_actions: int = 1, **params: Any) -> Any:
    rl.seed(1)
    space = gym.spaces.Box(-1.0, 1.0, (num_actions,), np.float32)
    chunk_length = params.get("chunk_length", 1)
    policy = rl.FlowActorCritic.for_spaces(OBS_SPACE, space, hidden_sizes=(8,), chunk_length=chunk_length)
    return rl.FQL(policy, rl.FQLParams(**params))


def noise(z: list[float], time: float = 0.0) -> FQLNoise:
    drawn = torch.tensor([z])
    return FQLNoise(next_z=drawn, flow_z=drawn, time=torch.tensor([[time]]), z=drawn)


def test_the_losses_by_hand() -> None:
    data, given = batch([1.0], [0.9], num_actions=2), noise([0.5, -1.0], 0.25)
    data.action, seen = torch.tensor([[0.2, 0.4]]), list[Any]()
    for normalize_q, total in ((False, -2.675), (True, -0.675)):
        algorithm = make(2, alpha=10.0, normalize_q=normalize_q)
        algorithm.flow = lambda obs, x, time: seen.append((x, time)) or torch.tensor([[0.0, 1.0]])
        # The line is at .75 z + .25 a, and its velocity a - z = [-.3, 1.4]: (.09 + .16) / 2.
        flow_loss = float(algorithm.flow_loss(data, given))
        assert flow_loss == pytest.approx(0.125)
        torch.testing.assert_close(seen[0], (torch.tensor([[0.425, -0.65]]), torch.tensor([[0.25]])))
        algorithm.actor = lambda obs, z: torch.tensor([[0.1, 0.2]])
        algorithm.policy.flow_chunk = lambda obs, z, num_steps: torch.tensor([[0.3, 0.2]])
        algorithm.critic = algorithm.target_critic = FixedCritic([[2.0], [4.0]])
        # 10 * (.04 + 0) / 2 - 3, or with the value over its magnitude - 1.
        assert flow_loss + float(algorithm.actor_loss(data, given)) == pytest.approx(total)
        assert algorithm.critic_target(data, given).tolist() == pytest.approx([1 + 0.9 * 3])


def test_no_gradient_of_the_value_reaches_the_flow() -> None:
    algorithm, data = make(), batch([1.0], [0.9])
    given = algorithm.sample_noise(data)
    algorithm.actor_loss(data, given).backward()
    assert all(p.grad is None for p in algorithm.flow.parameters())
    assert all(p.grad is not None for p in algorithm.actor.parameters())


# [steps]: terminated, truncated; then reward, discount and actions of the data in the chunk that starts at the first.
ENDS = {
    "whole": (None, False, 2.71, 0.729, [1, 1, 1], 3),
    "terminated": (1, True, 1.9, 0.0, [1, 1, 0], 2),
    "truncated": (1, False, 1.9, 0.81, [1, 1, 0], 2),
    "terminated with its last action": (2, True, 2.71, 0.0, [1, 1, 1], 3),
}


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize(("end", "is_terminal", "reward", "discount", "is_data", "after"), ENDS.values(), ids=ENDS)
def test_a_chunk_ends_with_its_trajectory(
    end: int | None, is_terminal: bool, reward: float, discount: float, is_data: list[int], after: int, is_mixed: bool
) -> None:
    """Actions and observations count the rows; each row's reward is 1."""
    algorithm = make(chunk_length=3, gamma=0.9)
    rows, ends = np.arange(5, dtype=np.float32)[:, None], np.arange(5) == end
    buffer = rl.ReplayBuffer.from_arrays(
        observations=np.tile(rows, 2), next_observations=np.tile(rows + 1, 2), actions=rows / 10, rewards=np.ones(5),
        terminations=ends & is_terminal, truncations=ends & (not is_terminal), observation_space=OBS_SPACE,
        action_space=algorithm.policy.action_space, seed=0,
    )  # fmt: skip
    online = rl.ReplayBuffer(5, OBS_SPACE, algorithm.policy.action_space)
    source = rl.MixedBuffer(online, buffer) if is_mixed else buffer
    algorithm.prepare(source)  # which has a trajectory of three steps at least
    for drawn in (algorithm.sample(source, 60), algorithm.sample(source, 60, 2)[1]):
        assert (drawn.action.shape, drawn.extra["is_data"].shape) == ((60, 3, 1), (60, 3, 1))
        first = drawn[drawn.obs[:, 0] == 0]
        assert len(first.reward) > 1
        (found,) = torch.stack([first.reward, first.discount, first.next_obs[:, 0]], 1).unique(dim=0).tolist()
        assert found == pytest.approx([reward, discount, after])
        assert first.extra["is_data"][:, :, 0].unique(dim=0).tolist() == [is_data]
        played = torch.arange(3) / 10 * torch.tensor(is_data)
        torch.testing.assert_close(first.action[0, :, 0] * torch.tensor(is_data), played)
    assert algorithm.update_from(source, 8, 2).metrics


def test_the_flow_learns_no_action_behind_an_end() -> None:
    algorithm, data = make(chunk_length=2), batch([0.0], [0.0])
    algorithm.flow = lambda obs, x, time: torch.tensor([[1.0, 3.0]])
    data.action, data.extra = torch.zeros(1, 2, 1), {"is_data": torch.tensor([[[1.0], [0.0]]])}
    assert float(algorithm.flow_loss(data, noise([0.0, 0.0]))) == 0.5  # of 1 and 9, the mean of 1 and 0
    data.extra["is_data"][:] = 1
    assert float(algorithm.flow_loss(data, noise([0.0, 0.0]))) == 5.0


def test_chunks_longer_than_all_trajectories_are_refused() -> None:
    algorithm = make(chunk_length=3)
    buffer = rl.ReplayBuffer(10, OBS_SPACE, algorithm.policy.action_space)
    obs, no = np.zeros((1, 2), np.float32), np.zeros(1, bool)
    for row in range(6):
        buffer.add(obs, np.zeros((1, 1), np.float32), [0.0], obs, no, np.array([row % 2 == 1]))
    refused = r"FQLParams.chunk_length: must be at most 2, the longest trajectory"
    with pytest.raises(ReplayBufferError, match=refused):
        algorithm.prepare(buffer)
    make(chunk_length=2).prepare(buffer)
    envs = counting_envs(1, action_space=algorithm.policy.action_space)
    mixed = rl.MixedBuffer(rl.ReplayBuffer(10, OBS_SPACE, algorithm.policy.action_space), buffer)
    for each in (algorithm, make(chunk_length=2)):
        params = rl.OffPolicyTrainerParams(training_collector=rl.Collector(each.policy, envs, mixed))
        with pytest.raises(ReplayBufferError, match=refused) if each is algorithm else contextlib.nullcontext():
            params.create_trainer(each)


def test_a_recipe_gives_policy_and_params_the_same_chunks() -> None:
    recipe = rl.OfflineRecipe(algorithm="fql", data=bandit(), params=rl.FQLParams(chunk_length=2))
    recipe = recipe.with_fields(hidden_sizes=(8,), chunk_length=1, device="cpu")
    assert recipe.make_trainer().algorithm.policy.chunk_length == 1


def bandit() -> rl.ReplayBuffer:
    """Return episodes of one step: half of the actions are -.8, the others .8, and only these have a reward, of 1."""
    action = np.tile(np.float32([[0.8], [-0.8]]), (200, 1))
    ended = np.ones(len(action), bool)
    return rl.ReplayBuffer.from_arrays(
        observations=np.zeros((len(action), 2), np.float32), actions=action, rewards=(action[:, 0] > 0).astype(float),
        terminations=ended, truncations=~ended, observation_space=OBS_SPACE,
        action_space=gym.spaces.Box(-1.0, 1.0, (1,), np.float32), seed=0,
    )  # fmt: skip


@pytest.mark.full
@pytest.mark.timeout(600)
def test_two_modes() -> None:
    """The flow has both modes, where a Gaussian would act between them; the actor has the one with the reward."""
    data = bandit()
    rl.seed(0)
    policy = rl.FlowActorCritic.for_spaces(data.observation_space, data.action_space, hidden_sizes=(64, 64))
    algorithm = rl.FQL(policy, rl.FQLParams(lr=1e-3, tau=0.05, alpha=0.1))
    algorithm.seed(1)
    algorithm.update_from(data, 256, 1200)
    obs, z = torch.zeros(2000, 2), torch.randn(2000, 1, generator=batches.generator(2))
    with torch.no_grad():
        flow, actor = policy.flow_chunk(obs, z, 10), policy.act(obs, explore=True, generator=batches.generator(3))
    shares = [float(((x - mode).abs() < 0.4).float().mean()) for x in (flow, actor) for mode in (0.8, -0.8)]
    assert shares == [pytest.approx(0.5, abs=0.05), pytest.approx(0.5, abs=0.05), pytest.approx(1, abs=0.05), 0.0]
    assert policy.predict([0.0, 0.0]) == pytest.approx([0.8], abs=0.3)
