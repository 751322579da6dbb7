"""Saved buffers and states: everything comes back, and what is damaged is an error before anything changes."""

import copy
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rltrainer.data import ReplayBuffer
from rltrainer.errors import ParamsError, ReplayBufferError
from rltrainer.state.state_file import read_state, write_state
from rltrainer.tree import named_leaves
from tests.unit.data.reference import (
    ACTION,
    OBS,
    Reference,
    World,
    add_step,
    assert_holds,
    found,
    make_buffer,
    make_rollout,
    raises,
    roam,
)


def filled(num_steps: int, seed: int = 0, capacity: int = 21, **options: Any) -> tuple[ReplayBuffer, World]:
    """Return a buffer of 3 envs whose write positions differ."""
    buffer, world = make_buffer(capacity, 3, **options), World(seed, 3, 0.8)
    for _ in range(num_steps):
        buffer.add_rollout(make_rollout([world.step(), world.step()]))
    world.p_invalid = 0.0
    return buffer, world


def same(one: ReplayBuffer, other: ReplayBuffer, ignored: str = "pending_end") -> bool:
    states = [{**buffer.state_dict(), ignored: None} for buffer in (one, other)]
    states = [{**state, "rows": tuple(state["rows"])} for state in states]
    one_leaves, other_leaves = (dict(named_leaves(state)) for state in states)
    assert one_leaves.keys() == other_leaves.keys()
    pairs = zip(one_leaves.values(), other_leaves.values(), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("num_steps", [0, 1, 3, 20])
def test_a_file_brings_everything_back(tmp_path: Path, num_steps: int) -> None:
    buffer, _ = filled(num_steps)
    if num_steps:
        buffer.sample(5)
    global_state = torch.get_rng_state()
    buffer.save(tmp_path / "b.safetensors")
    loaded = ReplayBuffer.load(tmp_path / "b.safetensors")
    assert torch.equal(torch.get_rng_state(), global_state)
    assert same(buffer, loaded)
    assert (loaded.capacity, loaded.num_envs, len(loaded)) == (21, 3, len(buffer))
    if num_steps:
        mine, its = buffer.sample(300, n_step=3), loaded.sample(300, n_step=3)
        assert torch.equal(mine.index, its.index)
        assert found(mine) == found(its)
    loaded.save(tmp_path / "again.safetensors")
    assert same(loaded, ReplayBuffer.load(tmp_path / "again.safetensors"), ignored="")


def test_what_follows_a_load_starts_a_new_trace(tmp_path: Path) -> None:
    buffer, reference, world = make_buffer(8), Reference(8, 1), World(0, 1)
    roam(buffer, reference, world, 11)
    buffer.save(tmp_path / "b")
    loaded = ReplayBuffer.load(tmp_path / "b")
    assert_holds(loaded, reference, 3)
    world.restart()
    reference.end_trajectory(0)
    for _ in range(3):
        add_step(loaded, reference, world.step()[0])
        assert_holds(loaded, reference, 3)


def test_a_state_goes_on_where_it_was() -> None:
    one, world = filled(9)
    one.end_trajectory(np.array([False, True, False]))
    reference_world = copy.deepcopy(world)
    state = copy.deepcopy(one.state_dict())
    other, _ = filled(4, seed=5)
    other.load_state_dict(state)
    assert other.state_dict()["pending_end"].tolist() == [False, True, False]
    assert same(one, other, ignored="")
    for buffer, its_world in ((one, world), (other, reference_world)):
        roam(buffer, None, its_world, 5)
        buffer.end_trajectory(np.array([True, False, False]))
        roam(buffer, None, its_world, 7)
    assert same(one, other, ignored="")
    assert found(one.sample(400, n_step=4)) == found(other.sample(400, n_step=4))


def test_loading_again_over_a_fuller_buffer_leaves_nothing_of_it() -> None:
    buffer, _ = filled(20)
    buffer.load_state_dict(filled(0)[0].state_dict())
    assert len(buffer) == 0
    reference, world = Reference(7, 3), World(4, 3)
    for _ in range(12):
        add_step(buffer, reference, world.step()[0])
        assert_holds(buffer, reference, 3)


def test_a_short_file_of_a_huge_buffer_loads_into_a_small_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, _ = filled(2, capacity=3_000_000)
    buffer.save(tmp_path / "b")
    assert (tmp_path / "b").stat().st_size < 15_000  # rows that were never filled are not written
    assert same(buffer, ReplayBuffer.load(tmp_path / "b"))
    monkeypatch.setattr("rltrainer.data.memory_forecast.available_bytes", lambda device: 100_000)
    with pytest.raises(ReplayBufferError, match="ReplayBuffer.capacity: needs 0.078 GB of memory on cpu"):
        ReplayBuffer.load(tmp_path / "b")
    assert len(ReplayBuffer.load(tmp_path / "b", capacity=300)) == len(buffer)


def test_extras_and_trees_survive_a_file(tmp_path: Path) -> None:
    space = gym.spaces.Dict({"b": gym.spaces.Tuple([OBS, gym.spaces.Discrete(9)]), "a": OBS})
    buffer = ReplayBuffer(5, space, ACTION, seed=3, extra={"x": ((2,), torch.float16)})
    no = np.zeros(1, np.bool_)
    for i in range(8):
        leaf = np.full((1, 2), i, np.float32)
        obs = {"a": leaf, "b": (leaf + 0.5, np.array([i]))}
        buffer.add(obs, np.zeros(1, int), np.zeros(1), obs, np.array([i % 3 == 2]), no, {"x": leaf})
    buffer.save(tmp_path / "b")
    loaded = ReplayBuffer.load(tmp_path / "b")
    assert loaded.extra == buffer.extra
    assert loaded.observation_space == space
    batches = [each.sample(40) for each in (buffer, loaded)]
    leaves = [[x.obs["a"], *x.obs["b"], x.next_obs["a"], x.extra["x"]] for x in batches]
    assert all(torch.equal(a, b) for a, b in zip(*leaves, strict=True))


@pytest.mark.parametrize("capacity", [None, 60])
@pytest.mark.parametrize("own_seed", [True, False])
def test_whether_a_buffer_has_its_own_seed_survives(tmp_path: Path, own_seed: bool, capacity: int | None) -> None:
    buffer, _ = filled(2, seed=0)
    plain = ReplayBuffer(21, OBS, ACTION, 3)
    (buffer if own_seed else plain).save(tmp_path / "b")
    loaded = ReplayBuffer.load(tmp_path / "b", capacity=capacity)
    before = loaded.generator.get_state()
    loaded.seed(123)
    assert torch.equal(before, loaded.generator.get_state()) == own_seed


def test_a_generator_of_another_device_starts_from_its_state() -> None:
    buffer, _ = filled(2)
    buffer.sample(10)
    state = copy.deepcopy(buffer.state_dict())
    state["generator"] = state["generator"][:16]  # the size of a CUDA generator's
    others = [filled(0, seed=seed)[0] for seed in (0, 1)]
    for other in others:
        other.load_state_dict(state)
    states = [other.generator.get_state() for other in (buffer, *others)]
    assert torch.equal(*states[1:])
    assert not torch.equal(*states[:2])


def damage(state: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        state = state[key]
    if value is None:
        del state[path[-1]]
    else:
        state[path[-1]] = value(state[path[-1]]) if callable(value) else value


DAMAGES: list[tuple[tuple[Any, ...], Any, str]] = [
    (("capacity",), -3, "capacity: expected a positive integer, found -3"),
    (("capacity",), 22, "capacity: must be a multiple of num_envs=3; got 22"),
    (("num_envs",), "3", "num_envs: expected an integer, found '3'"),
    (("observation_space",), {"space": "Magic"}, "observation_space: unknown space 'Magic' in the file"),
    (("extra",), {"x": {"shape": [], "dtype": "float3"}}, "extra.x.dtype: expected one of 'float32'"),
    (("action_space",), None, "action_space: missing in the saved state"),
    (("written",), lambda x: x[:2], "written: expected 3 values, found 2"),
    (("written",), lambda x: -x - 1, "written: expected int64 numbers in [0, 2**62)"),
    (("written",), lambda x: x + 2**62, "written: expected int64 numbers in [0, 2**62)"),
    (("written",), [1, 2, 3], "written: expected an array, found [1, 2, 3]"),
    (("pending_end",), lambda x: x.long(), "pending_end: expected flags"),
    (("head",), {}, "head: expected the leaves ['']"),
    (("head", ""), lambda x: x[1:], "expected torch.float32 (3, 2), found torch.float32 (2, 2)"),
    (("rows",), None, "rows: missing in the saved state"),
    (("rows",), {}, "rows: expected a list, found {}"),
    (("rows",), lambda x: [*x, 7], "rows.5: expected a mapping, found 7"),
    (("rows",), [], "rows: expected those up to"),
    (("rows",), lambda x: x[:-1], "rows: expected those up to"),
    (("rows",), lambda x: [*x, x[-1]], ".start: expected"),
    (("rows",), lambda x: x[::-1], "rows.0.start: expected"),
    (("rows", 1, "start"), lambda x: -x, "rows.1.start: expected int64 numbers"),
    (("rows", 1, "stop"), lambda x: x + 2**62, "rows.1.stop: expected int64 numbers"),
    (("rows", 1, "stop"), lambda x: x + 1, """rows.1.data["obs"]: expected torch.float32 ("""),
    (("rows", 0, "stop"), lambda x: x[:2], "rows.0.start, stop: no ranges"),
    (("rows", 0, "data", '["reward"]'), None, "rows.0.data: expected the leaves"),
    (("rows", 0, "data", '["extra"]["x"]'), torch.zeros(1), "rows.0.data: expected the leaves"),
    (("rows", 0, "data"), 3, "rows.0.data: expected a mapping, found 3"),
    (("rows", 0, "data", '["reward"]'), lambda x: x.double(), 'rows.0.data["reward"]: expected torch.float32 ('),
    (("rows", 0, "data", '["action"]'), lambda x: x + 5, "rows.0.action: must lie in Discrete(5); transition 0 is "),
    (("rows", 0, "data", '["action"]'), lambda x: x - 5, "rows.0.action: must lie in Discrete(5); transition 0 is -"),
    (("rows", 0, "final_obs"), {}, "rows.0.final_obs: expected the leaves ['']"),
    (("rows", 0, "final_obs", ""), lambda x: x[1:], "rows.0.final_obs: expected torch.float32 ("),
    (("rows", 0, "final_index"), lambda x: x.flip(0), "rows.0.final_index: names no rows"),
    (("rows", 0, "final_index"), lambda x: torch.cat([x[:-1], torch.tensor([24])]), "rows.0.final_index: names no"),
    (("rows", 0, "final_index"), lambda x: torch.cat([torch.tensor([-1]), x[1:]]), "final_index: expected int64"),
    (("rows", 0, "final_index"), lambda x: x.reshape(1, -1), "rows.0.final_index: expected int64 numbers"),
    (("generator",), torch.zeros(3, dtype=torch.uint8), "generator: not the state of a generator (3 bytes)"),
    (("generator",), "x", "generator: expected the state of a generator, found str"),
    (("has_own_seed",), "yes", "has_own_seed: expected True or False"),
    (("more",), 1, "buffer.more: expected no field of BufferState"),
]


@pytest.mark.parametrize(("path", "value", "text"), DAMAGES)
def test_a_damaged_state_changes_nothing_and_a_damaged_file_names_its_path(
    tmp_path: Path, path: tuple[str, ...], value: Any, text: str
) -> None:
    source, _ = filled(20, seed=1)
    state = copy.deepcopy(source.state_dict())
    damage(state, path, value)
    buffer, _ = filled(4, seed=2)
    before = copy.deepcopy(buffer.state_dict())
    with raises(ReplayBufferError, text):
        buffer.load_state_dict(state)
    unchanged, _ = filled(0)
    unchanged.load_state_dict(before)
    assert same(buffer, unchanged, ignored="")
    write_state(tmp_path / "b", "replay_buffer", state)
    for capacity in (None, 60):
        with pytest.raises(ReplayBufferError, match=rf"^{tmp_path / 'b'}: .*{re.escape(text)}"):
            ReplayBuffer.load(tmp_path / "b", capacity=capacity)


def test_an_episode_end_without_its_final_observation_is_refused() -> None:
    buffer, _ = filled(4)
    state = copy.deepcopy(buffer.state_dict())
    rows = next(rows for rows in state["rows"] if len(rows["final_index"]))
    rows["final_index"] = rows["final_index"][1:]
    rows["final_obs"][""] = rows["final_obs"][""][1:]
    with pytest.raises(ReplayBufferError, match="final_obs: lacks the final observation of an episode"):
        buffer.load_state_dict(state)


def test_what_is_no_buffer_file(tmp_path: Path) -> None:
    filled(9)[0].save(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    for length in (0, 7, 100, len(whole) - 1):
        (tmp_path / f"cut {length}").write_bytes(whole[:length])
    (tmp_path / "text").write_text("hello, this is no buffer")
    write_state(tmp_path / "other", "algorithm", {})
    write_state(tmp_path / "empty", "replay_buffer", {})
    texts = {
        "nothing": "there is no such file",
        "other": "expected a file of kind 'replay_buffer', found 'algorithm'",
        "empty": "buffer.generator: missing in the saved state",
    }
    for path in (*tmp_path.iterdir(), tmp_path / "nothing"):
        if path.name != "whole":
            with raises(ReplayBufferError, texts.get(path.name, "not a readable replay_buffer file")):
                ReplayBuffer.load(path)
    for name in ("capacity", "num_envs"):
        arguments: Any = {name: 0}
        with raises(ParamsError, f"ReplayBuffer.{name}: must be a positive integer; got 0"):
            ReplayBuffer.load(tmp_path / "whole", **arguments)


def test_a_file_holds_spaces_and_no_code(tmp_path: Path) -> None:
    filled(2)[0].save(tmp_path / "b")
    state = read_state(tmp_path / "b", "replay_buffer", ReplayBufferError)
    assert state["action_space"] == {"space": "Discrete", "n": 5, "start": 0}
    assert state["pending_end"].tolist() == [True, True, True]
