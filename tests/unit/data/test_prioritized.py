"""What a prioritised buffer draws and how it weighs it; which cells have a priority; files, copies, bad input."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.data.prioritized import EPSILON, PrioritySampler
from rltrainer.errors import ParamsError, ReplayBufferError
from rltrainer.state.state_file import read_state, write_state
from tests.fakes import ScriptedOffPolicy, counting_envs, tiny_actor_critic
from tests.unit.data.reference import ACTION, OBS, World, add_step, cell, fill, make_buffer, make_rollout


def make(capacity: int, num_envs: int = 1, **options: Any) -> rl.PrioritizedReplayBuffer:
    return rl.PrioritizedReplayBuffer(capacity, OBS, ACTION, num_envs, **{"seed": 0, **options})


def filled(count: int = 4, capacity: int = 4, **options: Any) -> rl.PrioritizedReplayBuffer:
    """Return a buffer whose cells 0, 1, 2, ... have the observations 0, 1, 2, ..."""
    return fill(make(capacity, **options), *map(cell, range(count)))


def set_priorities(buffer: rl.PrioritizedReplayBuffer, *priorities: float) -> None:
    buffer.update_priorities(torch.arange(len(priorities)), torch.tensor(priorities, dtype=torch.float64) - EPSILON)


def priorities(buffer: Any) -> dict[int, float]:
    """Return by observation the priority to the power of alpha of each transition."""
    found = {}
    for cells in buffer._ring.all_slots(1000):
        obs = buffer._ring.columns["obs"].gather(cells)[:, 0].long().tolist()
        found.update(zip(obs, buffer._ring.sampler.tree.leaves[cells].tolist(), strict=True))
    return found


def test_probabilities_and_weights_worked_by_hand() -> None:
    # sqrt of 1, 2, 3, 4 over their sum 6.146264; (4 P)^-0.4, divided by that of the first, the largest.
    buffer = filled(alpha=0.5, beta=0.4)
    set_priorities(buffer, 1.0, 2.0, 3.0, 4.0)
    batch = buffer.sample(20_000)
    shares = torch.bincount(batch.index, minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.1627, 0.230093, 0.281805, 0.325401]), atol=2e-4, rtol=0)
    weights = torch.tensor([1.0, 0.870551, 0.802742, 0.757858])
    torch.testing.assert_close(batch.weight, weights[batch.index], atol=1e-6, rtol=0)
    assert batch.weight.dtype == torch.float32
    assert torch.equal(batch.obs[:, 0].long(), batch.index)


def test_weights_are_divided_by_the_largest_of_the_batch() -> None:
    # Cells 2 and 3 alone: (P_3 / P_2)^-0.4 = (4 / 3)^-0.2 = 0.944088.
    buffer = filled(alpha=0.5, beta=0.4)
    set_priorities(buffer, 1e-12, 1e-12, 3.0, 4.0)
    batch = buffer.sample(50)
    weight = dict(zip(batch.index.tolist(), batch.weight.tolist(), strict=True))
    assert weight == pytest.approx({2: 1.0, 3: 0.944088}, abs=1e-6)


def test_several_batches_are_drawn_and_weighed_apart() -> None:
    buffer = filled(3, alpha=1.0, beta=1.0)
    set_priorities(buffer, 1.0, 1.0, 2.0)
    batch = buffer.sample(4, num_batches=3)
    assert batch.index.tolist() == [[0, 1, 2, 2]] * 3
    assert batch.weight.tolist() == [[1.0, 1.0, 0.5, 0.5]] * 3
    assert batch.obs.shape == (3, 4, 2)
    buffer.update_priorities(batch.index, torch.tensor([[0.0] * 4, [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]))
    assert priorities(buffer) == pytest.approx({0: 5.0, 1: 6.0, 2: 8.0}, abs=2e-6)


def test_alpha_0_draws_uniformly_and_beta_0_weighs_nothing() -> None:
    buffer = filled(alpha=0.0, beta=1.0)
    set_priorities(buffer, 1.0, 2.0, 3.0, 400.0)
    batch = buffer.sample(4)
    assert batch.index.tolist() == [0, 1, 2, 3]
    assert batch.weight.tolist() == [1.0] * 4
    buffer = filled(alpha=1.0, beta=0.0)
    set_priorities(buffer, 1.0, 2.0, 3.0, 400.0)
    assert buffer.sample(50).weight.tolist() == [1.0] * 50


def test_new_transitions_have_the_largest_priority_that_there_ever_was() -> None:
    buffer = filled(2, 3, alpha=1.0)
    assert priorities(buffer) == {0: 1.0, 1: 1.0}
    set_priorities(buffer, 0.25, 5.0)
    fill(buffer, cell(7))
    set_priorities(buffer, 0.25, 0.5)
    fill(buffer, cell(8))  # in place of the first
    assert priorities(buffer) == pytest.approx({1: 0.5, 7: 5.0, 8: 5.0})


@pytest.mark.parametrize("p_invalid", [0.0, 0.7])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_only_what_is_stored_can_be_drawn(seed: int, num_envs: int, p_invalid: float) -> None:
    world, rng = World(seed, num_envs, p_invalid), np.random.default_rng(seed)
    buffer = make(7 * num_envs, num_envs)
    for k in range(60):
        if p_invalid == 0 and rng.random() < 0.5:
            add_step(buffer, None, world.step()[0])
        else:
            buffer.add_rollout(make_rollout([world.step() for _ in range(rng.choice([1, 2, 5, 12]))]))
        if k == 30:
            buffer.clear()
        leaves = buffer._ring.sampler.tree.leaves  # type: ignore[union-attr]
        stored = torch.cat([torch.empty(0, dtype=torch.int64), *buffer._ring.all_slots(1000)])
        assert torch.equal(leaves.nonzero().squeeze(1), stored.sort().values)
        if len(buffer):
            batch = buffer.sample(50, n_step=3)
            assert torch.isin(batch.index, stored).all()
            buffer.update_priorities(batch.index, torch.from_numpy(rng.exponential(size=50)))


def test_what_was_overwritten_since_it_was_drawn_gets_no_priority() -> None:
    buffer = filled(4, 4, alpha=1.0)  # five rows: the next step goes into the spare one, and the first is forgotten
    batch = buffer.sample(4)
    fill(buffer, cell(7))
    buffer.update_priorities(batch.index, torch.full((4,), 3.0))
    assert priorities(buffer) == pytest.approx({1: 3.0, 2: 3.0, 3: 3.0, 7: 1.0}, abs=2e-6)
    assert 0 not in buffer.sample(100).index


def test_an_error_that_is_no_number_changes_nothing() -> None:
    buffer = filled(4, alpha=1.0)
    set_priorities(buffer, 1.0, 2.0, 3.0, 4.0)
    buffer.update_priorities(torch.arange(3), torch.tensor([np.nan, np.inf, 6.0]))
    assert priorities(buffer) == pytest.approx({0: 1.0, 1: 2.0, 2: 6.0, 3: 4.0}, abs=2e-6)


def test_of_several_batches_the_newest_error_of_a_transition_counts() -> None:
    buffer, one_by_one = (filled(4, alpha=1.0) for _ in range(2))
    index = torch.tensor([[0, 1, 2, 2], [1, 0, 1, 3], [3, 3, 0, 3]])
    error = torch.tensor([[9.0, 8.0, 6.0, 7.0], [2.0, 5.0, 1.0, 4.0], [0.5, -1.5, np.nan, 0.25]])
    buffer.update_priorities(index, error)
    for batch, errors in zip(index, error, strict=True):
        one_by_one.update_priorities(batch, errors)
    # The last batch says nothing of 0. Within one batch the larger error counts, whatever its sign: of 2, of 1, of 3.
    assert priorities(buffer) == pytest.approx({0: 5.0, 1: 2.0, 2: 7.0, 3: 1.5}, abs=2e-6)
    assert priorities(buffer) == priorities(one_by_one)
    assert float(buffer.sampler.tree.total) == pytest.approx(15.5, abs=1e-5)
    fill(buffer, cell(9))
    assert priorities(buffer)[9] == pytest.approx(9.0, abs=2e-6)  # the largest that there ever was


def test_beta_follows_the_progress_of_the_training() -> None:
    # Priorities 1 and 4: weights 1 and 4^-beta, beta 0.5 at the start and 1 at the end.
    buffer = filled(2, alpha=1.0, beta=rl.LinearSchedule(0.5, 1.0))
    set_priorities(buffer, 1.0, 4.0)
    algorithm = ScriptedOffPolicy(tiny_actor_critic(counting_envs()))
    assert algorithm.sample(buffer, 5).weight.tolist() == [1.0, 0.5, 0.5, 0.5, 0.5]
    algorithm.attach(rl.UpdatePlan(lambda: 1.0))
    assert algorithm.sample(buffer, 5).weight.tolist() == [1.0, 0.25, 0.25, 0.25, 0.25]
    for copied in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        assert copied.sample(5).weight.tolist() == [1.0, 0.5, 0.5, 0.5, 0.5]


def wrapped(num_envs: int = 2) -> rl.PrioritizedReplayBuffer:
    """Return a buffer that forgot its oldest, with priorities of all sizes."""
    buffer, world = make(6 * num_envs, num_envs), World(3, num_envs, 0.3)
    buffer.add_rollout(make_rollout([world.step() for _ in range(11)]))
    batch = buffer.sample(100)
    buffer.update_priorities(batch.index, batch.obs[:, 0])
    return buffer


@pytest.mark.parametrize(("capacity", "num_envs"), [(12, 2), (40, 2), (8, 2), (12, 1), (10, 5)])
def test_a_file_is_read_into_any_size(capacity: int, num_envs: int, tmp_path: Path) -> None:
    buffer = wrapped()
    buffer.save(tmp_path / "buffer.safetensors")
    loaded = rl.PrioritizedReplayBuffer.load(tmp_path / "buffer.safetensors", capacity=capacity, num_envs=num_envs)
    before, after = priorities(buffer), priorities(loaded)
    assert len(after) == min(len(before), capacity)
    assert after == {obs: before[obs] for obs in after}
    assert len(set(after.values())) > 3
    if (capacity, num_envs) == (12, 2):  # the buffer's own
        samplers = (buffer.sampler, loaded.sampler)
        assert torch.equal(*(each.largest for each in samplers))  # type: ignore[attr-defined]
        assert torch.equal(buffer.sample(9).index, loaded.sample(9).index)


def test_priorities_are_appended_with_their_transitions() -> None:
    one, other = filled(3, 10, alpha=1.0), make(6, alpha=1.0)
    fill(other, *map(cell, range(100, 103)))
    set_priorities(one, 1.0, 2.0, 3.0)
    set_priorities(other, 40.0, 5.0, 6.0)
    one.extend(other)
    fill(one, cell(7))
    assert priorities(one) == pytest.approx({0: 1.0, 1: 2.0, 2: 3.0, 100: 40.0, 101: 5.0, 102: 6.0, 7: 40.0})
    # Those of a buffer without priorities, or of another alpha, are new.
    for buffer in (make_buffer(4), make(4, alpha=0.3)):
        fill(buffer, cell(200))
        both = filled(2, 10, alpha=1.0)
        set_priorities(both, 5.0, 2.0)
        both.extend(buffer)
        assert priorities(both) == pytest.approx({0: 5.0, 1: 2.0, 200: 5.0})


def test_files_of_uniform_buffers_are_read_and_the_other_way_round(tmp_path: Path) -> None:
    path, uniform = tmp_path / "buffer.safetensors", make_buffer(4)
    fill(uniform, cell(3))
    uniform.save(path)
    assert priorities(rl.PrioritizedReplayBuffer.load(path, alpha=0.5, beta=rl.LinearSchedule(0.4, 1.0))) == {3: 1.0}
    assert priorities(rl.PrioritizedReplayBuffer.load(path, capacity=9)) == {3: 1.0}
    buffer = wrapped()
    buffer.save(path)
    assert len(rl.ReplayBuffer.load(path)) == len(buffer)
    assert len(rl.ReplayBuffer.load(path, num_envs=1)) == len(buffer)


DAMAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no state": (lambda s: 3, "buffer.sampler: expected a mapping, found 3"),
    "another alpha": (lambda s: s | {"alpha": 0.7}, "priorities.alpha: expected 0.6, found 0.7"),
    "no alpha": (lambda s: {"largest": 1.0, "leaves": s["leaves"]}, "priorities.alpha: missing in the saved state"),
    "no leaves": (lambda s: s | {"leaves": None}, "priorities.leaves: expected an array, found None"),
    "too few": (lambda s: s | {"leaves": s["leaves"][1:]}, "priorities.leaves: expected 12 leaves, found 11"),
    "float32": (lambda s: s | {"leaves": s["leaves"].float()}, "priorities.leaves: expected positive finite"),
    "nothing": (lambda s: s | {"leaves": s["leaves"] * 0}, "priorities.leaves: expected positive finite"),
    "nan": (lambda s: s | {"leaves": s["leaves"] * np.nan}, "priorities.leaves: expected positive finite"),
    "small": (lambda s: s | {"largest": 1.5}, "priorities.largest: must be at least 1, as large as the largest"),
    "infinite": (lambda s: s | {"largest": float("inf")}, "have a finite sum; found inf"),
    "text": (lambda s: s | {"largest": "1"}, "priorities.largest: expected a number, found '1'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_state_is_refused_and_changes_nothing(name: str, tmp_path: Path) -> None:
    damage, text = DAMAGES[name]
    buffer, other, path = wrapped(), make(12, 2, seed=9), tmp_path / "buffer.safetensors"
    state = copy.deepcopy(buffer.state_dict())
    before = copy.deepcopy(other.state_dict())
    state["sampler"] = damage(state["sampler"])
    with pytest.raises(ReplayBufferError, match=text):
        other.load_state_dict(state)
    assert len(other) == 0
    assert torch.equal(other.state_dict()["generator"], before["generator"])
    buffer.save(path)
    saved = read_state(path, "replay_buffer", ReplayBufferError)
    write_state(path, "replay_buffer", saved | {"sampler": state["sampler"]})
    with pytest.raises(ReplayBufferError, match=text):
        rl.PrioritizedReplayBuffer.load(path)


def test_a_checkpoint_of_another_kind_of_buffer_is_refused() -> None:
    text = "ReplayBuffer.load_state_dict: sampler: one of the two buffers draws uniformly"
    for one, other in ((make(4), make_buffer(4)), (make_buffer(4), make(4))):
        with pytest.raises(ReplayBufferError, match=text):
            one.load_state_dict(other.state_dict())


def test_a_schedule_that_gives_no_number_is_named() -> None:
    with pytest.raises(ParamsError, match="value at progress 0"):
        filled(beta=lambda progress: None).sample(2)


def test_a_run_ends_with_other_priorities_than_it_began_with() -> None:
    envs = counting_envs()
    algorithm = rl.DQN(rl.QNetwork.for_envs(envs, hidden_sizes=(8,)))
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer = rl.PrioritizedReplayBuffer(100, *spaces, num_envs=2, beta=rl.LinearSchedule(0.4, 1.0))
    params = rl.OffPolicyTrainerParams(
        training_collector=rl.Collector(algorithm.policy, envs, buffer), max_epochs=1, epoch_num_steps=100,
        collection_step_num_env_steps=10, seed=1, batch_size=8, show_progress=False, verbose=False,
    )  # fmt: skip
    rl.OffPolicyTrainer(algorithm, params).run()
    assert len(priorities(buffer)) > 5
    assert buffer.sampler._beta == pytest.approx(0.94)  # type: ignore[union-attr]  # a `PrioritySampler`


class Halved(PrioritySampler):
    """Draws as the sampler of before, and halves the weights."""

    def draw(self, *args: Any) -> Any:
        _, _, _, _ = args  # as `Sampler` says
        slots, weight = super().draw(*args)
        return slots, weight / 2


def test_an_own_kind_of_sampler_gets_the_documented_arguments() -> None:
    buffer = make(4)
    buffer.sampler = Halved(buffer.num_slots, 0.5, 0.5, buffer.device)
    assert fill(buffer, cell(0), cell(1)).sample(3).weight.tolist() == [0.5] * 3
