"""All numbers of one kind of row, each in a small picture of its own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.tools.plots.figures import count_steps, drawing, label, line, new_figure
from rltrainer.tools.plots.run_data import AnyRun, Curve, as_run, curves, step_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_COLUMNS = 3
PANEL, MARGINS = (3.2, 2.1), (0.72, 0.12, 0.46, 0.26)
"""The size of a small picture in inches, and what is left of it on the left, right, bottom and top."""
MAX_PANELS = 60
"""Small pictures in one; a log may have any number of names."""


def metrics(run: AnyRun, kind: str = "update") -> "Figure":
    """Return the picture of all numbers of a kind of row over a run's steps: losses, learning rates, what hooks log.

    Args:
        run: the folder of a run, or what `rl.open_run` returns.
        kind: "update", "training", "test", or another that the log has. Of more than 60 names the first are drawn.

    Raises:
        ParamsError: the log has no such rows.
        CheckpointError: it cannot be read.
        MissingExtraError: Matplotlib is not installed.
    """
    run = as_run(run)
    found = curves(run, kind)
    if not found:
        rule = f"must be a kind of row in the log of {run.folder.path}, one of {', '.join(run.kinds) or 'none'}"
        raise ParamsError(field_error_text("metrics", "kind", rule, kind))
    return draw_panels(found, step_unit(run))


def draw_panels(found: Mapping[str, Curve], unit: str) -> "Figure":
    """Return the picture of curves by name, each for itself, over steps of a unit."""
    shown = dict(list(found.items())[:MAX_PANELS])
    with drawing():
        columns = min(NUM_COLUMNS, len(shown))
        figure, grid = new_figure("", len(shown), num_columns=columns, size=PANEL)
        _place(figure, -(-len(shown) // columns), columns)
        for axes, (name, each) in zip(grid, shown.items(), strict=True):
            step, value = _thinned(each)
            axes.plot(step, value, **line(0), linewidth=1.1, marker="o" if len(step) == 1 else None, markersize=3)
            axes.set_title(label(name), size=9)
            count_steps(axes, unit)
            axes.locator_params(axis="x", nbins=4)
    return figure


def _place(figure: "Figure", num_rows: int, num_columns: int) -> None:
    """Give all panels one size, however wide their numbers are: pictures on a page are aligned with one another."""
    figure.set_layout_engine(None)
    (width, height), (left, right, bottom, top) = PANEL, MARGINS
    figure.subplots_adjust(
        left=left / (width * num_columns),
        right=1 - right / (width * num_columns),
        bottom=bottom / (height * num_rows),
        top=1 - top / (height * num_rows),
        wspace=(left + right) / (width - left - right),
        hspace=(bottom + top) / (height - bottom - top),
    )


def _thinned(found: Curve, most: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Return a curve's points, or the means of so many parts of it."""
    if len(found.step) <= most:
        return found.step, found.value
    parts = [np.array_split(each, most) for each in (found.step, found.value)]
    step, value = (np.array([part.mean() for part in each]) for each in parts)
    return step, value
