"""REINFORCE: returns and loss by hand."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms import OnPolicyBatch
from rltrainer.nets.normalizer import warn_once
from tests import batches

OBS = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
TWO = gym.spaces.Discrete(2)


def make(**params: Any) -> rl.REINFORCE:
    return rl.REINFORCE(rl.Actor(OBS, TWO, hidden_sizes=()), rl.REINFORCEParams(gamma=0.9, **params))


def rollout(rewards: list[float], truncated: int | None = None, invalid: int | None = None) -> rl.Rollout:
    """Return what one env did; it terminates in the last row."""
    num, none = len(rewards), torch.zeros(len(rewards), 1, dtype=torch.bool)
    ends = {name: none.clone() for name in ("terminated", "truncated", "valid")}
    ends["terminated"][-1] = True
    ends["valid"][:] = True
    if truncated is not None:
        ends["truncated"][truncated] = True
    if invalid is not None:
        ends["valid"][invalid] = False
    at = [num - 1] if truncated is None else [truncated, num - 1]
    final = {"final_obs": torch.zeros(len(at), 1), "final_index": torch.tensor(at)}
    return batches.rollout(
        torch.zeros(num, 1, 1), none.long(), torch.tensor(rewards).unsqueeze(1), starts=~none[0], **final, **ends
    )


def test_returns_by_hand() -> None:
    # 1 + .9 + .81, 1 + .9, 1; standardised with mean 1.87, standard deviation .855395 (of two degrees of freedom).
    for is_standardized, advantages in ((False, [2.71, 1.9, 1.0]), (True, [0.982003, 0.035072, -1.017074])):
        samples = make(standardize_return=is_standardized).process(rollout([1.0, 1.0, 1.0]))
        assert samples.return_.flatten().tolist() == pytest.approx([2.71, 1.9, 1.0])
        assert samples.advantage.flatten().tolist() == pytest.approx(advantages, abs=1e-5)


def test_a_return_ends_where_its_trace_does() -> None:
    truncated = make(standardize_return=False).process(rollout([1.0, 1.0, 1.0, 1.0], truncated=1))
    assert truncated.return_.flatten().tolist() == pytest.approx([1.9, 1.0, 1.9, 1.0])
    # What an env did in the step of its reset is nobody's return.
    reset = make(standardize_return=False).process(rollout([1.0, 1.0, 50.0, 1.0], truncated=1, invalid=2))
    assert reset.return_.flatten()[:2].tolist() == pytest.approx([1.9, 1.0])
    assert reset.weight.flatten().tolist() == [1.0, 1.0, 0.0, 1.0]


def test_returns_that_a_rollout_cuts_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    whole, cut, past = (rollout([1.0, 1.0, 1.0], truncated=0, invalid=invalid) for invalid in (None, None, 2))
    for data in (cut, past):  # past its quota an env acts, and does not count
        data.final_index, data.final_obs = data.final_index[:1], data.final_obs[:1]
        data.terminated[-1] = False
    for data in (whole, past):
        make().process(data)
    assert caplog.messages == []
    for _ in range(2):
        make().process(cut)
    assert len(caplog.messages) == 1
    assert "collection_step_num_episodes" in caplog.text


def test_the_loss_by_hand() -> None:
    # Probabilities e^-.5, e^-1, e^-.2 of what was done: (2.71 * .5 + 1.9 * 1 + 1 * .2) / 3; padding is nothing.
    algorithm = make()
    log_prob = torch.tensor([-0.5, -1.0, -0.2, -9.0])
    logits = torch.stack([log_prob, (-log_prob.expm1()).log()], 1).requires_grad_()
    algorithm.policy.distribution = lambda obs: rl.nets.distributions.Categorical(logits)  # type: ignore[attr-defined]
    algorithm.optimizer.step = lambda loss: None  # type: ignore[method-assign, misc]
    return_, one = torch.tensor([2.71, 1.9, 1.0, 7.0]), torch.ones(4)
    batch = OnPolicyBatch(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), return_, return_, one, one, one)
    batch.weight = torch.tensor([1.0, 1.0, 1.0, 0.0])
    assert algorithm.gradient_step(batch).floats()["loss"] == pytest.approx(1.151667, abs=1e-6)


def test_only_the_actor_is_trained() -> None:
    policy = rl.ActorCritic(OBS, TWO, hidden_sizes=())
    before = [p.detach().clone() for p in policy.critic.parameters()]
    data = rollout([1.0, 0.0, 1.0])
    data.action[1] = 1
    rl.REINFORCE(policy).update(data, None, 1)
    assert all(torch.equal(p, q) for p, q in zip(policy.critic.parameters(), before, strict=True))
    assert float(policy.actor[2].linear.bias.detach().abs().sum()) > 0
