"""How a collector asks its policy: in eval mode, for the sample, and what it says where there is no choice."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.errors import NonFiniteError
from tests.fakes import CountingEnv, counting_envs, replay_of, rollouts_of, tiny_actor_critic

BOX = gym.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32))


def modes(policy: nn.Module) -> list[bool]:
    return [module.training for module in policy.modules()]


def test_batch_norms_do_not_move_and_dropout_is_off_while_collecting() -> None:
    envs = counting_envs(4)
    policy = tiny_actor_critic(envs, activation=nn.BatchNorm1d)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    one = rl.Collector(policy, envs, rollouts_of(envs, 10))
    for counts in ({"num_steps": 4}, {"num_steps": 20}, {"num_episodes": 3}):
        one.collect(**counts)
    assert all(torch.equal(value, before[name]) for name, value in policy.state_dict().items())
    other = rl.QNetwork.for_envs(envs, hidden_sizes=(64,), activation=lambda: nn.Dropout(0.5))
    one = rl.Collector(other, envs, replay_of(envs, 1000))
    one.collect(num_steps=80)
    other.eval()
    assert torch.equal(one.rollout().action.flatten(), other.act(one.rollout().obs.flatten(0, 1)))


@pytest.mark.parametrize("counts", [{"num_steps": 2}, {"num_episodes": 2}])
def test_every_module_gets_its_own_mode_back_after_an_exception_too(counts: dict[str, int]) -> None:
    class Fails(CountingEnv):
        fails = False

        def step(self, action: Any) -> Any:
            if self.fails:
                raise RuntimeError("broken")
            return super().step(action)

    envs = rl.make_vec(Fails, 2, backend="sync")
    policy = tiny_actor_critic(envs, activation=lambda: nn.Dropout(0.5))
    policy.actor.eval()  # the user's choice, to be kept
    before = modes(policy)
    one = rl.Collector(policy, envs)
    one.collect(**counts)
    assert modes(policy) == before
    Fails.fails = True
    with pytest.raises(rl.errors.EnvError, match="broken"):
        one.collect(**counts)
    assert modes(policy) == before
    Fails.fails = False
    policy.eval()
    one.collect(**counts)
    assert not any(modes(policy))


def test_a_layer_that_is_put_in_later_is_seen() -> None:
    envs = counting_envs(2)
    policy = tiny_actor_critic(envs)
    one = rl.Collector(policy, envs, replay_of(envs, 1000))
    one.collect(num_steps=2)
    seen: list[bool] = []

    class Noticing(nn.Tanh):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(self.training)
            return super().forward(x)

    policy.actor[1].activations[0] = Noticing()
    one.collect(num_steps=2)
    assert seen == [False]
    assert policy.actor[1].activations[0].training


def test_a_rollout_keeps_the_sample_and_the_env_gets_what_act_would_return() -> None:
    received: list[Any] = []

    class Remembers(CountingEnv):
        def step(self, action: Any) -> Any:
            received.append(action)
            return super().step(action)

    envs = rl.make_vec(lambda: Remembers(action_space=BOX), 1, backend="sync", seed=1)
    policy = tiny_actor_critic(envs)
    one = rl.Collector(policy, envs, rollouts_of(envs, 10))
    one.seed(3)
    one.collect(num_steps=20)
    sample = one.rollout().action[:, 0]
    assert ((sample < torch.tensor(BOX.low)) | (sample > torch.tensor(BOX.high))).any()
    assert np.array_equal(np.stack(received), sample.numpy().clip(BOX.low, BOX.high))


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("cls", [rl.ActorCritic, rl.QNetwork])
def test_a_choice_between_nan_is_an_error_that_says_where(cls: Any, explore: bool) -> None:
    """Without a buffer too, as in test steps; the observation is finite, so that the weights are to blame."""
    envs = counting_envs(2)
    policy = cls.for_envs(envs, hidden_sizes=(8,))
    one = rl.Collector(policy, envs)
    one.collect(num_steps=6)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(torch.nan)
    text = (
        rf"{cls.__name__}, step 4: no choice can be made in row 0 of the batch: its logits or action values are \[nan"
    )
    with pytest.raises(NonFiniteError, match=text):
        one.collect(num_steps=2, explore=explore)
