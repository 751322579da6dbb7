"""IMPALA: V-trace on rollouts, equality with A2C where nothing is stale, and what it learns that A2C does not."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from benchmarks.one_update_old import OneUpdateOld
from tests import batches
from tests.fakes import counting_envs, tiny_actor_critic

OBS = gym.spaces.Box(-1.0, 10.0, (2,), np.float32)
TWO = gym.spaces.Discrete(2)
LOG_HALF = float(np.log(0.5))


def make(algorithm: Any = rl.IMPALA, obs_space: Any = OBS, **params: Any) -> Any:
    """Return an agent that takes both actions with probability 1/2, and whose critic says what it sees first."""
    rl.seed(1)
    policy = rl.ActorCritic(obs_space, TWO, hidden_sizes=())
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        policy.critic[2].weight[0, 0] = 1.0
    return algorithm(policy, algorithm.params_class(gamma=0.9, **params))


def rollout(ratios: list[float], ends: dict[str, int] | None = None, final: Any = 0.0, extra: Any = None) -> rl.Rollout:
    """Return rows that are worth 1, 2, 3 and then 4, with rewards 1, 0, 2, by a policy this much less likely to do so.

    Args:
        ratios: probability of the agent, 1/2, over that of the policy that acted.
        ends: the row in which the episode ends, by "terminated" or "truncated".
        final: what the observation is worth that it ends with.
    """
    none, at = torch.zeros(3, 1, dtype=torch.bool), list((ends or {}).values())
    flags = {name: none.clone() for name in ("terminated", "truncated")}
    for name, row in (ends or {}).items():
        flags[name][row] = True
    worth = torch.tensor([1.0, 2.0, 3.0, 4.0, final])
    obs = torch.stack([worth, torch.zeros(5)], 1)
    final = {"final_obs": obs[4:].expand(len(at), 2), "final_index": torch.tensor(at).long()}
    extra = {"log_prob": LOG_HALF - torch.tensor(ratios).log().unsqueeze(1), **(extra or {})}
    action, reward = torch.tensor([[0], [1], [1]]), torch.tensor([[1.0], [0.0], [2.0]])
    given = {"last_obs": obs[3:4], "starts": ~none[0], "extra": extra, **final, **flags}
    return batches.rollout(obs[:3].unsqueeze(1), action, reward, **given)


@pytest.mark.parametrize(
    ("ends", "params", "advantages", "returns"),
    [  # the numbers are those of the test of `vtrace`, where they are worked out
        (None, {}, [2.268, 3.04, 2.6], [3.268, 5.04, 5.6]),
        ({"truncated": 1}, {}, [2.025, 2.5, 2.6], [3.025, 4.5, 5.6]),  # worth as much as the final observation, 5
        ({"terminated": 1}, {}, [0.0, -2.0, 2.6], [1.0, 0.0, 5.6]),  # worth nothing more
        (None, {"rho_bar": 2.0}, [2.583, 6.08, 2.6], [3.583, 5.74, 5.6]),
    ],
)
def test_a_rollout_by_hand(ends: Any, params: Any, advantages: list[float], returns: list[float]) -> None:
    with torch.no_grad():
        samples = make(**params).process(rollout([0.5, 2.0, 1.0], ends, 5.0))
    assert samples.advantage.flatten().tolist() == pytest.approx(advantages, abs=1e-5)
    assert samples.return_.flatten().tolist() == pytest.approx(returns, abs=1e-5)


def test_the_loss_by_hand() -> None:
    # The policy's loss is -mean(A log 1/2), rho the mean of .5, 1, 1; the critic's the mean of (v - V)^2.
    algorithm = make(entropy_coef=0.0, max_grad_norm=None)
    metrics = algorithm.update(rollout([0.5, 2.0, 1.0]), None, 1).floats()
    assert metrics["policy_loss"] == pytest.approx(-LOG_HALF * (2.268 + 3.04 + 2.6) / 3, rel=1e-5)
    assert metrics["value_loss"] == pytest.approx((2.268**2 + 3.04**2 + 2.6**2) / 3, rel=1e-5)
    assert metrics["rho"] == pytest.approx(2.5 / 3)


def agent_and_collector(kind: Any) -> tuple[rl.IMPALA, Any]:
    envs = counting_envs(2)
    agent = rl.IMPALA(tiny_actor_critic(envs, normalize_obs=True, normalize_reward=True), rl.IMPALAParams(lr=0.1))
    extra = {name: agent.policy.columns[name] for name in ("log_prob", "version")}
    buffer = rl.RolloutBuffer(8, 2, envs.single_observation_space, envs.single_action_space, extra=extra)
    one = kind(agent.policy, envs, buffer)
    one.seed(3)
    return agent, one


def test_what_the_policy_of_now_has_done_is_learned_from_as_a2c_does() -> None:
    impala, one = agent_and_collector(rl.Collector)
    a2c = rl.A2C(copy.deepcopy(impala.policy), rl.A2CParams(lr=0.1, entropy_coef=0.01))
    for _ in range(5):
        one.collect(num_steps=16)
        of_impala, of_a2c = (agent.update(one.rollout(), None, 1).floats() for agent in (impala, a2c))
        assert of_impala.pop("rho") == pytest.approx(1.0, abs=1e-6)
        assert of_impala == pytest.approx(of_a2c, rel=1e-3, abs=1e-5)
    for parameter, same in zip(impala.policy.parameters(), a2c.policy.parameters(), strict=True):
        torch.testing.assert_close(parameter, same, rtol=1e-3, atol=1e-4)


def test_data_of_an_older_policy_tells_its_probabilities_and_by_whom_it_is() -> None:
    agent, one = agent_and_collector(OneUpdateOld)
    policies = []
    for step in range(4):
        policies.append(copy.deepcopy(agent.policy))
        one.sync()
        one.collect(num_steps=16)
        data = one.rollout()
        with torch.no_grad():
            then, now = (
                policy.distribution(policy.normalize(data.obs.flatten(0, 1))).log_prob(data.action.flatten())
                for policy in (policies[max(step - 1, 0)], agent.policy)
            )
        torch.testing.assert_close(data.extra["log_prob"].flatten(), then)
        assert data.extra["version"].unique().tolist() == [step + 1]
        rho = float((now - then).exp().clamp(max=1.0).mean())
        assert agent.update(data, None, 1).floats()["rho"] == pytest.approx(rho, rel=1e-5)


def detour(algorithm: Any) -> float:
    """Return what the agent earns that learned from uniformly random actions, and always from the same.

    At the first place, action 0 ends the episode with .6; action 1 leads to another one, where action 0 earns 1 and
    action 1 nothing. So the detour is worth .5 to who acts at random, and 1 to who knows what to do there.
    """
    agent = make(algorithm, entropy_coef=0.0, lr=2e-2)
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    # Three envs, two rows: action 0 twice, and the detour with either end.
    obs = torch.stack([torch.stack([first, first]), torch.stack([first, second]), torch.stack([first, second])], 1)
    terminated = torch.tensor([[True, False, False], [True, True, True]])
    data = batches.rollout(
        obs, torch.tensor([[0, 1, 1], [0, 0, 1]]), torch.tensor([[0.6, 0.0, 0.0], [0.6, 1.0, 0.0]]),
        terminated=terminated, last_obs=obs[0], final_obs=first.expand(4, 2), final_index=torch.tensor([0, 3, 4, 5]),
        starts=terminated[1], extra={"log_prob": torch.full((2, 3), LOG_HALF)},
    )  # fmt: skip
    for _ in range(300):
        agent.update(data, None, 1)
    there, choice = agent.policy.act(torch.stack([first, second])).tolist()
    return 0.6 if there == 0 else [1.0, 0.0][choice]


def test_random_data_teaches_the_best_policy_where_a2c_learns_what_random_actions_are_worth() -> None:
    assert detour(rl.IMPALA) == 1.0
    assert detour(rl.A2C) == 0.6


def test_a_trainer_has_its_collector_tell_the_probabilities() -> None:
    envs = counting_envs(2)
    algorithm = rl.IMPALA(tiny_actor_critic(envs))
    collector = rl.Collector(algorithm.policy, envs)
    params = rl.OnPolicyTrainerParams(
        training_collector=collector, max_epochs=1, epoch_num_steps=80, verbose=False, show_progress=False,
        **rl.IMPALA.recommended(envs),
    )  # fmt: skip
    result = rl.OnPolicyTrainer(algorithm, params).run()
    assert set(collector.rollout().extra) == {"log_prob"}
    assert result.epochs[-1].update.metrics["rho"] == pytest.approx(1.0, abs=1e-6)
