"""Pictures of algorithms on several tasks, after Agarwal et al. (2021): profiles, aggregates, one against another."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from rltrainer.errors import ParamsError
from rltrainer.functional import scores as statistics
from rltrainer.functional.scores import Array, bootstrap_interval, mean_score, performance_profile
from rltrainer.tools.plots.figures import GREY, Axes, Figure, drawing, label, line, new_figure, note
from rltrainer.tools.plots.run_data import Runs, env_name, grouped_by_env, needed_curve

NUM_THRESHOLDS = 201
AGGREGATES = {
    "median": statistics.median_score,
    "interquartile mean": statistics.interquartile_mean,
    "mean": mean_score,
    "optimality gap (less is better)": statistics.optimality_gap,
}


def performance_profiles(scores: Mapping[str, ArrayLike], *, confidence: float = 0.95, title: str = "") -> Figure:
    """Return the picture of performance profiles: the share of runs, over all tasks, that score above each threshold.

    Higher is better; if one line is above another everywhere, any quantile of its scores is better.

    Args:
        scores: by algorithm, `[R, M]` for R runs on each of M tasks, as `run_scores` returns them; normalised, so that
            one threshold makes sense for all tasks; finite, else a `ParamsError`.
        confidence: of the intervals of the stratified bootstrap.
    """
    arrays = _arrays("performance_profiles", scores)
    low, high = (function([function(each) for each in arrays.values()]) for function in (np.min, np.max))
    margin = 0.02 * ((high - low) or 1.0)
    thresholds = np.linspace(low - margin, high + margin, NUM_THRESHOLDS)
    with drawing():
        figure, [axes] = new_figure(title)
        for index, (name, each) in enumerate(arrays.items()):
            style = line(index)
            ends = bootstrap_interval(lambda drawn: performance_profile(drawn, thresholds), each, confidence=confidence)
            axes.fill_between(thresholds, *ends, color=style["color"], alpha=0.2, linewidth=0)
            profile = performance_profile(each, thresholds)
            axes.plot(thresholds, profile, **style, label=label(f"{name} ({_size(each)})"))
        axes.set(xlabel="score threshold", ylabel="share of runs that score above", ylim=(-0.02, 1.02))
        note(axes, f"performance profiles, {100 * confidence:g} % bootstrap interval")
        axes.legend()
    return figure


def aggregate_scores(
    scores: Mapping[str, ArrayLike], *, confidence: float = 0.95, num_resamples: int = 10_000, title: str = ""
) -> Figure:
    """Return the picture of four aggregates of each algorithm, with their intervals.

    Median over tasks, interquartile mean and mean, and the optimality gap: by how much runs miss a score of 1.

    Args:
        scores: by algorithm, `[R, M]` for R runs on each of M tasks, normalised; finite, else a `ParamsError`.
        confidence: of the intervals of the stratified bootstrap.
    """
    arrays = _arrays("aggregate_scores", scores)
    with drawing():
        size = (2.6, 1.1 + 0.35 * len(arrays))
        figure, grid = new_figure(title, len(AGGREGATES), num_columns=len(AGGREGATES), size=size)
        for axes, (title, aggregate) in zip(grid, AGGREGATES.items(), strict=True):
            _draw_rows(axes, aggregate, [(each,) for each in arrays.values()], confidence, num_resamples)
            names = [label(name) for name in arrays] if axes is grid[0] else []
            axes.set_yticks(range(len(names)), names)
            axes.set_xlabel("score")
            axes.set_title(title, size=9)
            axes.locator_params(axis="x", nbins=4)
            axes.use_sticky_edges = False  # room beside the bars
            axes.margins(x=0.08)
        figure.supxlabel(_explained(arrays, confidence), color=GREY, size=8)
    return figure


def probability_of_improvement(
    scores: Mapping[str, ArrayLike], *, confidence: float = 0.95, num_resamples: int = 2000, title: str = ""
) -> Figure:
    """Return the picture of the probability that one algorithm's run scores better than another's.

    Each pair has a row, the first named over the other, averaged over tasks; see
    `rl.scores.probability_of_improvement`. If the interval holds 0.5, nothing says that one is better.

    Args:
        scores: by algorithm, `[R, M]` for R runs on each of the same M tasks; of at least two algorithms.
        confidence: of the intervals of the stratified bootstrap.

    Raises:
        ParamsError: there are no two algorithms, or scores are not finite, or not of as many tasks.
    """
    arrays = _arrays("probability_of_improvement", scores)
    pairs = list(itertools.combinations(arrays.items(), 2))
    if not pairs:
        rule = "must have two algorithms at least, one of which may be better"
        raise ParamsError.about("probability_of_improvement", "scores", rule, list(arrays))
    with drawing():
        figure, [axes] = new_figure(title, size=(6.4, 1.1 + 0.35 * len(pairs)))
        samples = [(first, second) for (_, first), (_, second) in pairs]
        _draw_rows(axes, statistics.probability_of_improvement, samples, confidence, num_resamples)
        axes.axvline(0.5, color=GREY, linewidth=1, linestyle="dashed")
        axes.set_yticks(range(len(pairs)), [label(f"{first} over {second}") for (first, _), (second, _) in pairs])
        axes.set(xlim=(-0.02, 1.02), xlabel="probability of improvement")
        note(axes, _explained(arrays, confidence))
    return figure


def _draw_rows(
    axes: Axes,
    statistic: Callable[..., Array],
    rows: Sequence[tuple[Array, ...]],
    confidence: float,
    num_resamples: int,
) -> None:
    """Draw each row's statistic as a mark on the bar of its interval, the first row on top."""
    for index, scores in enumerate(rows):
        low, high = bootstrap_interval(statistic, *scores, confidence=confidence, num_resamples=num_resamples)
        color = line(index)["color"]
        axes.barh(index, high - low, left=low, height=0.6, alpha=0.3, color=color)
        axes.plot([statistic(*scores)] * 2, [index - 0.3, index + 0.3], linewidth=2.5, color=color)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _arrays(owner: str, scores: Mapping[str, ArrayLike]) -> dict[str, Array]:
    if not isinstance(scores, Mapping) or not scores:
        rule = "must be arrays [R, M], runs and tasks, by the name of the algorithm"
        raise ParamsError.about(owner, "scores", rule, scores)
    for each in scores.values():
        mean_score(each)  # says what is wrong with it
    arrays = {name: np.asarray(each, dtype=np.float64) for name, each in scores.items()}
    return {name: each.reshape(len(each), -1) for name, each in arrays.items()}


def _explained(arrays: Mapping[str, Array], confidence: float) -> str:
    """Return the words below marks: the number of each algorithm's runs, once if the numbers are equal."""
    sizes = {name: _size(each) for name, each in arrays.items()}
    text = ", ".join(f"{label(name)}: {size}" for name, size in sizes.items())
    if len(set(sizes.values())) == 1:
        text = next(iter(sizes.values())) + " for each algorithm" * (len(sizes) > 1)
    return f"marks with their {100 * confidence:g} % bootstrap intervals; {text}"


def _size(scores: Array) -> str:
    num_runs, num_tasks = scores.shape
    return f"{num_runs} run{'s' * (num_runs > 1)} of {num_tasks} task{'s' * (num_tasks > 1)}"


# The side to align each column to: numbers to the right.
SIDES = "<<>>><"


def table(runs: Runs, value: str = "test/score", *, confidence: float = 0.95) -> str:
    """Return a Markdown table with a row for each env and algorithm: runs, mean, standard deviation and interval.

    The last value of each run counts. The standard deviation is the sample's (divided by R - 1), the interval is the
    mean's by bootstrap (`rl.scores.bootstrap_interval`); a single run has neither.

    Args:
        runs: folders or opened runs, by the name of their group: `{"PPO": [...], "DQN": [...]}`. A list of runs is
            grouped by env, algorithm and params, all but the seed.
        value: which number of the log, with its kind.
        confidence: of the interval.

    Raises:
        ParamsError: there is no run, a log has no such number, or the confidence is not between 0 and 1.
    """
    rows = [["env", "algorithm", "runs", "mean", "std", f"{100 * confidence:g} % interval"]]
    for groups in grouped_by_env("table", runs).values():
        for name, of_name in groups.items():
            envs = {run.folder.path: env_name(run) or "" for run in of_name}
            for env in dict.fromkeys(envs.values()):
                own = [run for run in of_name if envs[run.folder.path] == env]
                scores = np.array([needed_curve("table", run, value).value[-1] for run in own])
                cells = [f"{len(scores)}", f"{scores.mean():.4g}", "", ""]
                low, high = bootstrap_interval(mean_score, scores[:, None], confidence=confidence, num_resamples=50_000)
                if len(scores) > 1:
                    cells[2:] = f"{scores.std(ddof=1):.4g}", f"{low:.4g} to {high:.4g}"
                rows.append([*(label(text).strip().replace("|", "\\|") for text in (env, name)), *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[f"{cell:{side}{width}}" for cell, side, width in zip(row, SIDES, widths, strict=True)] for row in rows]
    rule = ["-" * (width - 1) + (":" if side == ">" else "-") for side, width in zip(SIDES, widths, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], rule, *lines[1:]])
