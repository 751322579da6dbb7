"""PPO's `target_kl`: an update step ends before the first minibatch that is too far from the old policy."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from tests import batches
from tests.unit.execution.test_cuda_graph import Rerun, with_graph

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
TWO = gym.spaces.Discrete(2)


class Notes(rl.PPO):
    """Remembers the divergence that each gradient step sees."""

    def policy_change(self, log_ratio: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        change = super().policy_change(log_ratio, weight)
        vars(self).setdefault("seen", []).extend(change["approx_kl"].tolist())
        return change


def make(cls: Any = rl.PPO, target_kl: float | None = None, lr: float = 0.01, optimizer: Any = None) -> Any:
    rl.seed(1)
    policy = rl.ActorCritic(OBS, TWO, hidden_sizes=(8,))
    algorithm = cls(policy, rl.PPOParams(lr=lr, target_kl=target_kl, optimizer=optimizer))
    algorithm.seed(2)
    return algorithm


def rollout(seed: int = 0) -> rl.Rollout:
    g = torch.Generator().manual_seed(seed)
    obs, action = torch.randn(16, 4, 3, generator=g), torch.randint(0, 2, (16, 4), generator=g)
    reward = torch.randn(16, 4, generator=g)
    return batches.rollout(obs, action, reward, last_obs=torch.randn(4, 3, generator=g))


def weights(algorithm: rl.PPO) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.policy.parameters()])


def first_above(seen: list[float], limit: float) -> int:
    return next((i for i, kl in enumerate(seen) if kl > limit), len(seen))


def test_the_update_ends_before_the_first_step_that_is_too_far() -> None:
    free = make(Notes)
    free.update(rollout(), 16, 5)
    seen = free.seen
    target = sorted(seen)[10] / 1.5
    num_taken = first_above(seen, 1.5 * target)
    assert 2 < num_taken < 20, "else nothing is tested"
    bound = make(Notes, target)
    result = bound.update(rollout(), 16, 5)
    assert bound.seen == seen[:num_taken]
    assert result.num_gradient_steps == num_taken
    assert result.floats()["approx_kl"] == pytest.approx(np.mean(seen[:num_taken]), rel=1e-5)
    assert set(result.metrics) == set(free.update(rollout(), 16, 1).metrics)
    # The steps that were taken are those of an update without the bound.
    short = make()
    short.update_step_left = num_taken
    short.continues = lambda: _counted(short)
    short.update(rollout(), 16, 5)
    assert torch.equal(weights(short), weights(bound))


def _counted(algorithm: rl.PPO) -> bool:
    algorithm.update_step_left -= 1
    return bool(algorithm.update_step_left >= 0)


def test_who_listens_hears_of_steps_that_are_taken_only() -> None:
    free, heard = make(target_kl=2e-3), make(target_kl=2e-3)
    losses, after = list[torch.Tensor](), list[rl.UpdateResult]()

    def on_loss(name: str, loss: torch.Tensor, step: object) -> None:
        losses.append(loss)

    callbacks = rl.UpdateCallbacks(on_loss=on_loss, after=lambda batch, result: after.append(result))
    heard.attach(rl.UpdatePlan(callbacks=callbacks))
    num_taken = free.update(rollout(), 16, 5).num_gradient_steps
    assert heard.update(rollout(), 16, 5).num_gradient_steps == num_taken < 20
    assert len(losses) == len(after) == num_taken
    assert torch.equal(weights(free), weights(heard))


@pytest.mark.parametrize("optimizer", [None, lambda p: torch.optim.Adam(p)])
def test_any_optimizer_stops_and_begins_anew_in_the_next_update(optimizer: Any) -> None:
    algorithm = make(target_kl=1e-4, lr=0.05, optimizer=optimizer)
    for seed in range(3):
        assert 1 <= algorithm.update(rollout(seed), 16, 5).num_gradient_steps < 20


def test_a_far_bound_changes_no_bit() -> None:
    free, bound = make(), make(target_kl=1e6)
    for seed in range(3):
        assert free.update(rollout(seed), 16, 5).floats() == bound.update(rollout(seed), 16, 5).floats()
    assert torch.equal(weights(free), weights(bound))


def test_steps_that_were_recorded_ahead_are_not_taken() -> None:
    """As a CUDA graph, up to 32 steps are asked for before the first is taken."""
    eager, recorded = make(target_kl=2e-3), with_graph(make(target_kl=2e-3), Rerun())
    for seed in range(3):
        one, other = eager.update(rollout(seed), 16, 5), recorded.update(rollout(seed), 16, 5)
        assert 1 <= one.num_gradient_steps == other.num_gradient_steps < 20
        assert one.floats() == other.floats()
    assert torch.equal(weights(eager), weights(recorded))


def test_processes_decide_alike_by_the_mean_of_their_divergences() -> None:
    algorithm = make(target_kl=1e-6, lr=0.05)
    algorithm.attach(rl.UpdatePlan(all_reduce=lambda x: x if x.dim() else x * 0))  # the others are all near
    assert algorithm.update(rollout(), 16, 5).num_gradient_steps == 20


def test_a_fault_is_told_although_its_divergence_is_no_number() -> None:
    algorithm = make(target_kl=1e-3)
    data = rollout()
    data.obs[3] = torch.nan
    with pytest.raises(rl.errors.NonFiniteError, match="is not finite"):
        algorithm.update(data, None, 1)
