"""FlashSAC: the actor's turn comes first, both networks see both observations, and weights keep their lengths."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms.actor_critic.categorical_sac import CategoricalSAC
from rltrainer.nets.blocks import BatchNorm, UnitBatchNorm, UnitLinear, UnitRMSNorm
from tests import batches
from tests.fakes import OBS_SPACE, POLICY_OPTIONS
from tests.unit.collect.test_collector import BOX

SIZE = 16


def make(**params: Any) -> Any:
    rl.seed(1)
    policy = rl.CategoricalActorCritic.for_spaces(OBS_SPACE, BOX, **POLICY_OPTIONS[rl.FlashSAC], hidden_sizes=(8, 8))
    algorithm = rl.FlashSAC(policy, rl.FlashSACParams(**params))
    algorithm.seed(2)
    return algorithm


def data() -> rl.Transitions:
    g = torch.Generator().manual_seed(3)
    obs, next_obs = torch.randn(2, SIZE, 2, generator=g)
    reward = torch.randn(SIZE, generator=g)
    return batches.transitions(obs, torch.rand(SIZE, 1, generator=g), reward, next_obs=next_obs)


def test_defaults() -> None:
    params = rl.FlashSACParams()
    for rate in (params.lr, params.critic_lr):
        assert [rate(progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx([3e-4, 2.25e-4, 1.5e-4])  # type: ignore[operator]  # a schedule
    # log(2 pi e 0.15^2) / 2 for the only action.
    assert make().target_entropy == pytest.approx(-0.478181, abs=1e-6)
    assert make(target_entropy=-3.0).target_entropy == -3.0


def test_the_new_actor_chooses_the_next_actions() -> None:
    algorithm, batch = make(actor_update_interval=1, lr=0.1), data()
    asked: list[Any] = []
    algorithm.critic.register_forward_pre_hook(lambda _, args: asked.append((args[1].detach(), args[2:])))
    noise = algorithm.sample_noise(batch)
    algorithm.gradient_step(batch, noise)
    (_, of_actor), (action, of_critics) = asked
    assert (of_actor, of_critics) == ((), (None, True))  # the actor climbs critics with running statistics
    with torch.no_grad():
        expected = algorithm.policy.distribution(batch.next_obs).rsample(noise.next_action)[0]
    assert torch.equal(action, torch.cat([batch.action, expected]))


def test_the_actor_learns_with_statistics_of_both_observations() -> None:
    algorithm, batch = make(), data()
    normal = algorithm.actor_distribution(batch)
    both = algorithm.policy.distribution(torch.cat([batch.obs, batch.next_obs]), True)
    assert torch.equal(normal.mean, both.mean[:SIZE])
    assert torch.equal(normal.log_std, both.log_std[:SIZE])


def test_the_loss_is_a_mean_over_critics() -> None:
    algorithm, batch = make(), data()
    noise = algorithm.sample_noise(batch)
    loss, error = algorithm.critic_step(batch, noise)
    assert float(loss.detach()) == pytest.approx(float(error.mean()))
    of_sum = CategoricalSAC.critic_step(algorithm, batch, noise)[0]
    assert float(of_sum.detach()) == pytest.approx(2 * float(loss.detach()))


def test_all_lengths_are_kept_after_any_step() -> None:
    algorithm, batch = make(lr=0.1, critic_lr=0.1), data()
    metrics = [algorithm.update(batch).metrics for _ in range(4)]
    assert ["actor_loss" in each for each in metrics] == [False, True, False, True]  # every second step
    passes = [int(part.num_passes) for part in algorithm.policy.modules() if isinstance(part, BatchNorm)]
    assert passes == [2] * 5 + [4] * 5  # of the actor, then of the critics
    squares = []
    for part in algorithm.policy.modules():
        if isinstance(part, UnitLinear):
            squares.append(part.weight.square().sum(-1))
        elif isinstance(part, UnitBatchNorm):
            squares.append((part.weight.square() + part.bias.square()).mean(-1))
        elif isinstance(part, UnitRMSNorm):
            squares.append(part.weight.square().mean(-1))
    assert len(squares) == (7 + 6) + (5 + 5) + (1 + 1)  # rows, pairs and weights, each of actor and critics
    for each in squares:
        torch.testing.assert_close(each, torch.ones_like(each), rtol=0, atol=2e-6)
