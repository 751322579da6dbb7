"""Discrete SAC's losses by hand."""

import math
from typing import Any

import pytest
import torch
from gymnasium import spaces

import rltrainer as rl
from tests.unit.algorithms.q_learning.test_dqn import OBS, transitions

PI = [0.5, 0.3, 0.2]
Q = [[1.0, 2.0, 3.0], [2.0, 1.0, 4.0]]

# The minimum of the critics is 1, 1, 3, its mean under pi .5 + .3 + .6 = 1.4. The entropy is
# -(.5 ln .5 + .3 ln .3 + .2 ln .2) = 1.029653, so V = 1.4 + .2 * 1.029653.
ENTROPY, VALUE = 1.029653, 1.605931


def with_outputs(policy: Any) -> Any:
    """Return the policy, which gives actions these probabilities and values whatever is observed."""
    with torch.no_grad():
        policy.actor[2].linear.weight.zero_()
        policy.actor[2].linear.bias.copy_(torch.tensor(PI).log())
        last = policy.critic[1].layers[-1]
        last.weight.zero_()
        last.bias.copy_(torch.tensor(Q).unsqueeze(1))
    return policy


def algorithm(**params: float) -> rl.DiscreteSAC:
    policy = with_outputs(rl.DiscreteActorCritic(OBS, spaces.Discrete(3), hidden_sizes=()))
    return rl.DiscreteSAC(policy, rl.DiscreteSACParams(temperature=0.2, **params))


def test_target_by_hand() -> None:
    sac, batch = algorithm(), transitions()
    target = sac.critic_target(batch, sac.sample_noise(batch))
    # Rewards 1 and 3, the latter's at the end.
    assert target.tolist() == pytest.approx([1 + 0.5 * VALUE, 3.0], abs=1e-6)
    plain = algorithm(entropy_in_target=False)
    assert plain.critic_target(batch, plain.sample_noise(batch)).tolist() == pytest.approx([1 + 0.5 * 1.4, 3.0])


def test_critic_loss_by_hand() -> None:
    sac, batch = algorithm(), transitions()
    loss, td_error = sac.critic_loss(batch, torch.tensor([3.0, 3.0]), sac.sample_noise(batch))
    # Actions 0 and 1 are worth 1 and 2 to the one critic, 2 and 1 to the other: errors [[2, 1], [1, 2]].
    assert loss.item() == pytest.approx((4 + 1) / 2 + (1 + 4) / 2)
    assert td_error.tolist() == pytest.approx([1.5, 1.5])


def test_choices_may_start_anywhere() -> None:
    policy = with_outputs(rl.DiscreteActorCritic(OBS, spaces.Discrete(3, start=5), hidden_sizes=()))
    batch = transitions(action=torch.tensor([5, 7]))
    _, td_error = rl.DiscreteSAC(policy).critic_loss(batch, torch.tensor([4.0, 4.0]), None)
    assert td_error.tolist() == pytest.approx([2.5, 0.5])  # of [[3, 1], [2, 0]]


def test_actor_loss_by_hand_trains_the_actor_alone() -> None:
    sac, batch = algorithm(), transitions()
    loss, log_prob = sac.actor_loss(batch, sac.sample_noise(batch))
    assert loss.item() == pytest.approx(-VALUE, abs=1e-6)
    assert log_prob.tolist() == pytest.approx([-ENTROPY] * 2, abs=1e-6)
    loss.backward()
    # Of a logit: -pi(a) (Q(a) - alpha log pi(a) - V).
    expected = [-p * (q - 0.2 * math.log(p) - VALUE) for p, q in zip(PI, [1, 1, 3], strict=True)]
    assert sac.policy.actor[2].linear.bias.grad.tolist() == pytest.approx(expected, abs=1e-6)
    assert all(p.grad is None for p in sac.critic.parameters())


def test_temperature_loss_by_hand() -> None:
    sac, batch = algorithm(target_entropy=1.0), transitions()
    _, log_prob = sac.actor_loss(batch, sac.sample_noise(batch))
    # The entropy is above its target, so a smaller temperature has the smaller loss: -ln .2 * (1 - 1.029653).
    assert sac.temperature_loss(log_prob, batch).item() == pytest.approx(-math.log(0.2) * (1 - ENTROPY), abs=1e-6)


def test_the_default_target_is_a_share_of_the_largest_entropy() -> None:
    assert algorithm().target_entropy == pytest.approx(0.6 * math.log(3))
    assert algorithm(target_entropy=0.1).target_entropy == 0.1


def test_nothing_is_drawn() -> None:
    sac = algorithm()
    before = sac.generator.get_state()
    sac.update(transitions())
    assert torch.equal(sac.generator.get_state(), before)


@pytest.mark.parametrize(("target_entropy", "targets"), [(None, [0.6 * math.log(2), 0.0]), (0.3, [0.3, 0.3])])
def test_the_default_target_is_a_share_of_the_entropy_that_a_mask_allows(
    target_entropy: float | None, targets: list[float]
) -> None:
    space = spaces.Dict(action_mask=spaces.MultiBinary(3), seen=OBS)
    policy = rl.DiscreteActorCritic.for_spaces(space, spaces.Discrete(3), hidden_sizes=())
    sac = rl.DiscreteSAC(policy, rl.DiscreteSACParams(temperature=0.2, target_entropy=target_entropy))
    batch = transitions()
    batch.obs = {"action_mask": torch.tensor([[1, 0, 1], [0, 1, 0]]), "seen": batch.obs}
    # Two actions and one are allowed. -ln .2 * mean(log pi + target), log pi -.5 and -.1.
    expected = -math.log(0.2) * ((-0.5 + targets[0]) + (-0.1 + targets[1])) / 2
    assert sac.temperature_loss(torch.tensor([-0.5, -0.1]), batch).item() == pytest.approx(expected, abs=1e-6)
