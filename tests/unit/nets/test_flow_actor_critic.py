"""The flow by hand, and chunks that are played without looking."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rltrainer as rl
from tests.batches import generator
from tests.fakes import OBS_SPACE, counting_envs, replay_of

BOX = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
N = 3


def make(chunk_length: int = 3, **options: Any) -> Any:
    rl.seed(1)
    return rl.FlowActorCritic.for_spaces(OBS_SPACE, BOX, chunk_length=chunk_length, hidden_sizes=(8,), **options)


class Counting(nn.Module):
    """Makes the chunk c, c + .01, c + .02, where c is a tenth of the observation's second number."""

    def forward(self, obs: Tensor, z: Tensor) -> Tensor:
        return obs[:, 1:] / 10 + torch.arange(z.shape[1]) / 100 + z


def test_euler_steps_by_hand() -> None:
    policy = make(1)
    policy.flow.velocity = lambda features, x, time: -x
    # Ten steps of x -= x / 10 from 1: .9 ** 10.
    assert policy.flow_chunk(torch.zeros(1, 2), torch.ones(1, 1), 10).tolist() == [[pytest.approx(0.348678, abs=1e-6)]]
    policy.flow.velocity = lambda features, x, time: time
    assert policy.flow_chunk(torch.zeros(1, 2), torch.zeros(1, 1), 4).item() == pytest.approx((0 + 1 + 2 + 3) / 16)
    policy.flow.velocity = lambda features, x, time: torch.full_like(x, -9.0)
    assert policy.flow_chunk(torch.zeros(1, 2), torch.zeros(1, 1), 1).item() == -1


def test_a_chunk_is_played_to_its_end_whatever_is_seen() -> None:
    """Envs of 5 steps with chunks of 3, so that the second chunk of an episode is dropped after two actions."""
    envs = counting_envs(action_space=BOX)
    policy = make()
    policy.actor = Counting()
    buffer = replay_of(envs)
    rl.Collector(policy, envs, buffer).collect(num_episodes=4, explore=False)
    drawn = buffer.sample_sequences(50, 1)
    step = drawn.obs[0, :, 1].round()
    start = torch.where(step < 3, 0.0, 3.0)
    torch.testing.assert_close(drawn.action[0, :, 0], 2 * (start / 10 + (step - start) / 100))


def test_greedy_actions_take_no_noise_and_others_draw_it_for_each_env() -> None:
    policy, obs = make(), torch.zeros(N, 2)
    policy.actor = Counting()
    state = policy.initial_state(N)
    assert policy.act(obs, state)[0].flatten().tolist() == [0.0] * N
    given = {"explore": True, "generator": generator(1)}
    drawn = torch.randn(N, 3, generator=generator(1))
    wanted = [2 * (k / 100 + drawn[:, k]).clamp(-1, 1) for k in range(3)]
    for k in range(3):
        action, state = policy.act(obs + k, state, **given)
        torch.testing.assert_close(action[:, 0], wanted[k])
        assert state[:, 0].tolist() == [2 - k] * N
    state[1, 0] = 0  # as where an episode starts: this env takes a new chunk, the others go on
    state[[0, 2], 0] = 1
    after = policy.act(obs + 5, state)[0][:, 0]
    assert after[1] == pytest.approx(1.0)
    torch.testing.assert_close(after[[0, 2]], wanted[0][[0, 2]])


def test_the_memory_is_there_with_chunks_only() -> None:
    one, chunks = make(1), make(2, num_critics=4)
    assert (one.is_recurrent, one.initial_state(N), chunks.is_recurrent) == (False, None, True)
    assert chunks.initial_state(N).shape == (N, 1 + 2)
    assert chunks.critic(torch.zeros(N, 2), torch.zeros(N, 2)).shape == (4, N)
    first, state = chunks.predict([0.0, 1.0])
    second, state = chunks.predict([5.0, 9.0], state)
    assert (first.shape, second.shape, state.tolist()[0]) == ((1,), (1,), 0.0)
    assert chunks.predict([5.0, 9.0], state)[0] == chunks.predict([5.0, 9.0])[0]
