"""PPO: what it tells of an update."""

import math

import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms import OnPolicyBatch
from rltrainer.algorithms.policy_gradient.a2c import PolicyStep
from tests.batches import collected
from tests.fakes import counting_envs, tiny_actor_critic


def make(**params: object) -> rl.PPO:
    rl.seed(1)
    return rl.PPO(tiny_actor_critic(counting_envs()), rl.PPOParams(**params))  # type: ignore[arg-type]


def samples(log_prob: list[float], weight: list[float]) -> OnPolicyBatch:
    x = torch.zeros(len(weight))
    return OnPolicyBatch(x, x, x, x, x, torch.tensor(log_prob), torch.tensor(weight))


def measured(ppo: rl.PPO, log_prob: torch.Tensor, batch: OnPolicyBatch) -> dict[str, torch.Tensor]:
    """Return the metrics [1] of one gradient step."""
    step = ppo.step_result({}, log_prob, batch)
    assert isinstance(step, PolicyStep)
    return ppo.policy_change(step.log_ratio.unsqueeze(0), step.weight.unsqueeze(0))


def test_kl_and_clip_fraction_by_hand() -> None:
    # Ratios 1, 2 and 1 / 2; the fourth cell is padding.
    new = torch.tensor([0.5, math.log(2.0), -math.log(2.0), 7.0])
    change = measured(make(clip=0.6), new, samples([0.5, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]))
    # (0 + (1 - log 2) + (-1 / 2 + log 2)) / 3, and one of three ratios is outside [0.4, 1.6].
    assert change["approx_kl"].tolist() == [pytest.approx(0.5 / 3)]
    assert change["clip_fraction"].tolist() == [pytest.approx(1 / 3)]


def test_each_step_has_a_divergence_of_its_own() -> None:
    # Two steps of two samples each: ratios 1 and 2, and 1 and 1.
    log_ratio = torch.tensor([[0.0, math.log(2.0)], [0.0, 0.0]])
    change = make(clip=0.2).policy_change(log_ratio, torch.ones(2, 2))
    assert change["approx_kl"].tolist() == [pytest.approx((1 - math.log(2.0)) / 2), 0.0]
    assert change["clip_fraction"].tolist() == [0.5, 0.0]


def test_minibatches_of_two_sizes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ppo = make()
    monkeypatch.setattr(
        ppo, "batches", lambda s, *_: iter([s.flatten(), s.map(lambda x: x[:4]).flatten(), s.flatten()])
    )
    result = ppo.update(collected(ppo.policy, counting_envs(), 8), batch_size=None, repeat=1)
    assert result.num_gradient_steps == 3
    assert {"approx_kl", "clip_fraction"} <= set(result.metrics)
    assert result.counts == {}


def test_a_small_change_is_not_lost_in_rounding() -> None:
    # k3 is about x ** 2 / 2; exp(x) - 1 - x in float32 would be anything from -1e-7 to 1e-7.
    change = measured(make(), torch.full((64,), 1e-4), samples([0.0] * 64, [1.0] * 64))
    assert change["approx_kl"].item() == pytest.approx(5e-9, rel=1e-3)


def test_explained_variance_is_of_the_values_before_the_update() -> None:
    ppo = make(lr=0.1)
    data = collected(ppo.policy, counting_envs(), 8)
    with torch.no_grad():
        before = ppo.process(data)
    error = (before.return_ - before.value).var(correction=0)
    expected = 1 - error / before.return_.var(correction=0)
    result = ppo.update(data, batch_size=5, repeat=3)
    assert result.floats()["explained_variance"] == pytest.approx(float(expected), rel=1e-5)
    assert result.counts == {}
