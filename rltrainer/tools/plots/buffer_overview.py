"""The picture of a replay buffer: how its episodes are spread, and how much of the action space they use."""

import numpy as np

from rltrainer.data import ReplayBuffer
from rltrainer.data.buffer_description import ActionCoverage
from rltrainer.tools.datasets.chosen_episodes import episodes_of
from rltrainer.tools.plots.figures import COLORS, GREY, Axes, Figure, drawing, new_figure

# Numbers of an action to draw; an action may have any number.
MAX_NUMBERS = 24
NUM_BINS = 30


def buffer(buffer: ReplayBuffer, title: str = "") -> Figure:
    """Return the picture of a buffer: returns and lengths of its episodes, by how they ended, and what actions cover.

    `buffer.describe()` has the numbers. Only whole episodes count. What is no buffer is a `ReplayBufferError`.

    Args:
        title: above the picture; "" gives the numbers of transitions and episodes.
    """
    episodes = episodes_of("plots.buffer", buffer)
    found = buffer.describe()
    finished = episodes.is_finished
    is_terminated = episodes.terminated[finished]
    with drawing():
        title = title or f"{found.num_transitions:,} transitions, {found.num_episodes:,} episodes"
        figure, axes = new_figure(title, 3, num_columns=3, size=(3.2, 2.6))
        _histogram(axes[0], "return", episodes.return_[finished], is_terminated)
        _histogram(axes[1], "length", episodes.length[finished], is_terminated)
        axes[0].set_ylabel("episodes")
        if axes[1].patches:
            axes[1].legend(fontsize=8)
        _actions(axes[2], found.actions)
    return figure


def _histogram(axes: Axes, name: str, values: np.ndarray, is_terminated: np.ndarray) -> None:
    # Truncated episodes are stacked on the terminated ones.
    axes.set_xlabel(name)
    if not len(values):
        axes.text(0.5, 0.5, "no whole episode", ha="center", transform=axes.transAxes, color=GREY)
        return
    kinds = {"terminated": values[is_terminated], "truncated": values[~is_terminated]}
    shown = {kind: part for kind, part in kinds.items() if len(part)}
    colors = [COLORS[list(kinds).index(kind)] for kind in shown]
    axes.set_axisbelow(True)
    single = (values[0] - 1, values[0] + 1) if np.ptp(values) == 0 else None  # else ticks are fractions around it
    axes.hist(list(shown.values()), NUM_BINS, range=single, stacked=True, label=list(shown), color=colors)
    axes.locator_params(axis="y", integer=True)
    axes.locator_params(axis="x", integer=True, nbins=5)


def _actions(axes: Axes, actions: ActionCoverage | None) -> None:
    # Choices: the share of each. Numbers: the range that is used, on the grey range of the bounds.
    axes.grid(False)
    if actions is None:
        axes.set_xlabel("action")
    elif actions.shares is not None:
        shown = actions.shares[:MAX_NUMBERS]
        width = 0.8 / max(len(shown), 1)
        for i, shares in enumerate(shown):
            axes.bar(np.arange(len(shares)) + i * width, shares, width, color=COLORS[i % len(COLORS)])
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("choice" if len(shown) == 1 else f"choice of each of {len(actions.shares)} numbers")
        axes.set_ylabel("share of the actions")
    else:
        pairs = list(zip(actions.used or (), actions.bounds or (), strict=True))[:MAX_NUMBERS]
        for i, (used, bounds) in enumerate(pairs):
            if np.isfinite(bounds).all():
                axes.barh(i, bounds[1] - bounds[0], left=bounds[0], height=0.8, color="#e4e4e4")
            axes.barh(i, used[1] - used[0], left=used[0], height=0.4, color=COLORS[0])
        axes.set_yticks(range(len(pairs)))
        axes.use_sticky_edges = False
        axes.autoscale_view()
        axes.invert_yaxis()
        are_all = len(pairs) == len(actions.used or ())
        axes.set_xlabel("range used of the bounds" if are_all else "range used of the first")
        axes.set_ylabel("number of the action")
