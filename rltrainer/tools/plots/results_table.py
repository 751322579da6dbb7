"""A table of results: what the runs of each algorithm scored in each env, as Markdown for a README or a paper."""

import numpy as np

from rltrainer.functional.scores import bootstrap_interval, mean_score
from rltrainer.tools.plots.figures import label
from rltrainer.tools.plots.run_data import Runs, env_name, grouped_by_env, needed_curve

SIDES = "<<>>><"
"""The side that each column is aligned to: numbers to the right."""


def table(runs: Runs, value: str = "test/score", *, confidence: float = 0.95) -> str:
    """Return a Markdown table with a row for each env and algorithm: runs, mean, standard deviation and interval.

    The last value of each run counts. The standard deviation is that of the sample (divided by R - 1), the interval is
    the bootstrap's of the mean (`rl.scores.bootstrap_interval`); a single run has neither.

    Args:
        runs: folders or opened runs, by the name of their group: `{"PPO": [...], "DQN": [...]}`. A list of runs is
            grouped by env, algorithm and params, all but the seed.
        value: which number of the log, with its kind.
        confidence: of the interval.

    Raises:
        ParamsError: there is no run, a log has no such number, or the confidence is not between 0 and 1.
        CheckpointError: a run cannot be read.
    """
    rows = [["env", "algorithm", "runs", "mean", "std", f"{100 * confidence:g} % interval"]]
    for groups in grouped_by_env("table", runs).values():
        for name, of_name in groups.items():
            envs = {run.folder.path: env_name(run) or "" for run in of_name}
            for env in dict.fromkeys(envs.values()):
                own = [run for run in of_name if envs[run.folder.path] == env]
                scores = np.array([needed_curve("table", run, value).value[-1] for run in own])
                rows.append([_cell(env), _cell(name), *_summary(scores, confidence)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[f"{cell:{side}{width}}" for cell, side, width in zip(row, SIDES, widths, strict=True)] for row in rows]
    rule = ["-" * (width - 1) + (":" if side == ">" else "-") for side, width in zip(SIDES, widths, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [lines[0], rule, *lines[1:]])


def _summary(scores: np.ndarray, confidence: float) -> list[str]:
    """Return the cells of the scores [R] of a group."""
    low, high = bootstrap_interval(mean_score, scores[:, None], confidence=confidence, num_resamples=50_000)
    cells = [f"{len(scores)}", f"{scores.mean():.4g}"]
    return [*cells, f"{scores.std(ddof=1):.4g}", f"{low:.4g} to {high:.4g}"] if len(scores) > 1 else [*cells, "", ""]


def _cell(text: str) -> str:
    """Return a name that leaves the table whole."""
    return label(text).strip().replace("|", "\\|")
