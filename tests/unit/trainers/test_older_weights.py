"""On-policy data of older weights: who corrects for it is told how likely it was then, and who does not is named."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from benchmarks.one_update_old import OneUpdateOld
from rltrainer.errors import ParamsError
from tests.fakes import counting_envs, rollouts_of

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
POLICIES: dict[Any, Any] = {
    rl.PPO: rl.ActorCritic, rl.RecurrentPPO: rl.RecurrentActorCritic, rl.IMPALA: rl.ActorCritic,
    rl.A2C: rl.ActorCritic, rl.TRPO: rl.ActorCritic, rl.REINFORCE: rl.Actor,
}  # fmt: skip


def trainer(algorithm: Any, kind: Any = OneUpdateOld, buffer: Any = None) -> Any:
    rl.seed(1)
    envs = counting_envs(2, action_space=BOX)
    agent = algorithm(POLICIES[algorithm].for_envs(envs, hidden_sizes=(8,)), algorithm.params_class(lr=0.05))
    params = rl.OnPolicyTrainerParams(
        training_collector=kind(agent.policy, envs, buffer), max_epochs=1, epoch_num_steps=64,
        collection_step_num_env_steps=16, batch_size=8, verbose=False, show_progress=False, seed=1,
    )  # fmt: skip
    return rl.OnPolicyTrainer(agent, params)


def test_the_policy_itself_does_not_lag() -> None:
    one = trainer(rl.PPO, rl.Collector)
    assert not one.params.training_collector.has_stale_data
    assert one.params.training_collector.buffer.extra == {}


@pytest.mark.parametrize("algorithm", [rl.PPO, rl.RecurrentPPO, rl.IMPALA])
def test_a_buffer_is_told_the_probabilities_then_and_whose_they_are(algorithm: Any, caplog: Any) -> None:
    one = trainer(algorithm)
    assert one.params.training_collector.has_stale_data
    assert set(one.params.training_collector.buffer.extra) == {"log_prob", "version", *algorithm.columns}
    assert caplog.messages == []
    one.run()


@pytest.mark.parametrize("algorithm", [rl.PPO, rl.RecurrentPPO])
def test_ppo_begins_from_the_policy_that_acted(algorithm: Any) -> None:
    """Its ratio of probabilities is to those of the older weights, which its own no longer give."""
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    class Watching(algorithm):  # type: ignore[misc]  # either class
        def process(self, rollout: rl.Rollout) -> rl.OnPolicyBatch:
            samples: rl.OnPolicyBatch = super().process(rollout)
            others = copy.copy(rollout)
            others.extra = {name: column for name, column in rollout.extra.items() if name != "log_prob"}
            seen.append((samples.log_prob.clone(), rollout.extra["log_prob"].clone(), super().process(others).log_prob))
            return samples

    POLICIES[Watching] = POLICIES[algorithm]
    trainer(Watching).run()
    assert len(seen) == 4
    for log_prob, then, _ in seen:
        assert torch.equal(log_prob, then)
    torch.testing.assert_close(seen[0][1], seen[0][2])  # nothing has been learned yet
    for _, then, now in seen[1:]:
        assert (now - then).abs().mean() > 0.01


def test_a_buffer_that_tells_no_probabilities_is_refused() -> None:
    envs = counting_envs(2, action_space=BOX)
    text = (
        r"^OnPolicyTrainerParams.training_collector: must have the column 'log_prob', which PPO reads; got \[\]. "
        r"Make the buffer with extra={'log_prob': \(\(\), torch.float32\)}\.$"
    )
    with pytest.raises(ParamsError, match=text):
        trainer(rl.PPO, buffer=rollouts_of(envs, 8))
    trainer(rl.PPO, rl.Collector, rollouts_of(envs, 8))
    trainer(rl.PPO, buffer=rollouts_of(envs, 8, extra={"log_prob": ((), torch.float32)}))


@pytest.mark.parametrize("algorithm", [rl.A2C, rl.TRPO, rl.REINFORCE])
def test_an_algorithm_that_does_not_correct_for_it_is_named(algorithm: Any, caplog: Any) -> None:
    trainer(algorithm, rl.Collector)
    assert caplog.messages == []
    one = trainer(algorithm)
    (message,) = caplog.messages
    assert message == (
        f"{algorithm.__name__}: weights older than the policy's may act in training_collector, and it treats their "
        "actions as the policy's own. IMPALA and PPO correct for that."
    )
    assert set(one.params.training_collector.buffer.extra) == {"version"}
