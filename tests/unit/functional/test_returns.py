"""Advantages and discounted returns against numbers worked out by hand."""

import pytest
import torch

from rltrainer.functional.returns import backward_recurrence, discounted_returns, gae

# Two envs, gamma 0.5, four steps. Both have an episode end at t = 1, whose successor is worth 10:
# env 0 by truncation (10 counts), env 1 by termination (it does not).
GAMMA = 0.5
REWARD = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
VALUE = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
NEXT_VALUE = torch.tensor([[2.0, 2.0], [10.0, 10.0], [4.0, 4.0], [5.0, 5.0]])
DONE = torch.tensor([[False, False], [True, True], [False, False], [False, False]])
TERMINATED = DONE & torch.tensor([False, True])

# delta = r + 0.5 V' - V: 1 + 1 - 1 = 1; truncated 2 + 5 - 2 = 5, terminated 2 - 2 = 0; 3 + 2 - 3 = 2; 4 + 2.5 - 4 = 2.5
# lambda 0.5, factor 0.25: 1 + 0.25 * 5 = 2.25 and 1 + 0.25 * 0 = 1; boundary; 2 + 0.25 * 2.5 = 2.625
# lambda 1, factor 0.5: 1 + 0.5 * 5 = 3.5 and 1 + 0.5 * 0 = 1; boundary; 2 + 0.5 * 2.5 = 3.25
ADVANTAGE = {
    0.0: [[1.0, 1.0], [5.0, 0.0], [2.0, 2.0], [2.5, 2.5]],
    0.5: [[2.25, 1.0], [5.0, 0.0], [2.625, 2.625], [2.5, 2.5]],
    1.0: [[3.5, 1.0], [5.0, 0.0], [3.25, 3.25], [2.5, 2.5]],
}


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_gae_by_hand(lambda_: float) -> None:
    advantage, return_ = gae(REWARD, VALUE, NEXT_VALUE, TERMINATED, DONE, GAMMA, lambda_)
    assert advantage.tolist() == ADVANTAGE[lambda_]
    assert torch.equal(return_, advantage + VALUE)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_gae_that_takes_truncation_for_termination_is_wrong(lambda_: float) -> None:
    """The test of the test: with the mistake, env 0 gets env 1's numbers, and they differ."""
    wrong, _ = gae(REWARD, VALUE, NEXT_VALUE, DONE, DONE, GAMMA, lambda_)
    expected = torch.tensor(ADVANTAGE[lambda_])
    assert torch.equal(wrong[:, 0], expected[:, 1])
    assert not torch.equal(wrong[:, 0], expected[:, 0])


@pytest.mark.parametrize("lambda_", [0.5, 1.0])
def test_gae_that_does_not_cut_the_trace_is_wrong(lambda_: float) -> None:
    uncut, _ = gae(REWARD, VALUE, NEXT_VALUE, TERMINATED, torch.zeros_like(DONE), GAMMA, lambda_)
    assert not torch.equal(uncut, torch.tensor(ADVANTAGE[lambda_]))


def test_gae_never_looks_at_the_value_after_a_termination() -> None:
    next_value = NEXT_VALUE.masked_fill(TERMINATED, torch.nan)
    advantage, _ = gae(REWARD, VALUE, next_value, TERMINATED, DONE, GAMMA, 0.5)
    assert advantage.tolist() == ADVANTAGE[0.5]


def test_gae_with_lambda_one_is_the_discounted_sum_with_a_bootstrap() -> None:
    no = torch.zeros(3, 1, dtype=torch.bool)
    reward, value, next_value = (
        torch.tensor(x).unsqueeze(1) for x in ([1.0, 2.0, 4.0], [7.0, 8.0, 9.0], [8.0, 9.0, 16.0])
    )
    _, return_ = gae(reward, value, next_value, no, no, 0.5, 1.0)
    # 4 + 8 = 12; 2 + 6 = 8; 1 + 4 = 5
    assert return_.squeeze(1).tolist() == [5.0, 8.0, 12.0]


@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 23])
def test_a_recurrence_row_by_row_and_in_rounds(few: int, num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.functional.returns.FEW_ROWS", few)
    generator = torch.Generator().manual_seed(0)
    x, keep = (torch.randn(num_rows, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = torch.zeros(num_rows + 1, 3, dtype=torch.float64)
    for t in reversed(range(num_rows)):
        expected[t] = x[t] + keep[t] * expected[t + 1]
    torch.testing.assert_close(backward_recurrence(x, keep), expected[:-1])


@pytest.mark.parametrize("few", [0, 100])
def test_a_recurrence_has_a_gradient(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.functional.returns.FEW_ROWS", few)
    x, keep = (torch.rand(5, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(backward_recurrence, (x, keep))


@pytest.mark.parametrize("few", [0, 100])
def test_a_recurrence_over_no_rows_has_none(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.functional.returns.FEW_ROWS", few)
    assert backward_recurrence(torch.zeros(0, 3), torch.zeros(0, 3)).shape == (0, 3)


def test_gae_leaves_its_inputs_alone() -> None:
    inputs = [x.clone() for x in (REWARD, VALUE, NEXT_VALUE, TERMINATED, DONE)]
    gae(*inputs, GAMMA, 0.5)
    for before, after in zip((REWARD, VALUE, NEXT_VALUE, TERMINATED, DONE), inputs, strict=True):
        assert torch.equal(before, after)


def test_discounted_returns_by_hand() -> None:
    reward = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    done = torch.tensor([[False], [True], [False], [False]])
    returns, following = discounted_returns(reward, done, torch.tensor([8.0]), 0.5)
    # 4 + 1 = 5; 2.5 + 2 = 4.5, done; 3; 1.5 + 4 = 5.5
    assert returns.squeeze(1).tolist() == [5.0, 4.5, 3.0, 5.5]
    assert following.tolist() == [5.5]


def test_discounted_returns_start_anew_after_a_done_in_the_last_row() -> None:
    done = torch.tensor([[False, False], [True, False]])
    _, following = discounted_returns(torch.ones(2, 2), done, torch.zeros(2), 0.5)
    assert following.tolist() == [0.0, 1.5]


def test_discounted_returns_of_two_halves_are_those_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(10, 3, generator=generator)
    done = torch.rand(10, 3, generator=generator) < 0.3
    whole, end = discounted_returns(reward, done, torch.zeros(3), 0.9)
    first, middle = discounted_returns(reward[:4], done[:4], torch.zeros(3), 0.9)
    second, end_of_second = discounted_returns(reward[4:], done[4:], middle, 0.9)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(end_of_second, end)
