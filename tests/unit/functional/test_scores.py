"""Statistics of scores against numbers worked out by hand, with the definitions of Agarwal et al. (2021)."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from rltrainer.errors import ParamsError
from rltrainer.functional import scores as module
from rltrainer.functional.scores import bootstrap_interval, interquartile_mean, mean_score, median_score, optimality_gap

# Three runs of two tasks. In order: 0, 1, 2, 3, 4, 50; 6 // 4 = 1 goes at each end: (1 + 2 + 3 + 4) / 4 = 2.5.
# Means of the tasks: (0 + 2 + 4) / 3 = 2 and (1 + 3 + 50) / 3 = 18; their median is 10, as is 60 / 6.
SCORES = [[0.0, 1.0], [2.0, 3.0], [4.0, 50.0]]


@pytest.mark.parametrize(("statistic", "expected"), [(interquartile_mean, 2.5), (mean_score, 10), (median_score, 10)])
def test_aggregates(statistic: Callable[..., module.Array], expected: float) -> None:
    assert statistic(SCORES) == expected
    assert statistic(np.array([SCORES, np.multiply(SCORES, 2)])).tolist() == [expected, 2 * expected]


@pytest.mark.parametrize(("scores", "expected"), [
    ([7.0], 7.0),
    ([1.0, 2.0, 9.0], 4.0),  # fewer than four: nothing is left out
    ([1.0, 2.0, 4.0, 100.0], 3.0),
    ([5.0, 1.0, 3.0, -100.0, 2.0], 2.0),  # 5 // 4 = 1: 1, 2, 3 stay
    ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 9.0, 9.0], 2.5),
])  # fmt: skip
def test_a_quarter_is_left_out_at_each_end(scores: list[float], expected: float) -> None:
    assert interquartile_mean(scores) == expected


def test_the_median_is_over_tasks() -> None:
    assert median_score([[0.0, 0.0, 90.0], [0.0, 2.0, 90.0]]) == 1.0  # of 0, 1, 90
    assert interquartile_mean([[0.0, 0.0, 90.0], [0.0, 2.0, 90.0]]) == 23.0  # of 0, 0, 2, 90


def test_optimality_gap() -> None:
    # 1 - 0.5, 1 - 1, 0 beyond the target, 1 - (-0.5): (0.5 + 0 + 0 + 1.5) / 4
    assert optimality_gap([[0.5, 1.0], [3.0, -0.5]]) == 0.5
    assert optimality_gap([[0.5, 1.0], [3.0, -0.5]], target=2.0) == (1.5 + 1.0 + 0.0 + 2.5) / 4


def test_performance_profile_counts_runs_above() -> None:
    # Above -1: all; above 2, not at it: 3, 4, 50; above 50: none.
    assert module.performance_profile(SCORES, [-1.0, 2.0, 50.0]).tolist() == [1.0, 0.5, 0.0]
    assert module.performance_profile([SCORES, SCORES], [2.0]).tolist() == [[0.5], [0.5]]


def test_probability_of_improvement() -> None:
    # Task 1: pairs (1, 0), (1, 2), (3, 0), (3, 2): 3 of 4. Task 2: all four are draws: 0.5.
    assert module.probability_of_improvement([[1.0, 5.0], [3.0, 5.0]], [[0.0, 5.0], [2.0, 5.0]]) == (0.75 + 0.5) / 2
    assert module.probability_of_improvement([1.0, 2.0, 3.0], [0.0]) == 1.0  # as many runs are not needed
    assert module.probability_of_improvement([0.0], [1.0, 2.0]) == 0.0


@pytest.mark.parametrize(("scores", "others", "expected"), [
    ([1.0], [2.0, 3.0], 1 / 3),
    ([2.5], [2.0, 3.0], 2 / 3),
    ([1.0, 2.0], [3.0, 4.0, 5.0], 1 / 10),  # one of C(5, 2)
    ([1.0, 3.0], [2.0, 4.0, 5.0], 2 / 10),  # ranks 1 + 3, or 1 + 2
    ([2.0, 3.0], [1.0], 1.0),
    ([1.0], [1.0, 2.0], 2 / 3),  # each of the equal ones has rank 1.5
    ([0.0] * 4, [1.0] * 10, 1 / 1001),
])  # fmt: skip
def test_rank_test(scores: list[float], others: list[float], expected: float) -> None:
    assert module.rank_test(scores, others) == pytest.approx(expected)


def test_the_rank_test_counts_all_choices() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        both = generator.integers(6, size=9).astype(float)  # with many equal ones
        better = [[(x > y) + (x == y) / 2 for y in both] for x in both]
        sums = [sum(sum(better[i]) for i in chosen) for chosen in itertools.combinations(range(9), 4)]
        expected = np.mean(np.array(sums) <= sums[0] + 1e-9)  # the first choice is of the first four
        assert module.rank_test(both[:4], both[4:]) == pytest.approx(expected)


def test_an_interval_is_that_of_all_resamples() -> None:
    # Two runs, 0 and 1: the four resamples have the means 0, 1/2, 1/2, 1. The middle half is at 1/2; 95 % hold all.
    assert bootstrap_interval(mean_score, [0.0, 1.0], confidence=0.4) == (0.5, 0.5)
    assert bootstrap_interval(mean_score, [0.0, 1.0]) == (0.0, 1.0)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_resamples_are_drawn_as_often_as_chance_says(confidence: float) -> None:
    scores = np.array([0.0, 1.0, 5.0])
    means = [np.mean(drawn) for drawn in itertools.product(scores, repeat=3)]  # all 27
    low, high = bootstrap_interval(mean_score, scores, confidence=confidence, num_resamples=100_000)
    expected = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], method="inverted_cdf")
    np.testing.assert_allclose([low, high], expected)


def test_runs_are_drawn_within_their_task() -> None:
    # Every run of a task scores the same, so that no resample differs; drawn across tasks it would.
    scores = np.broadcast_to([0.0, 10.0, 20.0], (4, 3))
    assert bootstrap_interval(mean_score, scores) == (10.0, 10.0)
    # Tasks are drawn apart: the runs of both together would be 0 or 2 only.
    low, _ = bootstrap_interval(lambda drawn: drawn.std(axis=(-2, -1)), [[0.0, 0.0], [1.0, 1.0]], confidence=0.5)
    assert 0 < low < 0.5


def test_axes_in_front_are_drawn_alike() -> None:
    curves = np.array([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])[:, :, None]  # three points of two runs
    low, high = bootstrap_interval(lambda drawn: mean_score(drawn).sum(axis=-1), curves)
    # Run 1 alone sums to 0 + 0 + 1, run 2 alone to 1 + 1 + 0.
    assert (low, high) == (1.0, 2.0)
    ends = bootstrap_interval(interquartile_mean, curves)
    assert [end.shape for end in ends] == [(3,), (3,)]


def test_two_algorithms_are_drawn_apart() -> None:
    low, high = bootstrap_interval(module.probability_of_improvement, [0.0, 2.0], [1.0, 1.0, 1.0])
    assert (low, high) == (0.0, 1.0)


def test_the_seed_decides_and_so_many_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).normal(size=(5, 3))
    one, again, other = (bootstrap_interval(interquartile_mean, scores, seed=seed) for seed in (1, 1, 2))
    assert one == again != other
    sizes = []

    def statistic(drawn: module.Array) -> module.Array:
        sizes.append(len(drawn))
        return mean_score(drawn)

    monkeypatch.setattr(module, "MAX_DRAWN", 100)  # 6 times 15
    bootstrap_interval(statistic, scores, num_resamples=20)
    assert sizes == [6, 6, 6, 2]


@pytest.mark.parametrize(
    "scores", [[], 1.0, [[1.0, 2.0], [3.0]], [1.0, np.nan], [np.inf], "scores", [[1.0], [None]], np.zeros((0, 2))]
)
@pytest.mark.parametrize("function", [interquartile_mean, mean_score, median_score, optimality_gap])
def test_what_is_no_array_of_scores_is_refused(function: Callable[..., module.Array], scores: module.ArrayLike) -> None:
    with pytest.raises(ParamsError, match=rf"{function.__name__}.scores: must be finite numbers \[..., R, M\], runs"):
        function(scores)
