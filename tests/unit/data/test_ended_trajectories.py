"""Returns to go by hand and against brute force; the bounds of trajectories are tested with their buffer."""

import copy

import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ReplayBufferError
from tests.unit.data.reference import Reference, cell, fill, make_buffer, played
from tests.unit.data.test_hindsight import make as hindsight
from tests.unit.data.test_hindsight import walk


def returns(buffer: rl.ReplayBuffer, value: float) -> dict[int, float]:
    """Return what follows each observation, if trajectories end at this value."""
    batch = buffer.sample(100, gamma=0.9, return_to_go=True)
    known = batch.extra["return_to_go"] + batch.extra["end_discount"] * value
    return dict(zip(batch.obs[:, 0].long().tolist(), known.tolist(), strict=True))


def test_by_hand() -> None:
    buffer = fill(make_buffer(9), cell(0, 1.0), cell(1, 0.0), cell(2, 2.0, end="t"), cell(4, 7.0))
    # 1 + .9 (0 + .9 * 2); a terminated one has no value behind it, and of the running one nothing is known.
    assert returns(buffer, 5.0) == pytest.approx({0: 2.62, 1: 1.8, 2: 2.0, 4: -np.inf})
    buffer = fill(make_buffer(9), cell(0, 1.0), cell(1, 0.0), cell(2, 2.0, end="u"))
    assert returns(buffer, 5.0) == pytest.approx({0: 6.265, 1: 5.85, 2: 6.5})  # 2 + .9 * 5 = 6.5, and so on
    batch = buffer.sample(7, num_batches=2, return_to_go=True)
    assert batch.extra["end_obs"][..., 0].tolist() == [[3.0] * 7] * 2
    assert batch.extra["return_to_go"].max() > 2.62  # with another gamma
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
        batch = buffer.sample(30, gamma=0.9, return_to_go=True)
        runs = {all_[i].obs for all_, i, _, end in reference.spans() if not (last := all_[end]).broken and not
                last.terminated and not last.truncated}  # fmt: skip
        found = (batch.obs[:, 0], batch.extra["end_obs"][:, 0], batch.extra["end_discount"])
        for known, obs, *end in zip(batch.extra["return_to_go"].tolist(), *(x.tolist() for x in found), strict=True):
            _, reward, next_obs, _, _, discount = reference.expected(99, 0.9)[int(obs)]
            assert known == pytest.approx(-np.inf if obs in runs else reward, rel=1e-5)
            assert obs in runs or end == pytest.approx([next_obs, discount])


def test_other_buffers() -> None:
    offline = fill(make_buffer(4), cell(5, 2.0, end="t"))
    batch = rl.MixedBuffer(fill(make_buffer(4), cell(0)), offline, 0.5).sample(4, return_to_go=True)
    assert batch.extra["return_to_go"].tolist() == [-np.inf, -np.inf, 2.0, 2.0]
    assert torch.equal(batch.extra["end_obs"][:, 0], torch.tensor([1.0, 1, 6, 6]))
    of_goals = hindsight()
    walk(of_goals, [0.0, 1.0, 2.0], terminated=True)
    with pytest.raises(ReplayBufferError, match="HindsightReplayBuffer.sample: returns to go are of the goals that"):
        of_goals.sample(4, return_to_go=True)
