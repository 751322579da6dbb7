"""The actor-critic with memory: sequences are steps one by one, and what its options mean."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError

OBS = gym.spaces.Dict(mode=gym.spaces.Discrete(3), position=gym.spaces.Box(-1.0, 1.0, (2,), np.float32))
TWO = gym.spaces.Discrete(2)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
KINDS = [{"cell": cell, "share_cell": share} for cell in ("gru", "lstm") for share in (False, True)]
L, N = 9, 4


def make(action_space: Any = TWO, **options: Any) -> rl.RecurrentActorCritic:
    torch.manual_seed(0)
    return rl.RecurrentActorCritic(OBS, action_space, hidden_sizes=(8,), cell_size=6, **options)


def sequence() -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(1)
    begins = torch.zeros(L, N, dtype=torch.bool)
    begins[4, 1] = begins[4, 2] = begins[8, 2] = True
    obs = {"mode": torch.randint(0, 3, (L, N), generator=g), "position": torch.randn(L, N, 2, generator=g)}
    return obs, begins


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("action_space", [TWO, BOX], ids=["choices", "box"])
@torch.no_grad()
def test_a_sequence_is_its_steps_one_by_one(options: dict[str, Any], action_space: Any) -> None:
    policy, (obs, begins) = make(action_space, **options), sequence()
    state = torch.randn(N, policy.initial_state(1).shape[1], generator=torch.Generator().manual_seed(2))
    flat = {key: leaf.flatten(0, 1) for key, leaf in obs.items()}
    whole = policy.next_state(flat, state, begins)
    mode, value = policy.distribution(whole).mode().view(L, N, -1), policy.value(whole).view(L, N)
    for t in range(L):
        state = torch.where(begins[t].unsqueeze(1), policy.initial_state(N), state)
        row = {key: leaf[t] for key, leaf in obs.items()}
        action, state = policy.act(row, state)
        torch.testing.assert_close(action.view(N, -1), mode[t].to(action.dtype), rtol=0, atol=1e-6)
        torch.testing.assert_close(state, whole.view(L, N, -1)[t], rtol=0, atol=1e-6)
        torch.testing.assert_close(policy.value(state), value[t], rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", KINDS)
@torch.no_grad()
def test_memory_makes_a_difference_until_an_episode_begins(options: dict[str, Any]) -> None:
    policy, (obs, begins) = make(**options), sequence()
    flat = {key: leaf.flatten(0, 1) for key, leaf in obs.items()}
    nothing = policy.initial_state(N)
    one, other = (policy.next_state(flat, memory, begins).view(L, N, -1) for memory in (nothing, nothing + 0.5))
    same = (one == other).all(-1)
    assert same.tolist() == [[False, t >= 4, t >= 4, False] for t in range(L)]


@pytest.mark.parametrize(
    ("options", "num_memories", "size"),
    [
        ({"cell": "gru"}, 2, 12),
        ({"cell": "lstm"}, 2, 24),
        ({"cell": "gru", "share_cell": True}, 1, 6),
        ({"cell": "lstm", "share_cell": True}, 1, 12),
    ],
)
def test_what_is_remembered(options: dict[str, Any], num_memories: int, size: int) -> None:
    policy = make(**options)
    assert policy.initial_state(3).tolist() == [[0.0] * size] * 3
    assert policy.columns["state"] == ((size,), torch.float32)
    assert len({id(part) for part in (policy.actor_memory, policy.critic_memory)}) == num_memories
    obs = {"mode": torch.zeros(1, dtype=torch.int64), "position": torch.ones(1, 2)}
    policy.value(policy.next_state(obs, policy.initial_state(1))).sum().backward()
    reached = [bool(parameter.grad.any()) for parameter in policy.actor_memory.cell.of_input.parameters()]  # type: ignore[union-attr]
    assert set(reached) == {num_memories == 1}


def test_it_starts_near_uniform() -> None:
    policy, (obs, begins) = make(), sequence()
    flat = {key: leaf.flatten(0, 1) for key, leaf in obs.items()}
    entropy = policy.distribution(policy.next_state(flat, policy.initial_state(N), begins)).entropy()
    assert entropy.min() > 0.999 * np.log(2)


def test_normalised_observations_are_remembered() -> None:
    policy, (obs, _) = make(normalize_obs=True), sequence()
    assert policy.obs_normalizer is not None
    policy.obs_normalizer.update({"mode": obs["mode"][:, 0], "position": obs["position"][:, 0] * 9 + 5})
    row = {key: leaf[0] for key, leaf in obs.items()}
    _, state = policy.act(row, policy.initial_state(N))
    with torch.no_grad():
        expected = policy.next_state(policy.normalize(row), policy.initial_state(N))
    assert torch.equal(state, expected)


def test_a_saved_policy_goes_on_with_the_same_memory(tmp_path: Path) -> None:
    policy, (obs, _) = make(cell="lstm", normalize_obs=True), sequence()
    policy.save(tmp_path / "policy.safetensors")
    again = rl.load_policy(tmp_path / "policy.safetensors")
    row = {key: leaf[0] for key, leaf in obs.items()}
    state = policy.initial_state(N) + 0.25
    for one, other in zip(policy.act(row, state), again.act(row, state), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cell": "rnn"}, r"RecurrentActorCritic.cell: must be one of 'gru', 'lstm'; got 'rnn'"),
        ({"cell_size": 0}, r"RecurrentActorCritic.cell_size: must be a positive integer; got 0"),
        ({"share_cell": 1}, r"RecurrentActorCritic.share_cell: must be .*; got 1"),
        ({"normalize_reward": "yes"}, r"RecurrentActorCritic.normalize_reward: must be"),
    ],
)
def test_an_option_that_breaks_its_rule_is_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamsError, match=text):
        rl.RecurrentActorCritic(OBS, TWO, **options)


def test_spaces_that_it_cannot_act_in_are_named() -> None:
    with pytest.raises(SpaceError, match="RecurrentActorCritic.action_space"):
        rl.RecurrentActorCritic(OBS, gym.spaces.Box(-1.0, 1.0, (2, 2)))


@pytest.mark.parametrize("algorithm", [rl.PPO, rl.A2C, rl.IMPALA, rl.TRPO, rl.REINFORCE, rl.DQN, rl.SAC, rl.BC])
def test_algorithms_without_memory_refuse_it(algorithm: Any) -> None:
    with pytest.raises(ParamsError, match=rf"^{algorithm.__name__}.policy: must .*; got RecurrentActorCritic"):
        algorithm(make())


def test_a_memory_is_asked_for() -> None:
    policy, (obs, _) = make(), sequence()
    with pytest.raises(ParamsError, match="RecurrentActorCritic.act: must be given a state; got None"):
        policy.act({key: leaf[0] for key, leaf in obs.items()})
