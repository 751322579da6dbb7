"""Replay buffers: successors, windows, wrapping, boundaries, uniformity, memory."""

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.errors import NonFiniteError, ParamsError, ReplayBufferError, SpaceError
from tests.unit.data.reference import (
    ACTION,
    OBS,
    Reference,
    World,
    add_rows,
    add_step,
    as_obs,
    assert_holds,
    cell,
    fill,
    found,
    make_buffer,
    make_rollout,
    played,
    raises,
    roam,
)


def test_one_step_transitions_worked_by_hand() -> None:
    # Two steps, then a termination whose successor 3 is not the next episode's first observation 10.
    buffer = make_buffer(8)
    fill(buffer, cell(0), cell(1, 2.0), cell(2, 4.0, end="t"), cell(10, 8.0))
    assert found(buffer.sample(200, gamma=0.5)) == {
        0: (0, 1.0, 1, False, False, 0.5),
        1: (0, 2.0, 2, False, False, 0.5),
        2: (0, 4.0, 3, True, False, 0.0),
        10: (0, 8.0, 11, False, False, 0.5),
    }


def test_three_step_windows_worked_by_hand() -> None:
    # 0 1 2 end in a truncation; a boundary parts 10 from 20; 20 21 are the newest.
    buffer = make_buffer(8)
    fill(buffer, cell(0), cell(1, 2.0), cell(2, 4.0, end="u"), cell(10, 8.0))
    buffer.end_trajectory()
    fill(buffer, cell(20, 16.0), cell(21, 32.0))
    assert found(buffer.sample(400, n_step=3, gamma=0.5)) == {
        0: (0, 1 + 2 / 2 + 4 / 4, 3, False, True, 0.125),
        1: (0, 2 + 4 / 2, 3, False, True, 0.25),
        2: (0, 4.0, 3, False, True, 0.5),
        10: (0, 8.0, 11, False, False, 0.5),
        20: (0, 16 + 32 / 2, 22, False, False, 0.25),
        21: (0, 32.0, 22, False, False, 0.5),
    }


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_steps_equal_brute_force(seed: int, num_envs: int) -> None:
    buffer, reference = make_buffer(7 * num_envs, num_envs), Reference(7, num_envs)
    for step in played(buffer, reference, seed, 40):
        if step % 5 == 0 or step > 34:
            for n_step in (1, 2, 3, 20):
                assert_holds(buffer, reference, n_step)


@pytest.mark.parametrize("p_invalid", [0.0, 0.7])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_rollouts_equal_brute_force(seed: int, num_envs: int, p_invalid: float) -> None:
    # Invalid cells make the envs' write positions differ; rollouts of 12 steps are longer than the 7 cells of an env.
    world, rng = World(seed, num_envs, p_invalid), np.random.default_rng(seed)
    buffer, reference = make_buffer(7 * num_envs, num_envs), Reference(7, num_envs)
    for _ in range(15):
        if rng.random() < 0.3:
            buffer.end_trajectory()
            world.restart()
            for env in range(num_envs):
                reference.end_trajectory(env)
        add_rows(buffer, reference, [world.step() for _ in range(rng.choice([1, 1, 2, 5, 12]))])
        if len(buffer):
            for n_step in (1, 3):
                assert_holds(buffer, reference, n_step)


def test_rollouts_and_steps_can_be_mixed_after_positions_drifted_apart() -> None:
    world = World(5, 3, 0.9)
    buffer, reference = make_buffer(21, 3), Reference(7, 3)
    for _ in range(6):
        add_rows(buffer, reference, [world.step() for _ in range(4)])
    world.p_invalid = 0.0
    assert len({int(n) for n in buffer.state_dict()["written"]}) > 1
    for _ in range(9):
        add_step(buffer, reference, world.step()[0])
        assert_holds(buffer, reference, 3)


def test_a_cell_before_an_invalid_one_keeps_its_successor() -> None:
    # No episode ends: env 0 goes 0 -> 1, loses the cell 1 -> 2, goes on 5 -> 6; env 1 loses its first and last cells.
    rows = [
        ([cell(0), cell(100)], [True, False]),
        ([cell(1), cell(110)], [False, True]),
        ([cell(5), cell(111)], [True, False]),
    ]
    buffer = make_buffer(16, 2)
    add_step(buffer, None, [cell(70), cell(80)])
    buffer.end_trajectory(np.array([True, False]))
    buffer.add_rollout(make_rollout(rows))
    next_obs = {obs: values[2] for obs, values in found(buffer.sample(300)).items()}
    assert next_obs == {70: 71, 80: 81, 0: 1, 5: 6, 110: 111}
    # Nothing that was lost is stepped over: windows of two steps end before it.
    assert {obs: values[2] for obs, values in found(buffer.sample(300, n_step=2)).items()} == next_obs


def test_cuts_within_a_rollout_end_traces() -> None:
    rows = [([cell(0)], [True]), ([cell(10, 2.0)], [True]), ([cell(11, 4.0)], [True])]
    rollout = make_rollout(rows)
    rollout.final_obs, rollout.final_index = torch.from_numpy(as_obs([1])), torch.tensor([0])
    buffer = make_buffer(8)
    buffer.add_rollout(rollout)
    assert found(buffer.sample(200, n_step=2, gamma=0.5)) == {
        0: (0, 1.0, 1, False, False, 0.5),
        10: (0, 4.0, 12, False, False, 0.25),
        11: (0, 4.0, 12, False, False, 0.5),
    }


def test_capacity_one_holds_the_newest() -> None:
    buffer = make_buffer(1)
    for step in (cell(0), cell(1, 2.0, end="t"), cell(5, 3.0)):
        add_step(buffer, None, [step])
        ended = 0.0 if step.terminated else 0.5
        expected = (0, step.reward, step.next_obs, step.terminated, False, ended)
        assert found(buffer.sample(8, n_step=3, gamma=0.5)) == {step.obs: expected}
    assert len(buffer) == 1


def test_sampling_is_uniform_over_envs_of_unequal_fill() -> None:
    # Env 0 holds 6 cells (two forgotten), env 1 holds 2: 8 cells, 800 draws expected of each, standard deviation 26.
    rows = [([cell(i), cell(100 + i)], [True, i < 2]) for i in range(8)]
    buffer = make_buffer(12, 2, seed=3)
    buffer.add_rollout(make_rollout(rows))
    batch = buffer.sample(6400)
    obs, counts = np.unique(batch.obs[:, 0].numpy(), return_counts=True)
    assert obs.tolist() == [2, 3, 4, 5, 6, 7, 100, 101]
    assert counts.min() > 680
    assert counts.max() < 920
    assert batch.weight.tolist() == [1.0] * 6400


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("p_invalid", [0.0, 0.7])
@pytest.mark.parametrize("num_steps", [4, 12])
def test_several_batches_are_those_of_several_calls(n_step: int, p_invalid: float, num_steps: int) -> None:
    buffers = [make_buffer(21, 3) for _ in range(2)]
    for buffer in buffers:
        world = World(1, 3, p_invalid)
        buffer.add_rollout(make_rollout([world.step() for _ in range(num_steps)]))
    one, other = buffers
    batches = one.sample(7, n_step=n_step, num_batches=5)
    assert batches.obs.shape == (5, 7, 2)
    for k in range(5):
        assert_equal(batches[k], other.sample(7, n_step=n_step))
    assert_equal(one.sample(3, num_batches=1)[0], other.sample(3))
    assert torch.equal(one.generator.get_state(), other.generator.get_state())


def assert_equal(one: rl.Transitions, other: rl.Transitions) -> None:
    for field in dataclasses.fields(one):
        if field.name != "extra":
            assert torch.equal(getattr(one, field.name), getattr(other, field.name)), field.name


@pytest.mark.parametrize("seed", range(6))
def test_paths_equal_brute_force(seed: int) -> None:
    buffer, reference = make_buffer(21, 3), Reference(7, 3)
    for step in played(buffer, reference, seed, 30):
        if step % 7 != 5:
            continue
        batch = buffer.sample(200)
        path, inside = buffer._ring.path(batch.index, 9)  # longer than any trajectory
        obs = buffer._ring.columns["obs"].gather(path.flatten())[:, 0].reshape(path.shape)
        walked = {int(x[0]): x[y].tolist() for x, y in zip(obs.T, inside.T, strict=True)}
        spans = reference.spans()
        assert walked == {all_[i].obs: [float(c.obs) for c in all_[i : end + 1]] for all_, i, _, end in spans}


def test_so_many_batches_are_sampled_at_once_as_take_64_mb() -> None:
    # A transition takes 4 * 10_000 bytes of obs and of next_obs (and little else): 8 batches of 100 take 64 MB.
    large = ReplayBuffer(10, gym.spaces.Box(0, 1, (10_000,), np.float32), ACTION)
    assert [large.max_num_batches(n) for n in (1, 25, 100, 1000)] == [32, 32, 8, 1]
    assert make_buffer(10).max_num_batches(64) == 32


def test_equal_seeds_sample_equally_and_an_own_seed_wins() -> None:
    buffers = [make_buffer(8, seed=seed) for seed in (1, 1, 2, None)]
    for buffer in buffers:
        roam(buffer, None, World(0, 1), 8)
        buffer.seed(7)
    draws = [buffer.sample(50).index.tolist() for buffer in buffers]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    buffers[3].seed(7)
    assert draws[3] == buffers[3].sample(50).index.tolist()
    of_program = []
    for _ in range(2):
        rl.seed(4)
        of_program.append(make_buffer(8, seed=None).generator.initial_seed())
    assert of_program[0] == of_program[1]


def test_clear_forgets_everything_and_ends_trajectories() -> None:
    buffer, reference, world = make_buffer(4), Reference(4, 1), World(0, 1)
    roam(buffer, None, world, 6)
    buffer.clear()
    assert len(buffer) == 0
    for _ in range(6):
        add_step(buffer, reference, world.step()[0])
        assert_holds(buffer, reference, 3)


def test_values_are_copied_and_cast() -> None:
    buffer = make_buffer(4)
    obs, next_obs = np.array([[1.0, -1.0]]), torch.tensor([[2.0, -2.0]], dtype=torch.float64)
    buffer.add(obs, [3], torch.tensor([0.5]), next_obs, [False], torch.tensor([False]))
    obs[:], next_obs[:] = 9.0, 9.0
    batch = buffer.sample(1, gamma=0.5)
    assert batch.obs.dtype == batch.reward.dtype == torch.float32
    assert found(batch) == {1: (3, 0.5, 2, False, False, 0.5)}
    buffer.clear()  # arrays that cannot be written are read all the same
    obs = np.broadcast_to(np.float64(0.0), (1, 2))
    buffer.add(obs, np.zeros(1, np.int32), np.broadcast_to(1.0, (1,)), obs, np.array([True]), np.array([False]))
    assert buffer.sample(1).reward.item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_successors_of_any_kind_are_kept_at_the_end_of_an_episode(dtype: torch.dtype) -> None:
    buffer = make_buffer(4)
    next_obs = torch.full((1, 2), 0.5, dtype=dtype, requires_grad=True)
    buffer.add(torch.zeros(1, 2), [0], [1.0], next_obs, [True], [False])
    assert buffer.sample(1).next_obs.tolist() == [[0.5, 0.5]]


def test_dict_and_tuple_observations_with_images() -> None:
    image = gym.spaces.Box(0, 255, (2, 2, 1), np.uint8)
    space = gym.spaces.Dict({"cam": image, "rest": gym.spaces.Tuple([gym.spaces.Discrete(9), OBS])})
    buffer = ReplayBuffer(6, space, gym.spaces.Box(-1, 1, (3,), np.float32), seed=0)

    def obs(i: int) -> dict[str, object]:
        # The order of the keys does not matter.
        return {"rest": (np.array([i]), as_obs([i])), "cam": np.full((1, 2, 2, 1), i, np.uint8)}

    for i in range(9):
        after = 7 if i == 8 else i + 1
        buffer.add(obs(i), np.full((1, 3), i / 10), np.array([i]), obs(after), np.array([i == 8]), np.array([False]))
    buffer.add(obs(0), np.zeros((1, 3)), np.zeros(1), obs(1), np.array([False]), np.array([False]))
    batch = buffer.sample(100)
    number = batch.obs["rest"][0]
    expected_next = torch.where(number == 8, 7, number + 1)
    assert sorted(set(number.tolist())) == [0, 4, 5, 6, 7, 8]
    assert batch.obs["cam"].dtype == torch.uint8
    assert batch.obs["cam"].shape == (100, 2, 2, 1)
    assert torch.equal(batch.obs["cam"][:, 1, 1, 0].long(), number)
    assert torch.equal(batch.next_obs["cam"][:, 0, 1, 0].long(), expected_next)
    assert torch.equal(batch.next_obs["rest"][0], expected_next)
    assert torch.equal(batch.next_obs["rest"][1][:, 1], -expected_next.float())


def test_extras_follow_their_cells() -> None:
    buffer = make_buffer(3, extra={"log_prob": ((), torch.float32), "mask": ((2,), torch.bool)})
    no, row = np.array([False]), np.zeros(1)
    text = "ReplayBuffer.extra: expected a dict with the keys ['log_prob', 'mask'], got the keys "
    for given, keys in ((None, []), ({}, []), ({"mask": np.ones((1, 2), bool)}, ["mask"])):
        with raises(ReplayBufferError, f"{text}{keys}"):
            buffer.add(as_obs([5]), row.astype(int), row, as_obs([6]), no, no, given)
    with raises(ReplayBufferError, text):
        buffer.add_rollout(make_rollout([([cell(0)], [True])]))
    assert len(buffer) == 0
    for i in range(5):
        values = {"mask": np.array([[i % 2 == 0, True]]), "log_prob": np.array([-float(i)])}
        buffer.add(as_obs([i]), row.astype(int), row, as_obs([i + 1]), no, no, values)
    batch = buffer.sample(60)
    assert torch.equal(batch.extra["log_prob"], -batch.obs[:, 0])
    assert torch.equal(batch.extra["mask"][:, 0], batch.obs[:, 0] % 2 == 0)


def test_final_observations_are_reused_over_a_long_run() -> None:
    # 50 cells of episodes of 5 steps: at most 10 ends at once, and one more while a row is replaced.
    buffer = make_buffer(50)
    sizes = set()
    for i in range(5000):
        fill(buffer, cell(i, end="t" if i % 5 == 4 else ""))
        sizes.add(buffer.nbytes)
    assert len(sizes) == 1
    assert sum(len(rows["final_index"]) for rows in buffer.state_dict()["rows"]) == 10


def test_clearing_makes_room_for_final_observations() -> None:
    buffer = make_buffer(10)
    nbytes = buffer.nbytes
    for _ in range(30):
        fill(buffer, *(cell(i, end="t") for i in range(10)))
        buffer.clear()
    assert buffer.nbytes == nbytes


def test_a_million_transitions_take_at_most_1_15_times_their_bytes() -> None:
    observation_space = gym.spaces.Box(-1, 1, (17,), np.float32)
    buffer = ReplayBuffer(1_000_000, observation_space, gym.spaces.Box(-1, 1, (6,), np.float32), 500)
    obs, action, reward = np.zeros((500, 17), np.float32), np.zeros((500, 6), np.float32), np.zeros(500, np.float32)
    no, yes = np.zeros(500, np.bool_), np.ones(500, np.bool_)
    for i in range(2400):
        buffer.add(obs, action, reward, obs, no, yes if i % 200 == 199 else no)
    assert len(buffer) == 1_000_000
    assert buffer.nbytes <= 1.15 * 1_000_000 * (17 * 4 + 6 * 4 + 4 + 2)


def test_observations_yield_every_stored_one_in_chunks() -> None:
    buffer = make_buffer(6, 2)
    for i in range(5):
        add_step(buffer, None, [cell(i, 0.0), cell(100 + i, 0.0)])
    chunks = list(buffer.observations(chunk_size=4))
    assert [len(chunk) for chunk in chunks] == [4, 2]
    assert torch.cat(chunks)[:, 0].tolist() == [2, 3, 4, 102, 103, 104]


def test_tensor_writes_give_the_same_as_array_writes() -> None:
    # On a device other than the CPU rows are written to tensors and slots are kept twice.
    buffers = [make_buffer(21, 3), make_buffer(21, 3)]
    for column in (c for storage in buffers[1]._ring.columns.values() for c in storage.leaves):
        column.target, column.dtype = column.tensor, None
    final = buffers[1]._ring.final
    final._on_device = torch.from_numpy(final.index.flatten())
    for buffer in buffers:
        roam_unevenly(buffer)
    assert found(buffers[1].sample(500, n_step=2)) == found(buffers[0].sample(500, n_step=2))


def roam_unevenly(buffer: ReplayBuffer) -> None:
    """Add rollouts that let envs fall out of step, steps, and after the end of all trajectories one more."""
    world = World(2, 3, 0.9)
    for _ in range(4):
        buffer.add_rollout(make_rollout([world.step() for _ in range(4)]))
    world.p_invalid = 0.0
    roam(buffer, None, world, 9)
    buffer.end_trajectory()
    roam(buffer, None, world, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_buffer_on_cuda_holds_the_same() -> None:
    buffers = [make_buffer(21, 3), make_buffer(21, 3, device="cuda")]
    for buffer in buffers:
        roam_unevenly(buffer)
    batch = buffers[1].sample(2000, n_step=2)
    assert batch.obs.device.type == "cuda"
    assert found(batch.to("cpu")) == found(buffers[0].sample(2000, n_step=2))


def test_a_buffer_that_is_there_is_not_copied() -> None:
    buffer = make_buffer(8)
    assert buffer.to("cpu") is buffer
    with pytest.raises(ParamsError, match=r"^ReplayBuffer\.to\.device: must be a device that PyTorch can use here"):
        buffer.to("nowhere")


def test_a_buffer_that_cannot_fit_says_so_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    # A cell takes 8 + 8 + 4 + 2 bytes and a slot of 4: 26; with the spare row 1001 of them.
    monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device: 26_025)
    with raises(ReplayBufferError, "ReplayBuffer.capacity: needs 2.6e-05 GB of memory on cpu, 2.6e-05 GB are availab"):
        make_buffer(1000)
    monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device: 26_026)
    make_buffer(1000)
    with pytest.raises(ReplayBufferError, match="RolloutBuffer.num_steps: needs"):
        RolloutBuffer(2000, 1, OBS, ACTION)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("obs", np.zeros(2), "ReplayBuffer.obs: expected float32 of shape (1, 2), got float64 of shape (2,)"),
        ("obs", {"a": np.zeros(2)}, "ReplayBuffer.obs: expected float32 of shape (1, 2), got {'a'"),
        ("action", np.zeros(1), "ReplayBuffer.action: expected int64 of shape (1,), got float64 of shape (1,)"),
        ("reward", 1.0, "ReplayBuffer.reward: expected float32 of shape (1,), got float64 of shape ()"),
        ("terminated", np.zeros(1, int), "ReplayBuffer.terminated: expected bool of shape (1,), got int64 of shape"),
        ("truncated", [[False]], "ReplayBuffer.truncated: expected bool of shape (1,), got bool of shape (1, 1)"),
        ("next_obs", np.zeros((1, 3)), "ReplayBuffer.obs: expected float32 of shape (1, 2), got float64 of shape ("),
        ("extra", {"x": np.zeros(1)}, "ReplayBuffer.extra: expected a dict with the keys [], got the keys ['x']"),
    ],
)
def test_a_step_that_does_not_fit_changes_nothing(name: str, value: object, text: str) -> None:
    buffer, reference = make_buffer(3), Reference(3, 1)
    roam(buffer, reference, World(1, 1), 5)
    no = np.zeros(1, np.bool_)
    step = {"obs": as_obs([-7]), "action": np.zeros(1, int), "reward": np.zeros(1)}
    step |= {"next_obs": as_obs([0]), "terminated": no, "truncated": no}
    with raises(ReplayBufferError, text):
        buffer.add(**{**step, name: value})  # type: ignore[arg-type]
    assert_holds(buffer, reference, 2)


def test_a_rollout_that_does_not_fit_changes_nothing() -> None:
    buffer, reference, world = make_buffer(3), Reference(3, 1), World(1, 1)
    roam(buffer, reference, world, 5)
    with raises(ReplayBufferError, "ReplayBuffer.add_rollout: expected a rollout of 1 envs, got one of 2"):
        buffer.add_rollout(make_rollout([World(0, 2).step()]))
    rollout = make_rollout([world.step() for _ in range(2)])
    rollout.extra = {"x": rollout.reward}
    with raises(ReplayBufferError, "ReplayBuffer.extra: expected a dict with the keys [], got the keys ['x']"):
        buffer.add_rollout(rollout)
    for name, shape in (("obs", (2, 1, 3)), ("last_obs", (1, 3)), ("final_obs", (0, 3))):
        rollout = make_rollout([world.step() for _ in range(2)])
        setattr(rollout, name, torch.zeros(shape))
        with pytest.raises(ReplayBufferError, match=r"^ReplayBuffer.obs: expected float32 of shape \(., 2\), got"):
            buffer.add_rollout(rollout)
    assert_holds(buffer, reference, 2)


@pytest.mark.parametrize("name", ["obs", "action", "reward", "next_obs"])
def test_check_finite_names_leaf_and_transition(name: str) -> None:
    space = gym.spaces.Dict({"a": OBS})
    buffer = ReplayBuffer(4, space, gym.spaces.Box(-np.inf, np.inf, (1,), np.float32))
    no = np.zeros(1, np.bool_)
    for i in range(3):
        step = {"obs": {"a": as_obs([i])}, "action": np.zeros((1, 1)), "reward": np.zeros(1)}
        step |= {"next_obs": {"a": as_obs([i + 1])}, "terminated": np.array([i == 1]), "truncated": no}
        if i == 1:
            buffer.check_finite()
            broken = step[name]["a"] if isinstance(step[name], dict) else step[name]
            broken[0] = np.inf
        buffer.add(**step)
    leaf = f'{name}["a"]' if "obs" in name else name
    # A broken observation is the successor of the transition before, but obs is looked at first.
    with raises(NonFiniteError, f"ReplayBuffer: transition 1: {leaf} = inf. Leave it out, or replace it, before tr"):
        buffer.check_finite()


BOX = gym.spaces.Box(-0.1, 0.1, (1,), np.float64)


@pytest.mark.parametrize(
    ("space", "good", "bad", "shown"),
    [
        (gym.spaces.Discrete(3, start=2), 2, 1, "1"),
        (gym.spaces.MultiDiscrete([2, 3]), [1, 2], [2, 0], "[2, 0]"),
        (BOX, [np.float32(0.1)], [0.25], "[0.25]"),
        (BOX, [-0.1], [np.nan], "[nan]"),
    ],
)
def test_actions_outside_their_space_are_not_stored(space: Any, good: Any, bad: Any, shown: str) -> None:
    buffer = ReplayBuffer(9, OBS, space, 2, seed=0)
    no, obs = np.zeros(2, np.bool_), as_obs([0, 1])
    dtype: Any = np.float32 if space is BOX else np.int32
    buffer.add(obs, np.array([good, good], dtype), np.zeros(2), obs, no, no)
    for action in (np.array([good, bad], dtype), torch.tensor(np.array([good, bad], dtype))):
        with raises(SpaceError, f"ReplayBuffer.action: must lie in {space}; env 1 is {shown}"):
            buffer.add(obs, action, np.zeros(2), obs, no, no)
    rollout = make_rollout([([cell(0), cell(100)], [True, True]) for _ in range(2)])
    rollout.action = torch.tensor(np.array([[good, good], [bad, good]], dtype))
    with raises(SpaceError, f"ReplayBuffer.action: must lie in {space}; transition 2 is {shown}"):
        buffer.add_rollout(rollout)
    assert len(buffer) == 2
    # What is in a cell that is not valid does not matter.
    rollout.valid[1, 0] = False
    buffer.add_rollout(rollout)
    assert len(buffer) == 5


def test_bounds_of_observations_are_not_looked_at() -> None:
    space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    buffer = ReplayBuffer(9, space, ACTION)
    buffer.add(as_obs([50]), np.zeros(1, int), np.zeros(1), as_obs([60]), np.zeros(1, bool), np.zeros(1, bool))
    wider = ReplayBuffer(9, OBS, ACTION)
    wider.extend(buffer)
    assert found(wider.sample(3, gamma=0.5)) == {50: (0, 0.0, 60, False, False, 0.5)}


def test_extend_takes_equal_bounds_of_actions_only() -> None:
    kinds = ((1, np.float32), (1, np.float64), (2, np.float32))
    boxes: Any = [gym.spaces.Box(-high, high, (1,), dtype) for high, dtype in kinds]
    buffers = [ReplayBuffer(4, OBS, box) for box in boxes]
    buffers[0].extend(buffers[1])
    with pytest.raises(SpaceError, match=r"action_space: expected Box\(-1.*, found Box\(-2.*\[-1.0, 1.0\] of the one"):
        buffers[0].extend(buffers[2])
