"""Statistics of the scores of several runs on several tasks, and how sure one can be of them.

The definitions follow Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
and their package `rliable`. Scores are arrays `[..., R, M]`: R runs (seeds) of one algorithm on each of M
tasks, normalised if tasks are to be compared, such as 0 for a random agent and 1 for an expert. `[R]` is one task.
Leading axes, such as points of a learning curve, stay. Other arrays are a `ParamsError`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rltrainer.errors import ParamsError
from rltrainer.validation.field_rules import PositiveInt, checked, is_finite

Array = NDArray[np.float64]

# Scores that are drawn at once: 32 MB, for any number of resamples.
MAX_DRAWN = 4_000_000


def interquartile_mean(scores: ArrayLike) -> Array:
    """Return the mean of the middle half of all scores of all runs `[...]`: the IQM.

    A quarter of the scores, rounded down, is left out at each end (the mean trimmed by 25 %). One failed run moves it
    less than the mean, and it depends on more scores than the median.
    """
    found = _checked("interquartile_mean", "scores", scores)
    ordered = np.sort(found.reshape(*found.shape[:-2], -1), axis=-1)
    cut = ordered.shape[-1] // 4
    return _array(ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1))


def mean_score(scores: ArrayLike) -> Array:
    """Return the mean of all scores `[...]`."""
    return _array(_checked("mean_score", "scores", scores).mean(axis=(-2, -1)))


def median_score(scores: ArrayLike) -> Array:
    """Return the median over tasks of each task's mean score `[...]`, as most papers report it.

    Scores of zero on almost half of the tasks do not change it.
    """
    return _array(np.median(_checked("median_score", "scores", scores).mean(axis=-2), axis=-1))


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> Array:
    """Return by how much runs miss a target on average `[...]`, mean(target - min(score, target)). Less is better."""
    found = _checked("optimality_gap", "scores", scores)
    return _array((target - np.minimum(found, target)).mean(axis=(-2, -1)))


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> Array:
    """Return the share of runs, over all tasks, whose score is above each threshold `[..., K]`.

    If one algorithm's profile is above another's everywhere, any quantile of its scores is better.
    """
    found = _checked("performance_profile", "scores", scores)
    # In turn: all at once would fill the memory with a bootstrap's resamples.
    shares = [(found > threshold).mean(axis=(-2, -1)) for threshold in np.asarray(thresholds, dtype=np.float64)]
    return _array(np.stack(shares, axis=-1))


def probability_of_improvement(scores: ArrayLike, others: ArrayLike) -> Array:
    """Return the probability that a run scores better than one of another algorithm, averaged over tasks `[...]`.

    It is the share of all pairs of runs on a task in which the first is better; a draw counts half (the statistic U of
    Mann and Whitney over the number of pairs). `others` [..., S, M] or [S] with another M are a `ParamsError`.
    """
    found = _checked("probability_of_improvement", "scores", scores)
    other = _checked("probability_of_improvement", "others", others)
    if found.shape[-1] != other.shape[-1]:
        rule = f"must hold the same {found.shape[-1]} tasks as scores"
        raise ParamsError.about("probability_of_improvement", "others", rule, other.shape)
    first, second = found[..., :, None, :], other[..., None, :, :]
    return _array(((first > second) + 0.5 * (first == second)).mean(axis=(-3, -2, -1)))


def rank_test(scores: ArrayLike, others: ArrayLike) -> float:
    """Return the probability that runs which are as good as others rank as low among them as these, or lower.

    It is the exact one-sided test of Mann and Whitney (1947): each way to choose R of all R + S scores is as likely.
    Equal scores share their mean rank. No probability is below 1 / C(R + S, R). Both are runs `[R]`, `[S]` of one task;
    others are a `ParamsError`.
    """
    found, other = _checked("rank_test", "scores", scores), _checked("rank_test", "others", others)
    for field, each in (("scores", found), ("others", other)):
        if each.ndim != 2 or each.shape[1] != 1:
            raise ParamsError.about("rank_test", field, "must be runs [R] of one task", each.shape)
    both = np.concatenate([found, other])[:, 0]
    # Twice the mean rank, a whole number: the scores below twice, and equal ones once.
    ranks = 2 * (both[:, None] > both).sum(1) + (both[:, None] == both).sum(1)
    ways = np.zeros((len(found) + 1, int(ranks.sum()) + 1))  # of j scores with some sum of ranks
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    return float(ways[-1, : ranks[: len(found)].sum() + 1].sum() / ways[-1].sum())


def bootstrap_interval(
    statistic: Callable[..., Array], *scores: ArrayLike,
    confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the lower and the upper end of a statistic's stratified bootstrap interval (percentile method).

    Runs are resampled with replacement within each task, so that all tasks are drawn equally often, and alike on all
    leading axes: a run's learning curve stays whole. With fewer than about five runs intervals are too narrow.

    `statistic` is a function of arrays `[..., R, M]`, such as `interquartile_mean`, with one of `scores` for each
    argument. Papers take 2,000 resamples for curves and profiles, 50,000 for tables. Bad arguments are a `ParamsError`.
    """
    owner = "bootstrap_interval"
    arrays = [_checked(owner, "scores", each) for each in scores]
    if not (is_finite(confidence) and 0 < confidence < 1):
        raise ParamsError.about(owner, "confidence", "must be a number between 0 and 1", confidence)
    num_resamples = checked(owner, "num_resamples", num_resamples, PositiveInt)
    generator = np.random.default_rng(seed)
    at_once = max(1, MAX_DRAWN // max(each.size for each in arrays))
    found = []
    for start in range(0, num_resamples, at_once):
        drawn = []
        for each in arrays:  # runs drawn again within each task: [B, ..., R, M] of [..., R, M]
            size = min(at_once, num_resamples - start), *each.shape[-2:]
            runs = generator.integers(size[1], size=size)
            drawn.append(np.moveaxis(each[..., runs, np.arange(size[2])], -3, 0))
        found.append(statistic(*drawn))
    low, high = np.quantile(np.concatenate(found), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return _array(low), _array(high)


def _checked(owner: str, field: str, scores: ArrayLike) -> Array:
    """Return scores as an array [..., R, M]."""
    rule = "must be finite numbers [..., R, M], runs and tasks, or [R]"
    try:
        found = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParamsError.about(owner, field, rule, scores, "Each task needs as many runs as the others.") from None
    if found.ndim == 1:
        found = found[:, None]
    if found.ndim == 0 or found.size == 0 or not np.isfinite(found).all():
        raise ParamsError.about(owner, field, rule, scores)
    return found


def _array(value: object) -> Array:
    return np.asarray(value, dtype=np.float64)
