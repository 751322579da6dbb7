"""Advantages and discounted returns against numbers worked out by hand."""

import itertools
from typing import Any

import pytest
import torch

from rltrainer.functional.returns import backward_recurrence, discounted_returns, gae, vtrace

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


def column(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(1)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_gae_by_hand(lambda_: float) -> None:
    advantage, return_ = gae(REWARD, VALUE, NEXT_VALUE, TERMINATED, DONE, GAMMA, lambda_)
    assert advantage.tolist() == ADVANTAGE[lambda_]
    assert torch.equal(return_, advantage + VALUE)


def test_gae_never_looks_at_the_value_after_a_termination_and_changes_no_input() -> None:
    inputs = [REWARD, VALUE, NEXT_VALUE.masked_fill(TERMINATED, torch.nan), TERMINATED, DONE]
    before = [x.clone() for x in inputs]
    advantage, _ = gae(*inputs, GAMMA, 0.5)
    assert advantage.tolist() == ADVANTAGE[0.5]
    torch.testing.assert_close(inputs, before, equal_nan=True)


@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 5, 23])
def test_a_recurrence_row_by_row_and_in_rounds(few: int, num_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrainer.functional.returns.FEW_ROWS", few)
    generator = torch.Generator().manual_seed(0)
    x, keep = (torch.randn(num_rows, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = torch.zeros(num_rows + 1, 3, dtype=torch.float64)
    for t in reversed(range(num_rows)):
        expected[t] = x[t] + keep[t] * expected[t + 1]
    torch.testing.assert_close(backward_recurrence(x, keep), expected[:-1])
    if num_rows == 5:
        assert torch.autograd.gradcheck(backward_recurrence, (x.requires_grad_(), keep.requires_grad_()))


def test_discounted_returns_by_hand() -> None:
    reward = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    done = torch.tensor([[False], [True], [False], [False]])
    returns, following = discounted_returns(reward, done, torch.tensor([8.0]), 0.5)
    # 4 + 1 = 5; 2.5 + 2 = 4.5, done; 3; 1.5 + 4 = 5.5
    assert returns.squeeze(1).tolist() == [5.0, 4.5, 3.0, 5.5]
    assert following.tolist() == [5.5]


def test_discounted_returns_of_two_halves_are_those_of_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(10, 3, generator=generator)
    done = torch.rand(10, 3, generator=generator) < 0.3
    whole, end = discounted_returns(reward, done, torch.zeros(3), 0.9)
    first, middle = discounted_returns(reward[:4], done[:4], torch.zeros(3), 0.9)
    second, end_of_second = discounted_returns(reward[4:], done[4:], middle, 0.9)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(end_of_second, end)


NOWHERE = torch.zeros(3, 1, dtype=torch.bool)
AT_1 = torch.tensor([[False], [True], [False]])
# r 1, 0, 2; V 1, 2, 3; ratios .5, 2, 1; gamma .9.
# V' 2, 3, 4: delta 1.8, .7, 2.6; e 2.6, .7 + .9 * 2.6 = 3.04, .5 * 1.8 + .9 * .5 * 3.04 = 2.268
#   A 2.6, .7 + .9 * 2.6 = 3.04, .5 * (1.8 + .9 * 3.04) = 2.268
# truncated at 1, V' 5 there: e 2.6, 0 + 4.5 - 2 = 2.5, .9 + .45 * 2.5 = 2.025; A 2.6, 2.5, .5 * (1.8 + 2.25) = 2.025
# terminated at 1: e 2.6, -2, .9 - .9 = 0; A 2.6, -2, .5 * (1.8 - 1.8) = 0
# all ratios 1: e 2.6, 3.04, 1.8 + .9 * 3.04 = 4.536
# clipped at rho_bar 2, c_bar 1: e 2.6, 2 * .7 + .9 * 2.6 = 3.74, .9 + .45 * 3.74 = 2.583
#   A 2.6, 2 * (.7 + .9 * 2.6) = 6.08, .5 * (1.8 + .9 * 3.74) = 2.583
# lambda .5: e 2.6, .7 + .45 * 2.6 = 1.87, .9 + .225 * 1.87 = 1.32075; A 2.6, 1.87, .5 * (1.8 + .45 * 1.87) = 1.32075
BY_HAND = {
    "inside": ({}, [2.268, 3.04, 2.6], [3.268, 5.04, 5.6]),
    "truncated": ({"next_value": column(2, 5, 4), "ends": AT_1}, [2.025, 2.5, 2.6], [3.025, 4.5, 5.6]),
    "terminated": ({"discount": 0.9 * ~AT_1, "ends": AT_1}, [0.0, -2.0, 2.6], [1.0, 0.0, 5.6]),
    "on policy": ({"ratio": column(1, 1, 1)}, [4.536, 3.04, 2.6], [5.536, 5.04, 5.6]),
    "rho_bar": ({"rho_bar": 2.0}, [2.583, 6.08, 2.6], [3.583, 5.74, 5.6]),
    "lambda": ({"lambda_": 0.5}, [1.32075, 1.87, 2.6], [2.32075, 3.87, 5.6]),
}


def vtrace_of(**changes: Any) -> tuple[torch.Tensor, torch.Tensor]:
    cells = {"reward": column(1, 0, 2), "value": column(1, 2, 3), "next_value": column(2, 3, 4)}
    return vtrace(
        **(cells | {"discount": column(0.9, 0.9, 0.9), "ends": NOWHERE, "ratio": column(0.5, 2, 1)} | changes)
    )


@pytest.mark.parametrize("case", BY_HAND)
def test_vtrace_by_hand(case: str) -> None:
    changes, advantage, return_ = BY_HAND[case]
    torch.testing.assert_close(vtrace_of(**changes), (column(*advantage), column(*return_)))


def episodes(num_rows: int, seed: int) -> dict[str, torch.Tensor]:
    """Return cells of three envs, whose episodes end at random; inside one, the successor of a row is the next row."""
    g = torch.Generator().manual_seed(seed)
    reward, value, final = (torch.randn(num_rows, 3, generator=g, dtype=torch.float64) for _ in range(3))
    ends, terminated = (torch.rand(num_rows, 3, generator=g) < 0.3 for _ in range(2))
    next_value = torch.where(ends, final, torch.cat([value[1:], final[-1:]]))
    discount = 0.9 * ~(terminated & ends)
    ratio = torch.randn(num_rows, 3, generator=g, dtype=torch.float64).exp()
    return {"reward": reward, "value": value, "next_value": next_value, "discount": discount, "ends": ends,
            "ratio": ratio}  # fmt: skip


def vtrace_as_defined(
    cells: dict[str, torch.Tensor], lambda_: float, rho_bar: float, c_bar: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rho (r + gamma (lambda v' + (1 - lambda) V') - V), and v as the sum of eq. 1 with remark 2."""
    reward, value, next_value, discount, ends, ratio = cells.values()
    target = value.clone()
    for s, n in itertools.product(*map(range, value.shape)):
        weight = 1.0
        for t in range(s, len(value)):
            delta = reward[t, n] + discount[t, n] * next_value[t, n] - value[t, n]
            target[s, n] += weight * ratio[t, n].clamp(max=rho_bar) * delta
            if ends[t, n]:
                break
            weight = weight * discount[t, n] * lambda_ * ratio[t, n].clamp(max=c_bar)
    after = torch.where(ends, next_value, torch.cat([target[1:], next_value[-1:]]))
    estimate = reward + discount * (lambda_ * after + (1 - lambda_) * next_value)
    return ratio.clamp(max=rho_bar) * (estimate - value), target


@pytest.mark.parametrize("num_rows", [1, 7, 30])
@pytest.mark.parametrize(("lambda_", "rho_bar", "c_bar"), [(1.0, 1.0, 1.0), (1.0, 3.0, 0.5), (0.7, 1.5, 1.5)])
def test_vtrace_is_what_the_paper_defines(num_rows: int, lambda_: float, rho_bar: float, c_bar: float) -> None:
    for seed in range(5):
        cells = episodes(num_rows, seed)
        torch.testing.assert_close(
            vtrace(**cells, lambda_=lambda_, rho_bar=rho_bar, c_bar=c_bar),
            vtrace_as_defined(cells, lambda_, rho_bar, c_bar),
        )


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 1.0])
def test_vtrace_on_policy_is_gae(lambda_: float) -> None:
    """So with lambda 1 it is the sum of all rewards with a bootstrap at the end."""
    cells = episodes(30, seed=1)
    terminated = cells["discount"] == 0
    on_policy = cells | {"ratio": torch.ones_like(cells["ratio"])}
    expected = gae(cells["reward"], cells["value"], cells["next_value"], terminated, cells["ends"], 0.9, lambda_)
    torch.testing.assert_close(vtrace(**on_policy, lambda_=lambda_), expected)
