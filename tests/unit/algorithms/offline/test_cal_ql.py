"""Cal-QL: floors of the policy's values by hand, the target over several actions, and data without returns."""

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ReplayBufferError
from tests.fakes import OBS_SPACE, counting_envs
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, batch
from tests.unit.algorithms.offline.test_cql import make, of_numbers
from tests.unit.collect.test_collector import BOX


# max(q, 1.5) of the policy's [1, 2, 0, 1], and the uniform [3, 0] as they are: 5.036986 - 1.5. While a trajectory runs,
# the gap is CQL's.
@pytest.mark.parametrize(("return_to_go", "gap"), [(1.5, 3.536986), (-torch.inf, 3.341960)])
def test_the_floor_by_hand(return_to_go: float, gap: float) -> None:
    algorithm, data = of_numbers(rl.CalQL)
    data.extra = {"return_to_go": torch.tensor([return_to_go])}
    loss, td_error = algorithm.critic_loss(data, torch.tensor([2.5]), algorithm.sample_noise(data))
    assert float(loss) == pytest.approx(2 * 0.5 * (1.0 + 5.0 * gap), rel=1e-6)
    assert td_error.tolist() == [1.0]


def test_values_at_the_floor_are_not_pushed_down() -> None:
    algorithm, data = of_numbers(rl.CalQL)
    data.extra = {"return_to_go": torch.tensor([1.5])}
    algorithm.critic.of_samples.requires_grad_(True)
    algorithm.critic_loss(data, torch.zeros(1), algorithm.sample_noise(data))[0].backward()
    pushed = algorithm.critic.of_samples.grad[0, :, 0] != 0
    assert pushed.tolist() == [False, True, False, False, True, True]


@pytest.mark.parametrize(("best_of", "expected"), [(True, 2.5), (False, 2.0)])
def test_the_target_is_the_best_of_several_actions(best_of: bool, expected: float) -> None:
    algorithm, data = make(rl.CalQL, max_target_backup=best_of), batch([1.0], [0.5])
    algorithm.target_critic = FixedCritic([[3.0], [2.0]])  # of one action
    network = FixedCritic([[0.0]], [[[1.0], [4.0]], [[7.0], [3.0]]])  # of two: the lower ones are 1 and 3
    algorithm.target_critic.network = network
    assert algorithm.critic_target(data, algorithm.sample_noise(data)).tolist() == [expected]


@pytest.mark.parametrize(("ends", "follows"), [([], True), ([], False), ([5], True), ([2], False)])
def test_data_without_ends_is_refused(ends: list[int], follows: bool) -> None:
    """One long trajectory, and rows in any order."""
    obs, last = np.random.default_rng(0).random((6, 2), np.float32), np.isin(np.arange(6), ends)
    data = rl.ReplayBuffer.from_arrays(
        observations=obs, actions=np.zeros((6, *BOX.shape), np.float32), rewards=np.zeros(6), terminations=last,
        truncations=last & False, next_observations=np.roll(obs, -1, 0) if follows else obs + 1,
        observation_space=OBS_SPACE, action_space=BOX,
    )  # fmt: skip
    algorithm = make(rl.CalQL, normalize_obs=True)
    if ends:
        algorithm.prepare(data)
        assert algorithm.sample(data, 8, 3).extra["return_to_go"].shape == (3, 8)
        assert algorithm.update_from(data, 8, 2).metrics
    else:
        refused = r"CalQL.buffer: has no ends of episodes.* or take CQL"
        with pytest.raises(ReplayBufferError, match=refused):
            algorithm.prepare(data)
        mixed = rl.MixedBuffer(rl.ReplayBuffer(10, OBS_SPACE, BOX), data)
        collector = rl.Collector(algorithm.policy, counting_envs(1, action_space=BOX), mixed)
        with pytest.raises(ReplayBufferError, match=refused):
            rl.OffPolicyTrainerParams(training_collector=collector).create_trainer(algorithm)
