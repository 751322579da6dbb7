"""Learning curves: of one run, of several seeds of an algorithm, of several algorithms."""

from collections.abc import Mapping

import numpy as np

from rltrainer.errors import ParamsError
from rltrainer.functional.scores import bootstrap_interval, interquartile_mean
from rltrainer.tools.plots import run_data
from rltrainer.tools.plots.figures import Axes, Figure, count_steps, drawing, label, line, new_figure, note
from rltrainer.tools.plots.run_data import AnyRun, Curve, Runs, needed_curve, step_unit

# Up to so many points are marked.
FEW_POINTS = 40


def learning_curve(run: AnyRun) -> Figure:
    """Return the picture of a run's returns, in test steps and training episodes; none are a `ParamsError`."""
    run = run_data.as_run(run)
    test, training = (run_data.curve(run, f"{kind}/return") for kind in ("test", "training"))
    if test is None and training is None:
        rule = "must be a run in which an episode has ended; its log has no returns"
        raise ParamsError.about("learning_curve", "run", rule, str(run.folder.path))
    with drawing():
        figure, [axes] = new_figure(run_data.title_of(run))
        if training is not None:
            style = line(1) | {"marker": "o" if len(training.step) == 1 else None}  # a line of one point is none
            axes.plot(training.step, training.value, **style, linewidth=1.2, label="training, exploring")
        if test is not None:
            style = line(0) | {"marker": "o" if len(test.step) <= FEW_POINTS else None}
            axes.plot(test.step, test.value, **style, markersize=3, label="test, greedy")
            best = int(np.argmax(test.value))
            text = f"best test {test.value[best]:.4g}"
            axes.plot(test.step[best], test.value[best], "o", color="none", markeredgecolor="black", label=text)
        count_steps(axes, step_unit(run))
        axes.set_ylabel("mean return of an episode")
        axes.legend()
    return figure


def learning_curves(runs: Runs, value: str = "test/return", *, confidence: float = 0.95, title: str = "") -> Figure:
    """Return the picture of several seeds of one algorithm, or of several: interquartile mean and bootstrap interval.

    Runs are interpolated linearly at common steps. The mean and its interval reach as far as all runs of a group have
    data; each run is a thin line, too, so that a run that fails or ends early is seen.

    Args:
        runs: folders or opened runs, by the name of their group: `{"PPO": [...], "DQN": [...]}`. A list of runs is
            grouped by algorithm and params, all but the seed, with a picture for each env.
        value: which number of the log, with its kind.
        confidence: of the interval, which is the stratified bootstrap's (`rl.scores.bootstrap_interval`).
        title: of the picture; without one, the name of the env if all runs tell it, as runs of `rl.train` do.

    Raises:
        ParamsError: there is no run, or a log has no such number.
    """
    owner = "learning_curves"
    panels = run_data.grouped_by_env(owner, runs)
    curves = {
        env: {name: [needed_curve(owner, run, value) for run in of_name] for name, of_name in groups.items()}
        for env, groups in panels.items()
    }
    with drawing():
        is_one = len(panels) == 1
        title = title or (next(iter(panels)) if is_one else "")
        figure, grid = new_figure(title, len(panels), num_columns=min(len(panels), 3))
        for axes, (env, groups) in zip(grid, panels.items(), strict=True):
            for index, (name, of_name) in enumerate(curves[env].items()):
                draw_group(axes, index, name, of_name, confidence)
            units = dict.fromkeys(step_unit(run) for of_name in groups.values() for run in of_name)
            count_steps(axes, " or ".join(units))
            axes.set_ylabel(label(value.replace("/", " ")))
            is_single = max(map(len, groups.values())) == 1
            note(axes, "" if is_single else f"IQM, {100 * confidence:g} % bootstrap interval, each run thin")
            axes.set_title("" if is_one else label(env), loc="right", size=9)
            axes.legend()
    return figure


def draw_group(axes: Axes, index: int, name: str, curves: list[Curve], confidence: float) -> None:
    """Draw the curves of a group's runs as thin lines, and their interquartile mean with its interval."""
    style = line(index)
    text = label(name if len(curves) == 1 else f"{name} ({len(curves)} runs)")
    if len(curves) == 1:
        axes.plot(curves[0].step, curves[0].value, **style, label=text)
        return
    for each in curves:
        axes.plot(each.step, each.value, color=style["color"], linewidth=0.5, alpha=0.45)
    steps, values = run_data.on_common_steps(curves)
    scores = values[..., None]  # [K, R, 1]: one task
    axes.plot(steps, interquartile_mean(scores) if len(steps) else steps, **style, label=text)
    if len(steps):
        low, high = bootstrap_interval(interquartile_mean, scores, confidence=confidence)
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.2, linewidth=0)


NUM_COLUMNS = 3
# The size of a small picture in inches, and its margins on the left, right, bottom and top.
PANEL, MARGINS = (3.2, 2.1), (0.72, 0.12, 0.46, 0.26)
# Small pictures in one picture; a log may have any number of names.
MAX_PANELS = 60
# Points of a small picture.
MAX_PARTS = 500


def metrics(run: AnyRun, kind: str = "update") -> Figure:
    """Return the picture of all numbers of a kind of row over a run's steps: losses, learning rates, what hooks log.

    Args:
        kind: "update", "training", "test", or another that the log has, else a `ParamsError`. The first 60 names are
            drawn.
    """
    run = run_data.as_run(run)
    found = run_data.curves(run, kind)
    if not found:
        rule = f"must be a kind of row in the log of {run.folder.path}, one of {', '.join(run.kinds) or 'none'}"
        raise ParamsError.about("metrics", "kind", rule, kind)
    return draw_panels(found, step_unit(run))


def draw_panels(found: Mapping[str, Curve], unit: str) -> Figure:
    """Return the picture of curves by name, each for itself, over steps of a unit."""
    shown = dict(list(found.items())[:MAX_PANELS])
    with drawing():
        columns = min(NUM_COLUMNS, len(shown))
        figure, grid = new_figure("", len(shown), num_columns=columns, size=PANEL)
        # All panels have one size, however wide their numbers are, so that pictures on a page are aligned.
        figure.set_layout_engine(None)
        (width, height), (left, right, bottom, top) = PANEL, MARGINS
        whole, high = width * columns, height * -(-len(shown) // columns)
        wspace, hspace = (left + right) / (width - left - right), (bottom + top) / (height - bottom - top)
        figure.subplots_adjust(left / whole, bottom / high, 1 - right / whole, 1 - top / high, wspace, hspace)
        for axes, (name, each) in zip(grid, shown.items(), strict=True):
            parts = min(len(each.step), MAX_PARTS)  # a longer curve shows the means of so many parts
            step, value = ([part.mean() for part in np.array_split(x, parts)] for x in (each.step, each.value))
            axes.plot(step, value, **line(0), linewidth=1.1, marker="o" if len(step) == 1 else None, markersize=3)
            axes.set_title(label(name), size=9)
            count_steps(axes, unit)
            axes.locator_params(axis="x", nbins=4)
    return figure
