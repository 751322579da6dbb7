"""Learning curves: of one run, of several seeds of an algorithm, of several algorithms."""

from typing import TYPE_CHECKING

import numpy as np

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.functional.scores import bootstrap_interval, interquartile_mean
from rltrainer.tools.plots.figures import GREY, count_steps, drawing, label, line, new_figure
from rltrainer.tools.plots.run_data import (
    AnyRun,
    Curve,
    Runs,
    as_run,
    curve,
    grouped_by_env,
    needed_curve,
    on_common_steps,
    step_unit,
    title_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_POINTS = 40
"""Up to so many, each is marked."""


def learning_curve(run: AnyRun) -> "Figure":
    """Return the picture of one run: the return of its test steps, and of its training episodes, over its steps.

    Args:
        run: the folder of a run, or what `rl.open_run` returns.

    Raises:
        ParamsError: its log has no returns yet.
        CheckpointError: it cannot be read.
        MissingExtraError: Matplotlib is not installed.
    """
    run = as_run(run)
    test, training = curve(run, "test/return"), curve(run, "training/return")
    if test is None and training is None:
        rule = "must be a run in which an episode has ended; its log has no returns"
        raise ParamsError(field_error_text("learning_curve", "run", rule, str(run.folder.path)))
    with drawing():
        figure, [axes] = new_figure(title_of(run))
        if training is not None:
            marker = "o" if len(training.step) == 1 else None  # a line of one point is none
            axes.plot(
                training.step, training.value, **line(1), linewidth=1.2, marker=marker, label="training, exploring"
            )
        if test is not None:
            axes.plot(test.step, test.value, **line(0), marker=_marker(test), markersize=3, label="test, greedy")
            best = int(np.argmax(test.value))
            text = f"best test {test.value[best]:.4g}"
            axes.plot(test.step[best], test.value[best], "o", color="none", markeredgecolor="black", label=text)
        _finish(axes, step_unit(run), "mean return of an episode")
        axes.legend()
    return figure


def learning_curves(runs: Runs, value: str = "test/return", *, confidence: float = 0.95, title: str = "") -> "Figure":
    """Return the picture of several seeds of one algorithm, or of several: interquartile mean and bootstrap interval.

    Runs are brought to common steps on straight lines. The mean and its interval reach as far as all runs of a group
    have data; each run is a thin line besides, so that one that fails, or ends sooner, is seen.

    Args:
        runs: folders or opened runs, by the name of their group: `{"PPO": [...], "DQN": [...]}`. A list of runs is
            grouped by algorithm and params, all but the seed, with a picture for each env.
        value: which number of the log, with its kind.
        confidence: of the interval, which is the stratified bootstrap's (`rl.scores.bootstrap_interval`).
        title: of the picture; without one, the name of the env, where all runs tell it (those of `rl.train` do).

    Raises:
        ParamsError: there is no run, or a log has no such number.
        CheckpointError: a run cannot be read.
        MissingExtraError: Matplotlib is not installed.
    """
    owner = "learning_curves"
    panels = grouped_by_env(owner, runs)
    curves = {
        env: {name: [needed_curve(owner, run, value) for run in of_name] for name, of_name in groups.items()}
        for env, groups in panels.items()
    }
    with drawing():
        is_one = len(panels) == 1
        figure, grid = new_figure(
            title or (next(iter(panels)) if is_one else ""), len(panels), num_columns=min(len(panels), 3)
        )
        for axes, (env, groups) in zip(grid, panels.items(), strict=True):
            for index, (name, of_name) in enumerate(curves[env].items()):
                _draw_group(axes, index, name, of_name, confidence)
            units = dict.fromkeys(step_unit(run) for of_name in groups.values() for run in of_name)
            _finish(axes, " or ".join(units), value.replace("/", " "))
            is_single = max(map(len, groups.values())) == 1
            text = "" if is_single else f"IQM, {100 * confidence:g} % bootstrap interval, each run thin"
            axes.set_title(text, loc="left", color=GREY, size=8, weight="normal")
            axes.set_title("" if is_one else label(env), loc="right", size=9)
            axes.legend()
    return figure


def _draw_group(axes: "Axes", index: int, name: str, curves: list[Curve], confidence: float) -> None:
    style = line(index)
    text = label(name if len(curves) == 1 else f"{name} ({len(curves)} runs)")
    if len(curves) == 1:
        axes.plot(curves[0].step, curves[0].value, **style, label=text)
        return
    for each in curves:
        axes.plot(each.step, each.value, color=style["color"], linewidth=0.5, alpha=0.45)
    steps, values = on_common_steps(curves)
    scores = values[..., None]  # [K, R, 1]: one task
    axes.plot(steps, interquartile_mean(scores) if len(steps) else steps, **style, label=text)
    if len(steps):
        low, high = bootstrap_interval(interquartile_mean, scores, confidence=confidence)
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _finish(axes: "Axes", unit: str, value: str) -> None:
    count_steps(axes, unit)
    axes.set_ylabel(label(value))


def _marker(found: Curve) -> str | None:
    return "o" if len(found.step) <= FEW_POINTS else None
