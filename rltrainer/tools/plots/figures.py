"""The look of pictures: sizes, colours that colour-blind people can tell apart, labels. Figures are made here only.

Matplotlib is imported when the first figure is made, and never `pyplot`: nothing of it is global, no window opens, and
settings of the user's stay as they are.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from rltrainer.errors import importing_extra

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# Texts, as Matplotlib is not imported yet.
Axes: TypeAlias = "matplotlib.axes.Axes"
Figure: TypeAlias = "matplotlib.figure.Figure"

# Blue, vermilion, green, purple and black of Okabe and Ito (2008), which are dark enough for a line on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
# Line styles: they change with the colour, and tell lines apart in grey, and the sixth line from the first.
LINES = ("solid", (0, (5, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (1.2, 1.2)))
GREY = "#595959"
# Characters of a name.
MAX_LABEL = 60

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": GREY, "axes.facecolor": "white", "axes.formatter.use_mathtext": False,
    "axes.formatter.useoffset": False, "axes.grid": True, "axes.labelcolor": "black", "axes.spines.right": False,
    "axes.spines.top": False, "axes.titleweight": "bold", "axes.unicode_minus": True, "axes.xmargin": 0.02,
    "figure.dpi": 150, "figure.facecolor": "white", "font.size": 9.0, "grid.color": "#e4e4e4", "grid.linewidth": 0.7,
    "legend.frameon": False, "lines.linewidth": 1.6, "savefig.dpi": "figure", "savefig.facecolor": "white",
    "text.color": "black", "text.usetex": False, "xtick.color": GREY, "ytick.color": GREY,
    "font.family": "DejaVu Sans",  # which Matplotlib brings, so that pictures are alike everywhere
    "svg.hashsalt": "rltrainer",  # the same picture is the same file
    "text.parse_math": False,  # a `$` in the name of a run is a `$`
}  # fmt: skip


def line(index: int) -> dict[str, Any]:
    """Return colour and style of the line with this index."""
    return {"color": COLORS[index % len(COLORS)], "linestyle": LINES[index % len(LINES)]}


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in our style within a `with` block."""
    with importing_extra("rltrainer.tools.plots", "plot"):
        import matplotlib
    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(
    title: str, num_axes: int = 1, *, num_columns: int = 1, size: tuple[float, float] = (6.4, 3.8)
) -> tuple[Figure, list[Axes]]:
    """Return a figure, and its axes row by row; within `drawing` only."""
    from matplotlib.figure import Figure

    num_rows = -(-num_axes // num_columns)
    figure: Any = Figure(figsize=(size[0] * num_columns, size[1] * num_rows), layout="constrained")
    figure._repr_png_ = partial(_png, figure)  # else a notebook shows figures only after an import of `pyplot`
    if title:
        figure.suptitle(label(title), weight="bold", size=11)
    grid = figure.subplots(num_rows, num_columns, squeeze=False).flatten()
    for axes in grid[num_axes:]:
        axes.remove()
    return figure, list(grid[:num_axes])


def _png(figure: Figure) -> bytes:
    figure.savefig(file := io.BytesIO(), format="png")
    return file.getvalue()


def count_steps(axes: Axes, unit: str) -> None:
    """Label the x axis of a log with its unit, and its numbers as 20k and 1.5M."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_xlabel(unit)


def note(axes: Axes, text: str) -> None:
    """Write a small grey text above axes."""
    axes.set_title(text, loc="left", color=GREY, size=8, weight="normal")


def label(text: str) -> str:
    """Return a name for a picture: on one line, without control characters, not endless."""
    plain = "".join(each if each.isprintable() else " " for each in text)
    plain = f" {plain}" if plain.startswith("_") else plain  # Matplotlib leaves such names out of a legend
    return plain if len(plain) <= MAX_LABEL else f"{plain[: MAX_LABEL - 3]}..."
