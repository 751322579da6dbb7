"""A sweep at a glance: the scores of its trials, and how each varying field relates to them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rltrainer.errors import ParamsError
from rltrainer.tools.plots.figures import COLORS, GREY, Axes, Figure, drawing, label, new_figure
from rltrainer.tools.sweeps import SweepResult, SweepTrial

# Positive numbers that differ by so much are drawn on a logarithmic axis.
MANY_TIMES = 30
# A field with at most this many values is drawn as categories.
FEW_VALUES = 5
# Marker, colour and opacity of a trial.
MARKS = {"complete": ("o", COLORS[0], 1.0), "pruned": ("x", GREY, 0.7)}


def sweep(result: SweepResult) -> Figure:
    """Return the picture of a sweep: scores by trial with the best so far, and by each field that varies.

    A pruned trial is a cross at its last score; a failed trial is left out. No score at all is a `ParamsError`.
    """
    trials = [trial for trial in result.trials if trial.score is not None]
    if not trials:
        raise ParamsError.about("sweep", "result", "must have a trial with a score", result.folder)
    names = list(dict.fromkeys(name for trial in trials for name in trial.fields))
    with drawing():
        num, size = 1 + len(names), (3.4, 2.8)
        figure, [by_number, *by_field] = new_figure(result.folder.name, num, num_columns=min(num, 3), size=size)
        _draw(by_number, trials, [trial.number for trial in trials])
        complete = [trial for trial in trials if trial.state == "complete"]
        best = np.maximum.accumulate([trial.score or 0.0 for trial in complete])
        by_number.step([trial.number for trial in complete], best, where="post", color=COLORS[1], label="best so far")
        by_number.set_xlabel("trial")
        by_number.legend()
        for axes, name in zip(by_field, names, strict=True):
            having = [trial for trial in trials if name in trial.fields]
            _draw(axes, having, _placed(axes, [trial.fields[name] for trial in having]))
            axes.set_xlabel(label(name))
    return figure


def _draw(axes: Axes, trials: Sequence[SweepTrial], places: Sequence[float]) -> None:
    for state, (marker, color, alpha) in MARKS.items():
        points = [(x, trial.score) for x, trial in zip(places, trials, strict=True) if trial.state == state]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=color, alpha=alpha, markersize=5, label=state)
    axes.set_ylabel("score")


def _placed(axes: Axes, values: Sequence[Any]) -> Sequence[float]:
    # Numbers lie at their place on the x axis; other values, and few numbers, stand side by side.
    are_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if are_numbers and not len(set(values)) <= FEW_VALUES < len(values):
        if min(values) > 0 and max(values) / min(values) > MANY_TIMES:
            axes.set_xscale("log")
        return values
    texts = list(dict.fromkeys(map(_text, sorted(values, key=None if are_numbers else _text))))
    axes.set_xticks(range(len(texts)), texts)
    axes.set_xlim(-0.5, len(texts) - 0.5)
    return [texts.index(_text(value)) for value in values]


def _text(value: Any) -> str:
    return label(getattr(value, "__name__", None) or str(value))
