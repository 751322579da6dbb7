"""Buffers on the device, whose columns lie in one memory: they hold what a buffer on the host holds."""

import copy
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ReplayBufferError, SpaceError
from rltrainer.tree import map_tree, named_leaves

OBS = gym.spaces.Dict(image=gym.spaces.Box(0, 255, (3, 1, 1), np.uint8), speed=gym.spaces.Box(-9, 9, (2,), np.float32))
ACTION = gym.spaces.Discrete(5)
EXTRA = {
    "log_prob": ((), torch.float64),
    "mask": ((3,), torch.bool),
    "half": ((1,), torch.float16),
    "none": ((0,), torch.int8),
}


def made(device: str, num_envs: int = 2) -> rl.ReplayBuffer:
    return rl.ReplayBuffer(8, OBS, ACTION, num_envs, device=device, seed=1, extra=EXTRA)


def values(rng: np.random.Generator, *axes: int) -> dict[str, Any]:
    """Return made-up values of all columns, arrays [*axes, ...]."""
    obs = {
        "image": rng.integers(0, 255, (*axes, 3, 1, 1), np.uint8),
        "speed": rng.standard_normal((*axes, 2), np.float32),
    }
    extra = {
        "log_prob": rng.standard_normal(axes),
        "mask": rng.random((*axes, 3)) < 0.5,
        "half": rng.standard_normal((*axes, 1)).astype(np.float16),
        "none": np.zeros((*axes, 0), np.int8),
    }
    return {
        "obs": obs, "action": rng.integers(0, 5, axes), "reward": rng.standard_normal(axes, np.float32),
        "terminated": rng.random(axes) < 0.2, "truncated": rng.random(axes) < 0.2, "extra": extra,
    }  # fmt: skip


def step(rng: np.random.Generator, num_envs: int = 2) -> dict[str, Any]:
    """Return arguments of `add`."""
    return values(rng, num_envs) | {"next_obs": values(rng, num_envs)["obs"]}


def rollout(rng: np.random.Generator, num_rows: int, all_valid: bool) -> rl.Rollout:
    """Return a rollout of two envs on the host."""
    made = map_tree(torch.from_numpy, values(rng, num_rows, 2))
    done = (made["terminated"] | made["truncated"]).flatten().nonzero().squeeze(1)
    last, final = (map_tree(torch.from_numpy, values(rng, n)["obs"]) for n in (2, len(done)))
    valid = torch.from_numpy(np.full((num_rows, 2), True) if all_valid else rng.random((num_rows, 2)) < 0.7)
    done = done[valid.flatten()[done]]
    final = map_tree(lambda x: x[: len(done)], final)
    starts = torch.tensor([False, False])
    return rl.Rollout(**made, valid=valid, last_obs=last, final_obs=final, final_index=done, starts=starts)


def contents(buffer: rl.ReplayBuffer) -> dict[str, Any]:
    """Return everything that a buffer holds, copied to the host."""
    if not len(buffer):
        return {}
    slots = torch.arange(len(buffer), device=buffer.device)
    batch = buffer._ring.transitions(buffer._ring.slots(slots), 2, 0.9)
    found = {name: getattr(batch, name) for name in batch.__slots__}
    return {name: leaf.cpu() for name, leaf in named_leaves(found)}


def assert_same(one: rl.ReplayBuffer, other: rl.ReplayBuffer) -> None:
    first, second = contents(one), contents(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
def test_they_hold_what_was_stored_in_any_way(seed: int) -> None:
    rng, buffers = np.random.default_rng(seed), [made("cuda"), made("cpu")]
    for _ in range(12):
        kind, written, token = rng.integers(0, 5), rng.integers(0, 100), object()
        for buffer in buffers:
            again = np.random.default_rng(written)
            if kind == 0:
                buffer.add(**step(again), token=token)
            elif kind == 1:
                buffer.add_rollout(rollout(again, 3, all_valid=True), token=token)
            elif kind == 2:
                buffer.add_rollout(rollout(again, 2, all_valid=False), token=token)
            elif kind == 3:
                there = partial(torch.as_tensor, device=buffer.device)
                buffer.add(**map_tree(there, step(again)), token=token)
            else:
                buffer.extend(copy.deepcopy(buffer))
        assert_same(*buffers)
    for one, other in (buffers, buffers[::-1]):
        one.load_state_dict(copy.deepcopy(other.state_dict()))
        assert_same(one, other)
        ring = one._ring
        head = map_tree(torch.Tensor.cpu, ring.observations(ring.on_device(ring.heads())))
        head["speed"][1] += 1
        ring.pending_end[:] = False
        one.resume(one, head)
        first, second = ring.final.index.reshape(-1)[ring._slots_at(ring.written - 1)] > 0
        assert ring.pending_end.tolist() == [False, not second]
        other.end_trajectory(np.array([True, True]))
        one.end_trajectory(np.array([not first, True]))
        for buffer in buffers:
            buffer.add(**step(np.random.default_rng(1)), token=one)
        assert_same(one, other)


def test_a_copy_has_rows_of_its_own() -> None:
    rng, buffer, twin = np.random.default_rng(1), made("cuda"), made("cpu")
    for k in range(6):
        written = step(rng)
        buffer.add(**written)
        twin.add(**written)
        if k == 2:
            other = copy.deepcopy(buffer)
            assert_same(other, twin)
    assert len(other) == 6
    assert_same(buffer, twin)
    for _ in range(3):
        written = step(rng)
        other.add(**written)
    assert_same(buffer, twin)
    assert len(other) == 8
    newest = contents(other)['["obs"]["speed"]']
    assert any(np.array_equal(row, written["obs"]["speed"][0]) for row in newest.numpy())


def test_storing_does_not_wait_and_a_rollout_is_compared_on_the_host() -> None:
    rng, buffer, token = np.random.default_rng(1), made("cuda"), object()
    buffer.add(**step(rng), token=token)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            buffer.add(**step(rng), token=token)
            data = rollout(rng, 3, all_valid=True)
            buffer.add_rollout(data, token=token)
        after = map_tree(lambda x: x.unsqueeze(0), data.last_obs)
        follows = rollout(rng, 1, all_valid=True)
        follows.obs = map_tree(torch.clone, after)
        follows.obs["speed"][0, 1] += 1  # of another trajectory
        ended = np.logical_or.reduce([data.terminated[-1], data.truncated[-1]])
        buffer.add_rollout(follows, token=token)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    ends = buffer._ring.final.index[(buffer._ring.written[0] - 2) % buffer._ring.num_rows] > 0
    assert ends.tolist() == [bool(ended[0]), True]


def test_a_step_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    rng, buffer = np.random.default_rng(1), made("cuda")
    buffer.add(**step(rng))
    before = contents(buffer)
    for change, error, text in (
        ({"reward": np.zeros(3, np.float32)}, ReplayBufferError, "reward: expected float32 of shape .2,., got"),
        ({"reward": torch.zeros(3, device="cuda")}, ReplayBufferError, "reward: expected float32 of shape .2,., got"),
        ({"action": np.array([1, 7])}, SpaceError, r"action: must lie in Discrete\(5\)"),
    ):
        with pytest.raises(error, match=text):
            buffer.add(**step(rng) | change)
        assert contents(buffer).keys() == before.keys()
        assert len(buffer) == 2
        assert all(torch.equal(value, contents(buffer)[name]) for name, value in before.items())
