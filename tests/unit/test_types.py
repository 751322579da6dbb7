"""Transitions, rollouts and update results, by hand."""

import dataclasses

import pytest
import torch

from rltrainer.tree import leaves
from rltrainer.types import Rollout, Transitions, UpdateResult


def make_transitions(first: int, size: int) -> Transitions:
    """Transition i has obs i, action 10 i, reward 100 i, and so on."""
    i = torch.arange(first, first + size)
    return Transitions(
        obs={"x": i.float().unsqueeze(-1)},
        action=10 * i,
        reward=100.0 * i,
        next_obs={"x": (i + 1).float().unsqueeze(-1)},
        terminated=i % 2 == 0,
        truncated=i % 3 == 0,
        discount=0.9 * (i % 2 != 0),
        index=i,
        weight=torch.ones(size),
        extra={"log_prob": -i.float()},
    )


def test_stacking_k_batches_and_taking_one_back() -> None:
    batches = [make_transitions(0, 3), make_transitions(3, 3)]
    stacked = Transitions.stack(batches)
    assert stacked.reward.tolist() == [[0.0, 100.0, 200.0], [300.0, 400.0, 500.0]]
    assert stacked.obs["x"].shape == (2, 3, 1)
    for field in dataclasses.fields(Transitions):
        again, before = (leaves(getattr(batch, field.name)) for batch in (stacked[1], batches[1]))
        assert all(torch.equal(a, b) for a, b in zip(again, before, strict=True)), field.name


def test_transitions_already_on_the_device_are_not_copied() -> None:
    transitions = make_transitions(0, 2)
    assert transitions.to("cpu") is transitions
    assert transitions.to("meta").obs["x"].device.type == "meta"


def make_rollout() -> Rollout:
    """T = 3, N = 2. Env 0 ends an episode at t = 1 (after it observation 91), env 1 at t = 0 and t = 2 (92, 93).

    env 0 observes 0, 1, then, anew, 10; after the last row 11.
    env 1 observes 5, then, anew, 20, 21; after the last row, anew, 30.
    """
    flags = torch.zeros(3, 2, dtype=torch.bool)
    terminated, truncated = flags.clone(), flags.clone()
    terminated[1, 0] = terminated[0, 1] = truncated[2, 1] = True
    return Rollout(
        obs={"x": torch.tensor([[0.0, 5.0], [1.0, 20.0], [10.0, 21.0]]).unsqueeze(-1)},
        action=torch.zeros(3, 2),
        reward=torch.zeros(3, 2),
        terminated=terminated,
        truncated=truncated,
        valid=~flags,
        last_obs={"x": torch.tensor([[11.0], [30.0]])},
        final_obs={"x": torch.tensor([[92.0], [91.0], [93.0]])},
        final_index=torch.tensor([0 * 2 + 1, 1 * 2 + 0, 2 * 2 + 1]),
        starts=torch.ones(2, dtype=torch.bool),
    )


def test_next_obs_is_the_next_row_but_the_final_observation_where_an_episode_ended() -> None:
    rollout = make_rollout()
    assert rollout.next_obs["x"].squeeze(-1).tolist() == [[1.0, 92.0], [91.0, 21.0], [11.0, 93.0]]
    assert torch.equal(rollout.successors_at(torch.arange(6))["x"], rollout.next_obs["x"].flatten(0, 1))
    assert rollout.obs["x"].squeeze(-1).tolist() == [[0.0, 5.0], [1.0, 20.0], [10.0, 21.0]]  # untouched


def test_ends_are_where_episodes_ended_and_where_traces_were_cut() -> None:
    rollout = make_rollout()
    rollout.final_index = torch.tensor([1, 2, 3, 5])  # (1, 1) is before a boundary
    assert rollout.ends.tolist() == [[False, True], [True, True], [False, True]]
    assert rollout.done.tolist() == [[False, True], [True, False], [False, True]]


def test_successors_arranges_anything_that_belongs_to_observations() -> None:
    rollout = make_rollout()
    value, last, final = (tree["x"].squeeze(-1) * 2 for tree in (rollout.obs, rollout.last_obs, rollout.final_obs))
    assert rollout.successors(value, last, final).tolist() == [[2.0, 184.0], [182.0, 42.0], [22.0, 186.0]]


def test_next_obs_without_any_episode_end() -> None:
    rollout = dataclasses.replace(
        make_rollout(), final_obs={"x": torch.zeros(0, 1)}, final_index=torch.zeros(0, dtype=torch.int64)
    )
    assert rollout.next_obs["x"].squeeze(-1).tolist() == [[1.0, 20.0], [10.0, 21.0], [11.0, 30.0]]
    assert torch.equal(rollout.successors_at(torch.arange(6))["x"], rollout.next_obs["x"].flatten(0, 1))


def test_valid_cells_are_in_time_order() -> None:
    rollout = make_rollout()
    assert rollout.valid_cells(rollout.obs)["x"].squeeze(-1).tolist() == [0.0, 5.0, 1.0, 20.0, 10.0, 21.0]
    rollout.valid[1, 0] = rollout.valid[2, 1] = False
    assert rollout.valid_cells(rollout.obs)["x"].squeeze(-1).tolist() == [0.0, 5.0, 20.0, 10.0]


def test_a_mean_weighs_each_result_with_its_gradient_steps() -> None:
    steps = [UpdateResult({"loss": torch.tensor(loss)}) for loss in (1.0, 2.0, 3.0, 4.0)]
    # (3 * 1.0 + 1 * 5.0) / 4 = 2.0, not (1.0 + 5.0) / 2.
    uneven = [UpdateResult({"loss": 1.0}, 3), UpdateResult({"loss": 5.0}, 1)]
    for results, loss in ((steps, 2.5), (uneven, 2.0)):
        merged = UpdateResult.mean(results)
        assert (merged.floats(), merged.num_gradient_steps, merged.td_error) == ({"loss": loss}, 4, None)
    assert steps[0].floats() == {"loss": 1.0}  # as it was
    nothing = UpdateResult.mean([])
    assert (nothing.metrics, nothing.num_gradient_steps, nothing.td_error) == ({}, 0, None)


def test_merging_merged_results_still_knows_who_reported_a_metric() -> None:
    # The actor reports in one of the first two gradient steps (7) and in one of the next two (1): (7 + 1) / 2.
    first = UpdateResult.mean([UpdateResult({"critic": 1.0}), UpdateResult({"critic": 3.0, "actor": 7.0})])
    assert first.floats() == {"critic": 2.0, "actor": 7.0}
    second = UpdateResult.mean([UpdateResult({"critic": 5.0}), UpdateResult({"critic": 7.0, "actor": 1.0})])
    merged = UpdateResult.mean([first, second])
    assert merged.floats() == {"critic": 4.0, "actor": 4.0}
    # And with three times the weight on the left: (3 * 7 + 1) / 4.
    assert UpdateResult.mean([first, first, first, second]).floats()["actor"] == pytest.approx(5.5)


def test_mean_stacks_td_errors_in_order_if_all_have_one() -> None:
    steps = [UpdateResult(td_error=torch.tensor([1.0, 2.0])), UpdateResult(td_error=torch.tensor([3.0, 4.0]))]
    merged = UpdateResult.mean(steps)
    assert merged.td_error is not None
    assert merged.td_error.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert UpdateResult.mean([*steps, UpdateResult()]).td_error is None


def test_mean_of_one_is_that_one() -> None:
    one = UpdateResult({"loss": torch.tensor(3.0)}, num_gradient_steps=4, counts={"loss": 2})
    assert UpdateResult.mean([one]) == one
    errors = UpdateResult({"loss": torch.tensor(3.0)}, td_error=torch.ones(5))
    assert UpdateResult.mean([errors]).td_error.shape == (1, 5)  # as of any number of gradient steps
