"""FQE: the values of fixed policies in a chain that can be solved by hand, and what it leaves alone."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from tests.unit.algorithms.actor_critic.by_hand import batch

OBS = gym.spaces.Box(0, 9, (1,), np.float32)
CHOICES, BOX = gym.spaces.Discrete(2, start=1), gym.spaces.Box(-2, 2, (1,), np.float32)


def always(action: Any, **options: Any) -> Any:
    """Return a policy that takes one action: a choice, or a number of the Box."""
    policy: Any = (rl.QNetwork if isinstance(action, int) else rl.DeterministicActorCritic).for_spaces(
        OBS, CHOICES if isinstance(action, int) else BOX, hidden_sizes=(), **options
    )
    last = policy.critic[2] if isinstance(action, int) else policy.actor[2][0]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.eye(2)[action - 1] if isinstance(action, int) else torch.tensor([action / 2]).atanh())
    return policy


def chain(action_space: Any) -> rl.ReplayBuffer:
    """Return episodes of two steps and random actions; the higher half of them is rewarded with 1, in each step."""
    action_space.seed(0)
    actions = np.stack([action_space.sample() for _ in range(400)])
    ends = np.arange(400) % 2 == 1
    return rl.ReplayBuffer.from_arrays(
        observations=ends.astype(np.float32)[:, None], actions=actions, terminations=ends, truncations=ends & False,
        rewards=(actions.reshape(-1) > (action_space == CHOICES)).astype(np.float32), observation_space=OBS,
        action_space=action_space,
    )  # fmt: skip


@pytest.mark.parametrize(("good", "bad"), [(2, 1), (1.0, -1.0)])
def test_values_of_a_chain(good: Any, bad: Any) -> None:
    for action, expected in ((good, 1.5), (bad, 0.0)):  # 1 + .5 * 1
        rl.seed(0)
        policy = always(action)
        fqe, data = rl.FQE(policy, rl.FQEParams(gamma=0.5, lr=1e-2, tau=0.1)), chain(policy.action_space)
        before = {name: value.clone() for name, value in policy.named_parameters()}
        fqe.seed(0)
        data.seed(0)
        fqe.update_from(data, 64, 200)
        assert fqe.initial_value(data) == pytest.approx(expected, abs=0.1)
        assert fqe.value(np.ones((1, 1), np.float32)).tolist() == pytest.approx([min(expected, 1.0)], abs=0.1)
        assert all(torch.equal(before[name], value) for name, value in policy.named_parameters())


class OfChoices(torch.nn.Module):
    """Values of the two choices, whatever is seen."""

    def __init__(self, *q: float) -> None:
        super().__init__()
        self.q = torch.tensor(q)

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return (action @ self.q).unsqueeze(0)


def test_the_target_by_hand_has_the_policys_next_action_and_unscaled_rewards() -> None:
    policy = always(2, normalize_obs=True, normalize_reward=True)
    fqe: Any = rl.FQE(policy)
    fqe.critic, fqe.target_critic = OfChoices(1.0, 5.0), OfChoices(7.0, 3.0)
    fqe.optimizer.step = fqe.target_critic.update = lambda _: None
    data = batch([10.0], [0.5])
    data.obs, data.next_obs, data.action = torch.zeros(1, 1), torch.zeros(1, 1), torch.tensor([1])
    result = fqe._step(data, None)
    # 10 + .5 * 3 - 1, although the training of the policy scales rewards.
    assert (result.td_error.tolist(), float(result.metrics["loss"])) == ([10.5], 110.25)
    before = policy.state_dict()
    fqe.prepare(chain(CHOICES))
    assert all(torch.equal(value, policy.state_dict()[name]) for name, value in before.items() if value is not None)


def test_initial_observations() -> None:
    buffer, no = rl.ReplayBuffer(5, OBS, BOX), np.zeros(1, bool)
    for step in range(8):  # episodes of three steps; the starts of two are overwritten
        obs = np.full((1, 1), step, np.float32)
        buffer.add(obs, np.zeros((1, 1), np.float32), [0.0], obs, no, no | (step % 3 == 2))
    assert buffer.initial_observations().tolist() == [[6.0]]  # type: ignore[union-attr]
