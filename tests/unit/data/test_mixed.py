"""Offline and online data in fixed shares: who is drawn from where, and where errors go."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import NonFiniteError, ReplayBufferError
from rltrainer.plan import no_progress
from rltrainer.ranks.ranks import ALONE
from tests.fakes import counting_envs, run_in_threads
from tests.unit.data.reference import ACTION, OBS, cell, make_buffer, raises
from tests.unit.data.reference import fill as fill_cells


def fill(buffer: Any, *numbers: int) -> Any:
    return fill_cells(buffer, *(cell(number, float(number)) for number in numbers))


def prioritized(capacity: int, *numbers: int) -> rl.PrioritizedReplayBuffer:
    return fill(rl.PrioritizedReplayBuffer(capacity, OBS, ACTION, seed=0, alpha=1.0, beta=1.0), *numbers)


def mixed(offline_share: float = 0.25) -> rl.MixedBuffer:
    """Return a buffer of 0 1 2 online and 100 101 offline."""
    return rl.MixedBuffer(fill(make_buffer(5), 0, 1, 2), fill(make_buffer(4), 100, 101), offline_share)


def test_shares_of_a_batch() -> None:
    batch = mixed().sample(200)
    obs = batch.obs[:, 0]
    assert obs[:150].unique().tolist() == [0, 1, 2]
    assert obs[150:].unique().tolist() == [100, 101]
    assert torch.equal(batch.reward, obs)
    assert torch.equal(batch.next_obs[:, 0], obs + 1)
    # Six rows of the online buffer, then those of the offline one.
    assert torch.equal(batch.index, torch.where(obs < 100, obs, obs - 100 + 6).long())
    assert batch.weight.tolist() == [1.0] * 200


def test_several_batches_and_steps() -> None:
    buffer = mixed()
    twin = copy.deepcopy(buffer)
    batch = buffer.sample(4, n_step=2, gamma=0.5, num_batches=3)
    assert batch.obs.shape == (3, 4, 2)
    assert ((batch.obs[..., 0] >= 100) == torch.tensor([False, False, False, True])).all()
    for k in range(3):
        again = twin.sample(4, n_step=2, gamma=0.5)
        assert torch.equal(batch[k].obs, again.obs)
        assert torch.equal(batch[k].reward, again.reward)
    rewards = {0: 0.5, 1: 2.0, 2: 2.0, 100: 150.5, 101: 101.0}
    assert all(rewards[int(o)] == float(r) for o, r in zip(again.obs[:, 0], again.reward, strict=True))


def test_shares_are_rounded() -> None:
    for share, num_offline in ((0.0, 0), (0.01, 0), (0.5, 4), (0.99, 7), (1.0, 7)):
        assert int((mixed(share).sample(7).obs[:, 0] >= 100).sum()) == num_offline


def test_sequences_of_both() -> None:
    """By hand: a quarter of 4 is offline; row 1 follows row 0 in its own buffer, or has weight 0 behind the end."""
    buffer = mixed()
    batch = buffer.sample_sequences(4, 2, n_step=2, gamma=0.5)
    assert batch.obs.shape == (2, 4, 2)
    first, second = batch.obs[..., 0]
    assert (first >= 100).tolist() == [False, False, False, True]
    for start, after, weight, index in zip(first, second, batch.weight[1], batch.index[1], strict=True):
        is_last = float(start) in (2, 101)
        assert (float(after), float(weight)) == ((start, 0.0) if is_last else (start + 1, 1.0))
        assert int(index) == (after if after < 100 else after - 100 + 6)
    rewards = {0: 0.5, 1: 2.0, 2: 2.0, 100: 150.5, 101: 101.0}
    assert batch.reward[0].tolist() == [rewards[int(start)] for start in first]
    several = buffer.sample_sequences(4, 2, 1, num_batches=3)
    assert (several.obs.shape, several.first.shape) == ((3, 3, 4, 2), (3, 3, 4))
    assert ((several.obs[..., 0] >= 100) == torch.tensor([False, False, False, True])).all()
    assert (mixed(1.0).sample_sequences(3, 2).obs[..., 0] >= 100).all()


def test_memories_of_sequences_and_a_rank_without_a_share() -> None:
    def drawn(ranks: Any) -> tuple[list[float], list[list[int]]]:
        parts = [make_buffer(5, extra={"state": ((), torch.float32)}) for _ in range(2)]
        for part, numbers in zip(parts, ((0, 1, 2), (100, 101)), strict=True):
            for n in numbers:
                obs, no = np.full((1, 2), n, np.float32), np.zeros(1, bool)
                part.add(obs, [0], [0.0], obs + 1, no, no, extra={"state": np.float32([n])})
        buffer = rl.MixedBuffer(parts[0], parts[1], 0.25)
        buffer.follow(no_progress, ranks)
        one, several = buffer.sample_sequences(2, 2), buffer.sample_sequences(2, 2, num_batches=3)
        for batch in (one, several):
            assert torch.equal(batch.extra["state"], batch.obs[..., 0].select(-2, 0))
        assert (one.obs.shape, several.obs.shape) == ((2, 2, 2), (3, 2, 2, 2))
        return [float((batch.obs[..., 0] >= 100).float().mean()) for batch in (one, several)]

    assert run_in_threads([drawn] * 2) == [[0.5, 0.5], [0.0, 0.0]]


@pytest.mark.parametrize("has_priorities", [False, True])
def test_shares_are_those_of_all_shards(has_priorities: bool) -> None:
    """Of 8 times 2 transitions 4 are offline, of 8 times 3 in two batches 6 each; all exchange priorities."""

    def drawn(ranks: Any) -> list[int]:
        offline = prioritized(4, 100, 101) if has_priorities else fill(make_buffer(4), 100, 101)
        buffer = rl.MixedBuffer(fill(make_buffer(5), 0, 1, 2), offline, 0.25)
        buffer.follow(no_progress, ranks)
        batches = buffer.sample(2), buffer.sample(3, num_batches=2)
        assert [batch.reward.shape for batch in batches] == [(2,), (2, 3)]
        return [int((batch.obs[..., 0] >= 100).sum()) for batch in batches]

    found = run_in_threads([drawn] * 8)
    assert found == [[1, 2]] * 4 + [[0, 2]] * 2 + [[0, 0]] * 2


def test_before_anything_is_collected_all_is_offline() -> None:
    buffer = rl.MixedBuffer(make_buffer(5), fill(make_buffer(4), 100, 101), 0.5)
    assert (buffer.sample(6).obs[:, 0] >= 100).all()
    fill(buffer, 7)
    assert (buffer.sample(6).obs[:, 0] == 7).tolist() == [True] * 3 + [False] * 3
    assert len(buffer) == 3
    buffer.clear()
    assert len(buffer) == 2


def test_errors_go_to_their_own_buffers() -> None:
    buffer = rl.MixedBuffer(prioritized(5, 0, 1), prioritized(4, 100, 101), 0.5)
    batch = buffer.sample(4)  # one of each, as each has half of its buffer's priorities
    assert batch.obs[:, 0].tolist() == [0, 1, 100, 101]
    buffer.update_priorities(batch.index, torch.tensor([1.0, 2.0, 3.0, 9.0]))
    leaves = [part.sampler.tree.leaves[:2].tolist() for part in (buffer.online, buffer.offline)]  # type: ignore[attr-defined]
    assert np.allclose(leaves, [[1.0, 2.0], [3.0, 9.0]], atol=2e-6)
    batches = buffer.sample(4, num_batches=2)
    assert batches.weight.shape == (2, 4)
    buffer.update_priorities(batches.index, batches.obs[..., 0])
    twice = torch.stack([batch.index, batch.index])
    buffer.update_priorities(twice, torch.tensor([[5.0, 6.0, 7.0, 8.0], [4.0, 3.0, 2.0, 1.0]]))
    leaves = [part.sampler.tree.leaves[:2].tolist() for part in (buffer.online, buffer.offline)]  # type: ignore[union-attr]
    assert np.allclose(leaves, [[4.0, 3.0], [2.0, 1.0]], atol=2e-6)  # the newest errors
    one = rl.MixedBuffer(fill(make_buffer(5), 0, 1), prioritized(4, 100, 101), 0.0)
    one.update_priorities(one.sample(4).index, torch.ones(4))  # nothing for the offline one
    with raises(ReplayBufferError, "PrioritizedReplayBuffer.update_priorities.td_error: must be one error"):
        one.update_priorities(torch.zeros(4, dtype=torch.int64), None)


def test_schedules_reach_both() -> None:
    offline = rl.PrioritizedReplayBuffer(4, OBS, ACTION, seed=0, alpha=1.0, beta=rl.LinearSchedule(0.0, 1.0))
    buffer = rl.MixedBuffer(fill(make_buffer(5), 0), fill(offline, 100, 101), 0.5)
    offline.update_priorities(torch.arange(2), torch.tensor([1.0, 4.0]))
    assert buffer.sample(10).weight.tolist() == [1.0] * 10
    buffer.follow(lambda: 1.0, ALONE)
    assert buffer.sample(10).weight.unique().tolist() == pytest.approx([0.25, 1.0])


def test_statistics_and_checks_look_at_both() -> None:
    buffer = mixed()
    assert sorted(torch.cat(list(buffer.observations()))[:, 0].tolist()) == [0, 1, 2, 100, 101]
    buffer.check_finite()
    fill(buffer.offline, 102)
    buffer.offline._ring.columns["reward"].flat[1] = np.nan
    with pytest.raises(NonFiniteError, match="transition 1: reward = nan"):
        buffer.check_finite()


def test_seeds_and_states(tmp_path: Path) -> None:
    def unseeded() -> rl.MixedBuffer:
        rl.seed(1)
        parts = make_buffer(5, seed=None), make_buffer(4, seed=None)
        return rl.MixedBuffer(fill(parts[0], 0, 1, 2), fill(parts[1], 100, 101), 0.5)

    one, other = unseeded(), unseeded()
    other.sample(9)
    one.seed(4)
    other.seed(4)
    assert torch.equal(one.sample(50).index, other.sample(50).index)
    third = unseeded()
    third.load_state_dict(copy.deepcopy(one.state_dict()))
    assert torch.equal(one.sample(50).index, third.sample(50).index)
    one.save(tmp_path / "online.safetensors")
    assert len(rl.ReplayBuffer.load(tmp_path / "online.safetensors")) == 3


def test_a_state_of_other_data_is_refused() -> None:
    buffer = mixed()
    state = buffer.state_dict()
    for offline, text in (
        (None, "buffer.offline: expected a mapping, found None"),
        (state["offline"] | {"num_transitions": 7}, "MixedBuffer.offline: held 7 transitions .*, holds 2 now"),
    ):
        with pytest.raises(ReplayBufferError, match=text):
            buffer.load_state_dict(state | {"offline": offline})
    with pytest.raises(ReplayBufferError, match="MixedBuffer.offline.generator: expected the state of a generator"):
        buffer.load_state_dict(state | {"offline": state["offline"] | {"generator": 3}})


def test_a_collector_fills_the_online_buffer() -> None:
    envs = counting_envs(2)
    policy = rl.QNetwork.for_envs(envs, hidden_sizes=(8,))
    spaces = (envs.single_observation_space, envs.single_action_space)
    offline = rl.ReplayBuffer(20, *spaces, 2, seed=0)
    rl.Collector(policy, counting_envs(2), offline).collect(num_steps=20)
    buffer = rl.MixedBuffer(rl.PrioritizedReplayBuffer(40, *spaces, 2, seed=0), offline)
    rl.Collector(policy, envs, buffer).collect(num_steps=10)
    assert (len(buffer.online), len(buffer.offline), len(buffer)) == (10, 20, 30)
    assert buffer.sample(10).weight.shape == (10,)
