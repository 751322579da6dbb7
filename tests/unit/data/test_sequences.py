"""Sequences of transitions against traces that are walked step by step: burn-in, padding, first, memory."""

from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from tests.fakes import ScriptedOffPolicy, counting_envs, tiny_actor_critic
from tests.unit.collect.test_memory import Counts
from tests.unit.data.reference import ACTION, OBS, Cell, Reference, as_obs, fill, make_buffer, played
from tests.unit.data.reference import cell as of


def cell(obs: int, end: str = "") -> Cell:
    return of(obs, float(obs), end=end)


def two_traces() -> Any:
    """Return a buffer with the traces 0 1 2 3 and 10 11; the first ends in a truncation, the second goes on."""
    return fill(make_buffer(8), cell(0), cell(1), cell(2), cell(3, "u"), cell(10), cell(11))


def by_start(batch: rl.Sequences, burn_in: int) -> dict[int, Any]:
    """Return obs, weight and first by the observation at which training begins."""
    rows = {}
    for b in range(batch.reward.shape[1]):
        columns = (batch.obs[:, b, 0], batch.weight[:, b], batch.first[:, b])
        rows[int(batch.obs[burn_in, b, 0])] = tuple(column.tolist() for column in columns)
    return rows


def test_worked_by_hand() -> None:
    # Two of burn-in and three trained. Before 0 and 10 there is nothing, after 3 and 11 neither.
    batch = two_traces().sample_sequences(200, 3, 2)
    o, x = False, True
    assert by_start(batch, 2) == {
        0: ([0, 0, 0, 1, 2], [0, 0, 1, 1, 1], [x, x, x, o, o]),
        1: ([0, 0, 1, 2, 3], [0, 0, 1, 1, 1], [x, x, o, o, o]),
        2: ([0, 1, 2, 3, 3], [0, 0, 1, 1, 0], [x, o, o, o, o]),
        3: ([1, 2, 3, 3, 3], [0, 0, 1, 0, 0], [o, o, o, o, o]),
        10: ([10, 10, 10, 11, 11], [0, 0, 1, 1, 0], [x, x, x, o, o]),
        11: ([10, 10, 11, 11, 11], [0, 0, 1, 0, 0], [x, x, o, o, o]),
    }
    assert batch.weight.dtype == torch.float32
    assert batch.num_axes == 2
    assert torch.equal(batch.next_obs, batch.obs + torch.tensor([1.0, -1.0]))
    assert torch.equal(batch.truncated, batch.obs[..., 0] == 3)
    assert torch.equal(batch.reward, batch.obs[..., 0])
    assert torch.equal(batch.index, torch.where(batch.obs[..., 0] > 9, batch.obs[..., 0] - 6, batch.obs[..., 0]).long())


def test_each_cell_has_its_own_n_steps() -> None:
    # From 2 and 3 the trace ends: 2 + 3 / 2 and 3; from 11 nothing newer is stored.
    batch = two_traces().sample_sequences(200, 2, n_step=2, gamma=0.5)
    rewards = {int(o): r for o, r in zip(batch.obs[0, :, 0].tolist(), batch.reward.T.tolist(), strict=True)}
    assert rewards == {0: [0.5, 2.0], 1: [2.0, 3.5], 2: [3.5, 3.0], 3: [3.0, 3.0], 10: [15.5, 11.0], 11: [11.0, 11.0]}
    assert batch.discount[0].unique().tolist() == [0.25, 0.5]


def test_several_batches_are_those_of_several_calls() -> None:
    one, other = two_traces(), two_traces()
    batches = one.sample_sequences(5, 3, 2, num_batches=4)
    assert batches.obs.shape == (4, 5, 5, 2)
    for k in range(4):
        batch = other.sample_sequences(5, 3, 2)
        for name in ("obs", "index", "weight", "first", "reward"):
            assert torch.equal(getattr(batches[k], name), getattr(batch, name)), name


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_sequences_equal_brute_force(seed: int, num_envs: int) -> None:
    buffer, reference = make_buffer(9 * num_envs, num_envs), Reference(9, num_envs)
    for step in played(buffer, reference, seed, 40):
        if step % 9 not in (4, 5):
            continue
        for length, burn_in in ((1, 0), (3, 0), (2, 3), (4, 5)):
            expected = {}
            for stream, i, begin, end in reference.spans():
                places = range(i - burn_in, i + length)
                obs = [stream[min(max(place, begin), end)].obs for place in places]
                weight = [float(i <= place <= end) for place in places]
                expected[stream[i].obs] = (obs, weight, [min(place, end) <= begin for place in places])
            assert by_start(buffer.sample_sequences(500, length, burn_in), burn_in) == expected


def test_memory_is_that_of_the_first_transition_alone() -> None:
    buffer = make_buffer(8, extra={"state": ((2,), torch.float32), "log_prob": ((), torch.float32)})
    no, row = np.array([False]), np.zeros(1)
    for i in range(5):
        values = {"state": np.array([[i, 10 * i]], np.float32), "log_prob": np.array([-i], np.float32)}
        buffer.add(as_obs([i]), row.astype(int), row, as_obs([i + 1]), no, np.array([i == 2]), values)
    batch = buffer.sample_sequences(60, 2, 1)
    assert batch.extra["state"].shape == (60, 2)
    assert torch.equal(batch.extra["state"][:, 0], batch.obs[0, :, 0])
    assert torch.equal(batch.extra["log_prob"], -batch.obs[..., 0])
    several = buffer.sample_sequences(6, 2, 1, num_batches=3)
    assert torch.equal(several.extra["state"][..., 1], 10 * several.obs[:, 0, :, 0])


def test_priorities_decide_where_training_begins() -> None:
    buffer = rl.PrioritizedReplayBuffer(8, OBS, ACTION, seed=0, alpha=1.0, beta=1.0)
    fill(buffer, cell(0), cell(1), cell(2), cell(3))
    buffer.update_priorities(torch.arange(4), torch.tensor([0.0, 1.0, 2.0, 0.0]))
    batch = buffer.sample_sequences(3, 2, 1)
    assert batch.obs[..., 0].tolist() == [[0, 1, 1], [1, 2, 2], [2, 3, 3]]
    torch.testing.assert_close(batch.weight, torch.tensor([[0.0, 0, 0], [1, 0.5, 0.5], [1, 0.5, 0.5]]))
    buffer.update_priorities(batch.index[1], torch.tensor([5.0, 6.0, 7.0]))
    assert buffer.sampler.tree.leaves[1:3].tolist() == pytest.approx([5.0, 7.0], abs=2e-6)


def test_memory_of_a_policy_is_stored_with_what_it_did() -> None:
    # The policy counts how often it was asked in an episode, which is the step that it sees.
    envs = counting_envs(2, length=4)
    policy = Counts.for_envs(envs)
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer = rl.ReplayBuffer(100, *spaces, num_envs=2, seed=0, extra={"state": policy.columns["state"]})
    collector = rl.Collector(policy, envs, buffer)
    for num_steps in (2, 10, 2, 6):
        collector.collect(num_steps=num_steps)
    batch = buffer.sample_sequences(60, 2, 2)
    step = batch.obs[..., 1]
    assert torch.equal(batch.extra["state"], torch.stack([step[0], step[0] - 1], 1))
    assert torch.equal(batch.first, step == 0)


class OverTime(ScriptedOffPolicy):
    """Learns from sequences."""

    def sample(self, buffer: rl.ReplayBuffer, batch_size: int, num_batches: int | None = None) -> rl.Transitions:
        return buffer.sample_sequences(batch_size, 3, 2, num_batches=num_batches)


@pytest.mark.parametrize("ratio", [0.1, 1.0])
def test_an_algorithm_trains_on_sequences(ratio: float) -> None:
    envs = counting_envs(2)
    algorithm = OverTime(tiny_actor_critic(envs))
    buffer = rl.ReplayBuffer(100, envs.single_observation_space, envs.single_action_space, num_envs=2)
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs, buffer), max_epochs=1, epoch_num_steps=20,
        collection_step_num_env_steps=10, batch_size=4, update_step_num_gradient_steps_per_sample=ratio, seed=1,
        show_progress=False, verbose=False,
    )  # fmt: skip
    rl.OffPolicyTrainer(algorithm, params).run()
    assert len(algorithm.batches) == 20 * ratio
    assert all(batch.obs.shape == (5, 4, 2) for batch in algorithm.batches)
