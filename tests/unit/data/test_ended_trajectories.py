"""Returns to go by hand and against brute force; the bounds of trajectories are tested with their buffer."""

import copy

import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import ReplayBufferError
from tests.unit.data.reference import Reference, cell, fill, make_buffer, played
from tests.unit.data.test_hindsight import make as hindsight
from tests.unit.data.test_hindsight import walk


def returns(buffer: rl.ReplayBuffer, gamma: float = 0.9) -> dict[int, float]:
    """Return the returns by observation."""
    batch = buffer.sample(100, gamma=gamma, return_to_go=True)
    return dict(zip(batch.obs[:, 0].long().tolist(), batch.extra["return_to_go"].tolist(), strict=True))


def test_by_hand() -> None:
    buffer = fill(make_buffer(9), cell(0, 1.0), cell(1, 0.0), cell(2, 2.0, end="t"), cell(4, 7.0))
    # 1 + .9 (0 + .9 * 2); of the running trajectory nothing is known.
    assert returns(buffer) == pytest.approx({0: 2.62, 1: 1.8, 2: 2.0, 4: -np.inf})
    assert returns(buffer, 0.5) == pytest.approx({0: 1.5, 1: 1.0, 2: 2.0, 4: -np.inf})
    # Behind a time limit the last reward goes on for ever: .5 / (1 - .9) = 5, and 2 + .9 * 5 = 6.5 a step before, ...
    buffer = fill(make_buffer(9), cell(0, 1.0), cell(1, 0.0), cell(2, 2.0), cell(3, 0.5, end="u"))
    assert returns(buffer) == pytest.approx({0: 6.265, 1: 5.85, 2: 6.5, 3: 5.0})
    assert returns(buffer, 1.0)[0] == -np.inf
    unsolved = fill(make_buffer(9), cell(0, -5.0), cell(1, -5.0, end="u"))
    assert returns(unsolved, 0.99) == pytest.approx({0: -500.0, 1: -500.0})
    assert buffer.sample(7, num_batches=2, return_to_go=True).extra["return_to_go"].shape == (2, 7)
    assert not buffer.sample(7).extra


@pytest.mark.parametrize("num_envs", [1, 3])
def test_returns_equal_brute_force(num_envs: int) -> None:
    buffer, reference = make_buffer(9 * num_envs, num_envs), Reference(9, num_envs)
    for step in played(buffer, reference, 0, 120):
        if step == 40:
            buffer.clear()
            reference.streams = [[] for _ in range(num_envs)]
        if step == 80:
            buffer.load_state_dict(copy.deepcopy(buffer.state_dict()))
        if step % 4 or not len(buffer):  # now and then more is stored than fits before they are asked for
            continue
        expected = {}
        for stream, i, _, end in reference.spans():
            last = stream[end]
            rest = 0.0 if last.terminated else 10 * last.reward if last.truncated or last.broken else -np.inf
            rewards = [each.reward for each in stream[i : end + 1]]
            expected[stream[i].obs] = sum(0.9**k * x for k, x in enumerate(rewards)) + 0.9 ** len(rewards) * rest
        found = returns(buffer)
        assert found == pytest.approx({obs: expected[obs] for obs in found}, rel=1e-5)


def test_other_buffers() -> None:
    offline = fill(make_buffer(4), cell(5, 2.0, end="t"))
    batch = rl.MixedBuffer(fill(make_buffer(4), cell(0)), offline, 0.5).sample(4, return_to_go=True)
    assert batch.extra["return_to_go"].tolist() == [-np.inf, -np.inf, 2.0, 2.0]
    of_goals = hindsight()
    walk(of_goals, [0.0, 1.0, 2.0], terminated=True)
    with pytest.raises(ReplayBufferError, match="HindsightReplayBuffer.sample: returns to go are of the goals that"):
        of_goals.sample(4, return_to_go=True)
