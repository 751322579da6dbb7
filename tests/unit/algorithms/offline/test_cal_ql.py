"""Cal-QL: floors of the policy's values by hand, the target over several actions, and data without returns."""

from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError, ReplayBufferError
from tests.fakes import OBS_SPACE
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, FixedDistribution, batch
from tests.unit.collect.test_collector import BOX


def make(options: Any = None, **params: Any) -> Any:
    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), **(options or {}))
    return rl.CalQL(policy, rl.CalQLParams(**{"num_sampled_actions": 2, **params}))


def calibrated(return_to_go: float, end_discount: float = 0.0) -> tuple[Any, Any]:
    """Return the algorithm and the transition of CQL's numbers, with this return to go."""
    algorithm, data = make(conservative_coef=5.0), batch([0.0], [0.9], weight=[0.5], num_actions=2)
    log_probs = iter([[[-1.0], [-0.5]], [[-1.0], [-2.0]], [0.0]])
    algorithm.policy.distribution = lambda obs: FixedDistribution(next(log_probs))
    algorithm.critic = FixedCritic([[1.5], [1.5]], [[[1.0], [2.0], [0.0], [1.0], [3.0], [0.0]]] * 2)
    algorithm.target_critic = FixedCritic([[5.0], [6.0]])
    data.extra = {
        "return_to_go": torch.tensor([return_to_go]), "end_obs": data.obs, "end_discount": torch.tensor([end_discount])
    }  # fmt: skip
    return algorithm, data


@pytest.mark.parametrize(
    ("return_to_go", "end_discount", "gap"),
    [
        # max(q, 1.5) of the policy's [1, 2, 0, 1], and the uniform [3, 0] as they are: 5.036986 - 1.5.
        (1.5, 0.0, 3.536986),
        (-1.0, 0.5, 3.536986),  # -1 + .5 * min(5, 6)
        (-torch.inf, 0.5, 3.341960),  # CQL's: the trajectory still runs
    ],
)
def test_the_floor_by_hand(return_to_go: float, end_discount: float, gap: float) -> None:
    algorithm, data = calibrated(return_to_go, end_discount)
    loss, td_error = algorithm.critic_loss(data, torch.tensor([2.5]), algorithm.sample_noise(data))
    assert float(loss) == pytest.approx(2 * 0.5 * (1.0 + 5.0 * gap), rel=1e-6)
    assert td_error.tolist() == [1.0]


def test_values_at_the_floor_are_not_pushed_down() -> None:
    algorithm, data = calibrated(1.5)
    algorithm.critic.of_samples.requires_grad_(True)
    algorithm.critic_loss(data, torch.zeros(1), algorithm.sample_noise(data))[0].backward()
    pushed = algorithm.critic.of_samples.grad[0, :, 0] != 0
    assert pushed.tolist() == [False, True, False, False, True, True]


@pytest.mark.parametrize(("best_of", "expected"), [(True, 2.5), (False, 2.0)])
def test_the_target_is_the_best_of_several_actions(best_of: bool, expected: float) -> None:
    algorithm, data = make(max_target_backup=best_of), batch([1.0], [0.5])
    algorithm.target_critic = FixedCritic([[3.0], [2.0]])  # of one action
    network = FixedCritic([[0.0]], [[[1.0], [4.0]], [[7.0], [3.0]]])  # of two: the lower ones are 1 and 3
    algorithm.target_critic.network = network
    assert algorithm.critic_target(data, algorithm.sample_noise(with_returns(data))).tolist() == [expected]


def with_returns(data: Any) -> Any:
    data.extra = {"return_to_go": data.reward}
    return data


def test_samples_have_returns_and_other_transitions_are_refused() -> None:
    envs = rl.make_vec("Pendulum-v1", 1, seed=0)
    algorithm = rl.CalQL(rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,), normalize_obs=True))
    buffer = rl.ReplayBuffer(400, envs.single_observation_space, envs.single_action_space, seed=0)
    rl.Collector(algorithm.policy, envs, buffer).collect(num_steps=300, random=True)
    algorithm.prepare(buffer)
    drawn = algorithm.sample(buffer, 8, 3)
    assert drawn.extra["return_to_go"].shape == (3, 8)
    assert algorithm.update_from(buffer, 8, 2).metrics
    with pytest.raises(
        ReplayBufferError, match=r"CalQL.update.transitions: have no returns to go. .* algorithm.sample"
    ):
        algorithm.update(buffer.sample(8))
    with pytest.raises(ParamsError, match="CalQL.policy.normalize_reward: must be False"):
        make({"normalize_reward": True})


@pytest.mark.parametrize(("ends", "follows", "is_refused"), [
    ([], True, True), ([], False, True),  # one long trajectory, and rows in any order
    ([5], True, False), ([2], True, False),
])  # fmt: skip
def test_data_without_ends_is_refused(ends: list[int], follows: bool, is_refused: bool) -> None:
    obs, last = np.random.default_rng(0).random((6, 2), np.float32), np.isin(np.arange(6), ends)
    after = np.concatenate([obs[1:], obs[:1]]) if follows else obs + 1
    data = rl.ReplayBuffer.from_arrays(
        observations=obs, actions=np.zeros((6, *BOX.shape), np.float32), rewards=np.zeros(6), terminations=last,
        truncations=~last & False, next_observations=after, observation_space=OBS_SPACE, action_space=BOX,
    )  # fmt: skip
    if not is_refused:
        return make().prepare(data)
    with pytest.raises(ReplayBufferError, match=r"CalQL.prepare.buffer: has no ends of episodes.* or take CQL"):
        make().prepare(data)
    return None
