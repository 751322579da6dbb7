"""Windows of consecutive steps of a rollout."""

import math
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError
from rltrainer.functional.returns import gae
from rltrainer.hooks import BatchSubSampler
from rltrainer.hooks.batch_sub_sampler import windows
from tests.fakes import ScriptedOffPolicy, ScriptedOnPolicy, counting_envs, tiny_actor_critic
from tests.unit.hooks.fake_run import FakeRun, rollout

BAD_VALUES = [-1, 0, math.inf, math.nan, "", None, True, []]


def made() -> rl.Rollout:
    """T = 4, N = 2; the observation of cell (t, n) is 2 t + n, after the last row 90, 91. Rewards as observations.

    Env 0 is terminated at t = 1 (observing 70), env 1 truncated at t = 3 (observing 71).
    """
    terminated, truncated = torch.zeros(4, 2, dtype=torch.bool), torch.zeros(4, 2, dtype=torch.bool)
    terminated[1, 0] = truncated[3, 1] = True
    return rollout(
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]], terminated=terminated, truncated=truncated,
        last_obs=torch.tensor([[90.0], [91.0]]), final_obs=torch.tensor([[70.0], [71.0]]),
        final_index=torch.tensor([2, 7]), extra={"log_prob": -torch.arange(8.0).view(4, 2)},
    )  # fmt: skip


def test_windows_by_hand() -> None:
    # from (0, 0), (1, 0), (2, 1): the first cells 0, 2, 5
    found = windows(made(), torch.tensor([0, 2, 5]), 2)
    assert found.obs.squeeze(-1).tolist() == [[0.0, 2.0, 5.0], [2.0, 4.0, 7.0]]
    assert found.reward.tolist() == [[0.0, 2.0, 5.0], [2.0, 4.0, 7.0]]
    assert found.extra["log_prob"].tolist() == [[0.0, -2.0, -5.0], [-2.0, -4.0, -7.0]]
    assert found.terminated.tolist() == [[False, True, False], [True, False, False]]
    assert found.truncated.tolist() == [[False, False, False], [False, False, True]]
    # After them come (2, 0); (3, 0); and the end of the rollout.
    assert found.last_obs.squeeze(-1).tolist() == [4.0, 6.0, 91.0]
    assert found.next_obs.squeeze(-1).tolist() == [[2.0, 70.0, 7.0], [70.0, 6.0, 71.0]]
    assert found.starts.tolist() == [True] * 3


def test_the_successor_of_each_cell_is_that_in_the_rollout() -> None:
    whole = made()
    for length in range(1, 5):
        first = torch.arange((4 - length + 1) * 2)
        found = windows(whole, first, length)
        cells = found.reward.long()  # a reward is the number of its cell
        assert torch.equal(found.next_obs, whole.next_obs.flatten(0, 1)[cells])


def test_advantages_look_ahead_to_the_end_of_their_window() -> None:
    def advantages(of: rl.Rollout) -> torch.Tensor:
        value, next_value = of.obs.squeeze(-1), of.next_obs.squeeze(-1)  # V(obs) = obs
        return gae(of.reward, value, next_value, of.terminated, of.ends, 0.5, 0.5)[0]

    found = advantages(windows(made(), torch.tensor([5]), 1))
    assert found.tolist() == [[5.0 + 0.5 * 7.0 - 5.0]]  # bootstraps from what followed
    # A window of all rows is the rollout of its env.
    torch.testing.assert_close(advantages(windows(made(), torch.tensor([1, 0]), 4)), advantages(made())[:, [1, 0]])


def drawn(batch_size: int, length: int, batch: rl.Rollout, seed: int = 0) -> rl.Rollout:
    return BatchSubSampler(batch_size, length, seed=seed).batch_process(FakeRun(), batch)


def test_all_windows_are_drawn_the_last_one_too_and_none_twice() -> None:
    found = drawn(12, 2, made())
    assert sorted(found.reward[0].tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert torch.equal(found.reward[1], found.reward[0] + 2)


def test_each_window_is_as_likely() -> None:
    hook, counts = BatchSubSampler(2, 2, seed=0), torch.zeros(6)
    for _ in range(3000):
        counts[hook.batch_process(FakeRun(), made()).reward[0].long()] += 1
    assert counts.sum() == 3000
    # 500 each; six standard deviations of a binomial are 6 * sqrt(3000 * 1/6 * 5/6) = 122
    assert (counts - 500).abs().max() < 122


def test_shapes_and_short_rollouts() -> None:
    assert drawn(4, 2, made()).reward.shape == (2, 2)
    assert drawn(4, 4, made()).reward.shape == (4, 1)
    assert drawn(16, 8, made()).reward.shape == (4, 2)  # only 4 steps: whole envs
    assert drawn(100, 1, made()).reward.shape == (1, 8)


def test_windows_begin_with_cells_that_count() -> None:
    batch = made()
    batch.valid[:, 0] = False
    assert sorted(drawn(12, 2, batch).reward[0].tolist()) == [1.0, 3.0, 5.0]
    batch.valid[:] = False
    assert drawn(4, 2, batch).reward.shape == (2, 2)


def test_seeds() -> None:
    def first(hook: BatchSubSampler) -> list[float]:
        return hook.batch_process(FakeRun(), made()).reward[0].tolist()

    def seeded(own: int | None, runs: int) -> BatchSubSampler:
        hook = BatchSubSampler(6, 2, seed=own)
        hook.seed(runs)
        return hook

    assert first(seeded(None, 1)) == first(seeded(None, 1))
    assert len({tuple(first(seeded(None, n))) for n in range(5)}) > 1
    assert {tuple(first(seeded(3, n))) for n in range(5)} == {tuple(first(BatchSubSampler(6, 2, seed=3)))}


def test_it_draws_nothing_from_the_global_generator() -> None:
    hook, before = BatchSubSampler(4, 2, seed=0), torch.get_rng_state()
    hook.batch_process(FakeRun(), made())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_goes_on() -> None:
    one, other = BatchSubSampler(4, 2, seed=0), BatchSubSampler(4, 2, seed=1)
    one.batch_process(FakeRun(), made())
    other.prepare_load(one.state_dict())()
    for _ in range(3):
        found = [hook.batch_process(FakeRun(), made()).reward.tolist() for hook in (one, other)]
        assert found[0] == found[1]


def test_another_state_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match="BatchSubSampler.generator: expected the state of a generator, found int"
    ):
        BatchSubSampler(4, 2).prepare_load({"generator": 3})


def test_it_needs_rollouts_with_windows() -> None:
    policy = tiny_actor_critic(counting_envs())
    with pytest.raises(
        ParamsError, match="BatchSubSampler.algorithm: must be on policy; got .*A replay buffer samples"
    ):
        BatchSubSampler(4, 2).setup(FakeRun(ScriptedOffPolicy(policy)))
    collector = rl.Collector(policy, counting_envs(2))
    run = FakeRun(ScriptedOnPolicy(policy), training_collector=collector, collection_step_num_env_steps=7)
    BatchSubSampler(4, 4).setup(run)
    text = r"BatchSubSampler.sub_traj_len: must be at most 4, the steps of each env in a collection step; got 5 \(int\)"
    with pytest.raises(ParamsError, match=text):
        BatchSubSampler(5, 5).setup(run)
    run.params.collection_step_num_env_steps = None
    BatchSubSampler(5, 5).setup(run)


def test_whole_windows_only() -> None:
    text = r"BatchSubSampler.batch_size: must be a multiple of sub_traj_len, 3; got 4 \(int\)"
    with pytest.raises(ParamsError, match=text):
        BatchSubSampler(4, 3)


@pytest.mark.parametrize("field", ["batch_size", "sub_traj_len"])
@pytest.mark.parametrize("value", BAD_VALUES)
def test_arguments(field: str, value: Any) -> None:
    with pytest.raises(ParamsError, match=rf"BatchSubSampler\.{field}: must be a positive integer; got "):
        BatchSubSampler(**({"batch_size": 4, "sub_traj_len": 2} | {field: value}))


@pytest.mark.parametrize("value", [-1, math.inf, math.nan, "", True, []])
def test_a_seed(value: Any) -> None:
    with pytest.raises(ParamsError, match=r"BatchSubSampler\.seed: must be a non-negative integer or None; got "):
        BatchSubSampler(4, 2, seed=value)
