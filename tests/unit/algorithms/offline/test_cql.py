"""CQL: its conservative term by importance sampling, and a target without entropy; discrete CQL's penalty by hand."""

import math
from typing import Any

import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from tests.fakes import OBS_SPACE
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, FixedDistribution, batch
from tests.unit.algorithms.q_learning.test_dqn import transitions
from tests.unit.collect.test_collector import BOX
from tests.unit.nets.test_q_network import OBS


def make(cls: Any = rl.CQL, normalize_obs: bool = False, **params: Any) -> Any:
    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), normalize_obs=normalize_obs)
    return cls(policy, cls.params_class(num_sampled_actions=2, **params))


def of_numbers(cls: Any = rl.CQL) -> tuple[Any, rl.Transitions]:
    """Return an algorithm that samples two actions of each kind, and a transition of weight .5."""
    algorithm, data = make(cls, conservative_coef=5.0), batch([0.0], [0.9], weight=[0.5], num_actions=2)
    log_probs = iter([[[-1.0], [-0.5]], [[-1.0], [-2.0]]])  # of two actions at obs, of two at next_obs [N, B]
    algorithm.policy.distribution = lambda obs: FixedDistribution(next(log_probs))
    algorithm.critic = FixedCritic([[1.5], [1.5]], [[[1.0], [2.0], [0.0], [1.0], [3.0], [0.0]]] * 2)
    return algorithm, data


def test_the_conservative_term() -> None:
    algorithm, data = of_numbers()
    loss, td_error = algorithm.critic_loss(data, torch.tensor([2.5]), algorithm.sample_noise(data))
    # log sum exp(q - log density) of q = [1, 2, 0, 1, 3, 0] and [-1, -0.5, -1, -2, 2 ln 0.5, 2 ln 0.5] is 4.841960:
    # 3.341960 above the data's 1.5. Two critics, of TD error 1 each, at half the weight.
    total = math.exp(2) + math.exp(2.5) + math.exp(1) + math.exp(3) + 4 * math.exp(3) + 4
    assert math.log(total) == pytest.approx(4.84196)
    assert float(loss) == pytest.approx(2 * 0.5 * (1.0 + 5.0 * 3.34196), rel=1e-6)
    assert td_error.tolist() == [1.0]


def test_gradients_of_the_term_lower_what_is_sampled_and_raise_the_data() -> None:
    algorithm, data = make(conservative_coef=1.0), batch([0.0], [0.0])
    algorithm.policy.distribution = lambda obs: FixedDistribution(math.log(0.5))
    q, of_samples = torch.zeros(1, 1, requires_grad=True), torch.zeros(1, 6, 1, requires_grad=True)
    algorithm.critic = FixedCritic(q)
    algorithm.critic.of_samples = of_samples
    algorithm.critic_loss(data, torch.zeros(1), algorithm.sample_noise(data))[0].backward()
    assert of_samples.grad is not None
    assert of_samples.grad.flatten().tolist() == pytest.approx([1 / 6] * 6)
    assert q.grad is not None
    assert float(q.grad) == -1.0


def test_the_target_has_no_entropy() -> None:
    algorithm, data = make(), batch([1.0], [0.5])
    algorithm.policy.distribution = lambda obs: FixedDistribution(-7.0)
    algorithm.target_critic = FixedCritic([[3.0], [2.0]])
    assert algorithm.critic_target(data, algorithm.sample_noise(data)).tolist() == [2.0]  # 1 + 0.5 * 2


def test_what_is_drawn() -> None:
    data = batch([1.0] * 50, [0.9] * 50, num_actions=3)
    noise = make().sample_noise(data)
    assert noise.sampled.shape == noise.next_sampled.shape == noise.uniform.shape == (2, 50, 3)
    assert 0.9 < noise.uniform.abs().max() <= 1.0  # uniform over all of (-1, 1), not a constant
    assert abs(noise.uniform.mean()) < 0.1
    assert not torch.equal(noise.sampled, noise.next_sampled)


def discrete(**params: float) -> rl.DiscreteCQL:
    """Return one whose values are 1, 2, 0 for the observation 1."""
    policy = rl.QNetwork(OBS, spaces.Discrete(3), hidden_sizes=())
    with torch.no_grad():
        policy.critic[2].weight.copy_(torch.tensor([[1.0], [2.0], [0.0]]))
        policy.critic[2].bias.zero_()
    return rl.DiscreteCQL(policy, rl.DiscreteCQLParams(**params))


def test_loss_and_gradient_by_hand() -> None:
    cql = discrete()
    batch = transitions(
        obs=torch.tensor([[1.0]]), action=torch.tensor([1]), reward=torch.tensor([2.0]), discount=torch.tensor([0.0]),
        next_obs=torch.tensor([[1.0]]), weight=torch.ones(1),
    )  # fmt: skip
    # The target is Q(1, 1) = 2 itself, so only the penalty is left: log(e + e^2 + 1) - 2.
    loss, td_error = cql.loss(batch, None)
    assert td_error.tolist() == [0.0]
    assert loss.item() == pytest.approx(0.407606, abs=1e-6)
    # By the values: softmax(1, 2, 0) - (0, 1, 0).
    loss.sum().backward()
    assert cql.policy.critic[2].bias.grad.tolist() == pytest.approx([0.244728, -0.334759, 0.090031], abs=1e-6)


def test_conservative_coef_weighs_the_penalty_against_dqns_loss() -> None:
    batch = transitions(
        obs=torch.tensor([[1.0]]), action=torch.tensor([1]), reward=torch.tensor([3.0]), discount=torch.tensor([0.0]),
        next_obs=torch.tensor([[1.0]]), weight=torch.ones(1),
    )  # fmt: skip
    # An error of 1 is a Huber loss of .5.
    assert discrete(conservative_coef=2.0).loss(batch, None)[0].item() == pytest.approx(0.5 + 2 * 0.407606, abs=1e-6)
    squared = discrete(conservative_coef=2.0, huber_delta=None)
    assert squared.loss(batch, None)[0].item() == pytest.approx(1 + 2 * 0.407606, abs=1e-6)
