"""TD3+BC: the epsilon of its observations."""

import numpy as np
import pytest
import torch

import rltrainer as rl
from tests.fakes import OBS_SPACE
from tests.unit.collect.test_collector import BOX


def algorithm(**params: float) -> rl.TD3BC:
    policy = rl.DeterministicActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), normalize_obs=True)
    return rl.TD3BC(policy, rl.TD3BCParams(**params))


def data() -> rl.ReplayBuffer:
    """Return four transitions; the first number of their observations is tiny, the second constant."""
    first = np.array([0.0, 0.002, 0.004, 0.002])
    obs = np.stack([first, np.full(4, 5.0)], 1).astype(np.float32)
    flags = np.zeros(4, bool)
    return rl.ReplayBuffer.from_arrays(
        observations=obs, actions=np.zeros((4, 1), np.float32), rewards=np.zeros(4), terminations=flags,
        truncations=flags, next_observations=obs, observation_space=OBS_SPACE, action_space=BOX,
    )  # fmt: skip


def test_observations_are_divided_by_std_plus_eps() -> None:
    one = algorithm()
    one.prepare(data())
    one.prepare(data())  # a second call changes nothing more
    # mean 0.002, std 0.002 / sqrt(2): (0.004 - 0.002) / (0.0014142 + 0.001), where 1 / std alone would give 1.414.
    normalized = one.policy.normalize(torch.tensor([[0.004, 5.001]]))
    assert normalized[0].tolist() == pytest.approx([0.8284, 1.0], rel=6e-3)


def test_eps_can_be_left_out() -> None:
    one = algorithm(obs_std_eps=0)
    one.prepare(data())
    assert float(one.policy.normalize(torch.tensor([[0.004, 5.0]]))[0, 0]) == pytest.approx(1.4142, rel=5e-3)


def test_the_policys_file_holds_it() -> None:
    one, other = algorithm(), algorithm()
    one.prepare(data())
    other.policy.load_state_dict(one.policy.state_dict())
    obs = torch.tensor([[0.004, 5.001]])
    assert torch.equal(one.policy.normalize(obs), other.policy.normalize(obs))
