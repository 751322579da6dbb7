"""A2C: what a rollout means to it."""

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.algorithms import OnPolicyBatch
from tests.fakes import OBS_SPACE


def test_a_cut_inside_a_rollout_ends_the_trace_and_bootstraps_from_what_came_before_it() -> None:
    policy = rl.ActorCritic(OBS_SPACE, rl.make_vec("CartPole-v1", 1).single_action_space, hidden_sizes=())
    algorithm = rl.A2C(policy, rl.A2CParams(gamma=0.5, gae_lambda=1.0))
    buffer = rl.RolloutBuffer(3, 1, policy.observation_space, policy.action_space)
    no = np.zeros(1, np.bool_)

    def add(obs: float, reward: float, next_obs: float) -> None:
        here, after = (np.full((1, *OBS_SPACE.shape), x, np.float32) for x in (obs, next_obs))
        buffer.add(here, np.zeros(1, np.int64), np.full(1, reward, np.float32), after, no, no)

    add(0.0, 1.0, 1.0)
    buffer.end_trajectory()
    add(5.0, 2.0, 6.0)
    with torch.no_grad():
        samples = algorithm.process(buffer.rollout())
        value = policy.value(torch.tensor([[1.0], [6.0]]).expand(2, *OBS_SPACE.shape))
    # Without the boundary, the first return would be 1 + 0.5 * (2 + 0.5 * V(6)).
    torch.testing.assert_close(samples.return_.squeeze(1), torch.tensor([1.0, 2.0]) + 0.5 * value)


def test_rms_prop_is_the_references_optimizer() -> None:
    policy = rl.ActorCritic(OBS_SPACE, rl.make_vec("CartPole-v1", 1).single_action_space, hidden_sizes=(4,))
    algorithm = rl.A2C(policy, rl.A2CParams(lr=0.5, max_grad_norm=None, optimizer=rl.rms_prop))
    weight = policy.critic[-1].bias
    before = float(weight.detach())
    nothing = 0 * sum(p.sum() for p in policy.parameters())
    algorithm.optimizer.step(policy.value(torch.ones(1, *OBS_SPACE.shape)).sum() + nothing)
    # The gradient of the bias is 1: its square's average is 0.01, and the step lr * 1 / (0.1 + 1e-5).
    assert float(weight.detach()) - before == pytest.approx(-0.5 / (0.1 + 1e-5))


def test_the_entropy_bonus_follows_its_schedule() -> None:
    policy = rl.ActorCritic(OBS_SPACE, rl.make_vec("CartPole-v1", 1).single_action_space, hidden_sizes=(4,))
    algorithm = rl.A2C(policy, rl.A2CParams(entropy_coef=rl.LinearSchedule(0.1, 0.0)))
    progress = [0.0]
    algorithm.attach(rl.UpdatePlan(progress=lambda: progress[0]))
    cells = torch.zeros(4)
    columns = [cells.unsqueeze(0)] * 4
    samples = OnPolicyBatch(torch.zeros(1, 4, 2), cells.long().unsqueeze(0), *columns, torch.ones(1, 4))
    for progress[0], coef in ((0.0, 0.1), (0.75, 0.025), (1.0, 0.0)):
        algorithm._begin_update()
        metrics = algorithm.gradient_step(samples.flatten()).floats()
        bonus = metrics["policy_loss"] + 0.5 * metrics["value_loss"] - metrics["loss"]
        assert bonus == pytest.approx(coef * metrics["entropy"], abs=1e-6)
