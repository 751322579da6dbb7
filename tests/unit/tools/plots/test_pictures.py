"""What stands in the pictures, asked of Matplotlib's own objects; and colours, by how the eye sees them."""

import itertools
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import rltrainer as rl
from rltrainer.errors import MissingExtraError, ParamsError
from rltrainer.functional import scores as scores_of
from rltrainer.functional.scores import bootstrap_interval, interquartile_mean
from rltrainer.tools.plots import (
    aggregate_scores,
    curves,
    learning_curve,
    learning_curves,
    metrics,
    performance_profiles,
    probability_of_improvement,
)
from rltrainer.tools.plots.figures import COLORS, label
from rltrainer.tools.recipes.cookbook import write_recipe
from tests.unit.tools.plots.conftest import MakeRun, returns
from tests.unit.tools.refusals import refuses


def drawn(figure: Figure, tmp_path: Path) -> Axes:
    """Return the only axes of a figure, which can be saved."""
    path = tmp_path / "picture.png"
    figure.savefig(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    [axes] = figure.axes
    return axes


def legend(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_the_curve_of_a_run(make_run: MakeRun, tmp_path: Path) -> None:
    rows = {**returns(20.0, 200.0, 180.0), "training": [(50, {"return": 10.0}), (150, {"return": 90.0})]}
    before = dict(mpl.rcParams)
    figure: Any = learning_curve(make_run(rows, "cartpole").folder.path)
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    assert dict(mpl.rcParams) == before  # settings of the user stay
    axes = drawn(figure, tmp_path)
    training, test, best = axes.lines
    assert test.get_xydata().tolist() == [[0, 20], [100, 200], [200, 180]]
    assert training.get_xydata().tolist() == [[50, 10], [150, 90]]
    assert best.get_xydata().tolist() == [[100, 200]]
    assert legend(axes) == ["training, exploring", "test, greedy", "best test 200"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("env steps", "mean return of an episode")
    assert figure.get_suptitle() == "PPO, seed 1"


def test_a_run_needs_no_tests_but_some_returns(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run({"training": [(50, {"return": 10.0})]})
    axes = drawn(learning_curve(run), tmp_path)
    assert legend(axes) == ["training, exploring"]
    assert axes.lines[0].get_marker() == "o"  # a line of one point would not be seen
    text = "learning_curve.run: must be a run in which an episode has ended; its log has no returns"
    refuses(ParamsError, text, learning_curve, make_run({"training": [(50, {"epsilon": 1.0})]}))
    # Another number; a run that was told nothing is called by its folder.
    rows = {"update": [(0, {"loss": 4.0}), (10, {"loss": 2.0})], **returns(1.0)}
    run = rl.Run(make_run(rows).folder, {})
    axes = drawn(learning_curves(run, "update/loss"), tmp_path)
    assert (axes.get_ylabel(), axes.get_title(loc="left")) == ("update loss", "")
    assert learning_curve(run).get_suptitle() == "run-3"


def test_the_curve_of_several_seeds(make_run: MakeRun, tmp_path: Path) -> None:
    values = [(0.0, 10.0), (0.0, 20.0), (0.0, 30.0), (0.0, 40.0), (0.0, 1000.0)]
    runs = [make_run(returns(*each), trainer={"seed": seed}) for seed, each in enumerate(values)]
    axes = drawn(learning_curves(runs), tmp_path)
    *thin, middle = axes.lines
    assert [each.get_ydata().tolist() for each in thin] == [list(each) for each in values]
    assert middle.get_xydata().tolist() == [[0, 0], [100, 30]]  # 20, 30, 40: a quarter of 5 is left out at each end
    assert legend(axes) == ["PPO (5 runs)"]
    assert axes.get_title(loc="left") == "IQM, 95 % bootstrap interval, each run thin"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("env steps", "test return")
    # The band of the second point: what the bootstrap says of 10, 20, 30, 40, 1000.
    [band] = axes.collections
    scores = np.array(values).T[..., None]
    low, high = bootstrap_interval(interquartile_mean, scores)
    at_end = {y for x, y in band.get_paths()[0].vertices if x == 100}
    assert at_end == {low[1], high[1]}
    assert 10 <= low[1] < 30 < high[1] <= 1000


def test_curves_reach_as_far_as_all_runs_have_data(make_run: MakeRun, tmp_path: Path) -> None:
    runs = {"PPO": [make_run(returns(1.0, 2.0)), make_run(returns(3.0, 4.0, 5.0))], "A2C": make_run(returns(0.0, 9.0))}
    figure = learning_curves(runs, title="mine")
    assert figure.get_suptitle() == "mine"
    axes = drawn(figure, tmp_path)
    short, long, middle, other = axes.lines
    assert long.get_xydata().tolist()[-1] == [200, 5]
    assert middle.get_xydata().tolist() == [[0, 2], [100, 3]]
    assert other.get_xydata().tolist() == [[0, 0], [100, 9]]
    assert legend(axes) == ["PPO (2 runs)", "A2C"]
    assert middle.get_color() == short.get_color() != other.get_color()
    assert middle.get_linestyle() != other.get_linestyle()
    # Without a common step there are thin lines only.
    late = {"test": [(500, {"return": 1.0}), (600, {"return": 2.0})]}
    axes = drawn(learning_curves([make_run(returns(1.0, 2.0)), make_run(late)]), tmp_path)
    assert ([len(each.get_xdata()) for each in axes.lines], len(axes.collections)) == ([2, 2, 0], 0)


def test_profiles(tmp_path: Path) -> None:
    scores = {"PPO": [[0.0, 1.0], [0.5, 1.0]], "A2C": [0.5]}
    figure = performance_profiles(scores, title="CartPole-v1")
    axes = drawn(figure, tmp_path)
    assert figure.get_suptitle() == "CartPole-v1"
    ppo, other = axes.lines
    assert ppo.get_ydata()[0] == 1.0  # below all scores
    assert ppo.get_ydata()[-1] == 0.0
    between = (ppo.get_xdata() > 0) & (ppo.get_xdata() < 0.5)
    assert set(ppo.get_ydata()[between]) == {0.75}  # 0.5, 1, 1 of four
    assert (other.get_ydata() == (other.get_xdata() < 0.5)).all()
    assert legend(axes) == ["PPO (2 runs of 2 tasks)", "A2C (1 run of 1 task)"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("score threshold", "share of runs that score above")


def test_aggregates(tmp_path: Path) -> None:
    figure = aggregate_scores({"PPO": [[0.0, 1.0], [0.5, 1.0]], "A2C": [0.5, 0.5]}, num_resamples=100)
    figure.savefig(tmp_path / "picture.png")
    titles = ["median", "interquartile mean", "mean", "optimality gap (less is better)"]
    assert [axes.get_title() for axes in figure.axes] == titles
    # PPO: tasks 0.25 and 1, median 0.625; 0.5 and 1 stay: 0.75; all: 0.625; 1 + 0 + 0.5 + 0 over four.
    marks = [[mark.get_xdata()[0] for mark in axes.lines] for axes in figure.axes]
    assert marks == [[0.625, 0.5], [0.75, 0.5], [0.625, 0.5], [0.375, 0.5]]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["PPO", "A2C"]
    # Equal scores have no width; the others' interval holds the mark.
    ppo, other = figure.axes[2].patches
    assert other.get_width() == 0
    assert ppo.get_x() <= 0.625 <= ppo.get_x() + ppo.get_width()
    bands = "marks with their 95 % bootstrap intervals; "
    assert figure.get_supxlabel() == f"{bands}PPO: 2 runs of 2 tasks, A2C: 2 runs of 1 task"
    alike = aggregate_scores({"PPO": [0.5, 0.25], "A2C": [0.5, 0.5]}, num_resamples=10, confidence=0.9, title="mine")
    assert alike.get_suptitle() == "mine"
    assert alike.get_supxlabel() == "marks with their 90 % bootstrap intervals; 2 runs of 1 task for each algorithm"
    assert aggregate_scores({"PPO": [0.5]}, num_resamples=10).get_supxlabel() == f"{bands}1 run of 1 task"


def test_who_is_better_than_whom(tmp_path: Path) -> None:
    scores = {"PPO": [[0.0, 1.0], [0.5, 1.0]], "A2C": [[0.25, 1.0], [0.25, 1.0]], "DQN": [[2.0, 2.0]]}
    figure = probability_of_improvement(scores, num_resamples=100, title="mine")
    axes = drawn(figure, tmp_path)
    assert figure.get_suptitle() == "mine"
    names = ["PPO over A2C", "PPO over DQN", "A2C over DQN"]
    assert [text.get_text() for text in axes.get_yticklabels()] == names
    # Of the first task's pairs PPO wins half, of the second's all are draws, which count half.
    *marks, half = (line.get_xdata()[0] for line in axes.lines)
    assert (marks, half) == ([0.5, 0.0, 0.0], 0.5)
    statistic = scores_of.probability_of_improvement
    low, high = bootstrap_interval(statistic, scores["PPO"], scores["A2C"], num_resamples=100)
    first, second, _ = axes.patches
    assert (first.get_x(), first.get_x() + first.get_width()) == pytest.approx((float(low), float(high)))
    assert low < 0.5 < high
    assert (second.get_x(), second.get_width()) == (0, 0)
    assert axes.get_xlabel() == "probability of improvement"
    sizes = "PPO: 2 runs of 2 tasks, A2C: 2 runs of 2 tasks, DQN: 1 run of 2 tasks"
    assert axes.get_title(loc="left") == f"marks with their 95 % bootstrap intervals; {sizes}"


def test_metrics(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(step, {"loss": float(step), "kl": 1.0, "never": np.nan}) for step in (0, 10, 20)]
    figure = metrics(make_run({"update": rows}))
    figure.savefig(tmp_path / "picture.png")
    assert [axes.get_title() for axes in figure.axes] == ["loss", "kl"]
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[0, 0], [10, 10], [20, 20]]
    text = "metrics.kind: must be a kind of row in the log of .*, one of update; got 'u'"
    refuses(ParamsError, text, metrics, make_run({"update": rows}), "u")
    # Long logs are drawn by the means of parts: of 0, 1, 2, 3 first.
    figure = metrics(make_run({"update": [(step, {"loss": float(step)}) for step in range(2000)]}))
    points = figure.axes[0].lines[0].get_xydata()
    assert (len(points), points[0].tolist()) == (500, [1.5, 1.5])
    monkeypatch.setattr(curves, "MAX_PANELS", 2)
    assert len(metrics(make_run({"update": [(0, {"a": 1.0, "b": 1.0, "c": 1.0})]})).axes) == 2


def test_panels_have_one_size_and_place_however_wide_their_numbers_are(make_run: MakeRun, tmp_path: Path) -> None:
    places = []
    for names in (["a"], ["a", "b"], ["a", "b", "c", "d"]):
        rows = [(step, dict.fromkeys(names, step * 10.0 ** (3 * len(names)))) for step in (0, 1)]
        figure = metrics(make_run({"update": rows}))
        figure.savefig(tmp_path / "picture.png")
        width, height = figure.get_size_inches()
        boxes = [axes.get_position() for axes in figure.axes]
        places.append([(box.x0 * width, box.width * width, box.height * height) for box in boxes])
    assert np.allclose(places[0][0], places[1][0])
    assert np.allclose(places[1], places[2][:2])
    assert np.allclose(places[2][3], places[2][0])


@pytest.mark.parametrize(("name", "shown"), [
    ("$\\frac{$", "$\\frac{$"), ("a\x07b\nc", "a b c"), ("$x_1$", "$x_1$"), ("%d {} <b>&", "%d {} <b>&"),
    ("_hidden", " _hidden"), ("n" * 500, "n" * 57 + "..."),
])  # fmt: skip
def test_names_are_shown_as_they_are(name: str, shown: str, make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(returns(1.0, 2.0))
    axes = drawn(learning_curves({name: [run, run]}), tmp_path)
    assert legend(axes) == [label(f"{name} (2 runs)")]
    figure = metrics(make_run({"update": [(0, {name: 1.0})]}))
    figure.savefig(tmp_path / "picture.svg")
    assert [axes.get_title() for axes in figure.axes] == [label(name)] == [shown]


@pytest.mark.parametrize("values", [(1e149, -1e149, 1e308), (0.0, 5e-324), (3.0, 3.0), (1e15, 1e15 + 1)])
def test_numbers_of_any_size_are_drawn(values: tuple[float, ...], make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(returns(*values)), make_run(returns(*values))]
    drawn(learning_curve(runs[0]), tmp_path)
    drawn(learning_curves(runs), tmp_path)


def test_the_extra_is_named(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(returns(1.0))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = r'rltrainer.tools.plots needs a package that is not installed: .* Run: pip install "rltrainer\[plot\]"'
    refuses(MissingExtraError, text, learning_curve, run)


def linear(color: str) -> np.ndarray:
    """Return the light of a colour, from its sRGB."""
    parts = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


SEEN_BY = {  # Machado et al. (2009), severity 1
    "everybody": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(light: np.ndarray) -> np.ndarray:
    """Return a colour as CIE 1976 L*a*b*, in which distances are those that are seen."""
    x, y, z = TO_XYZ @ np.clip(light, 0, 1) / [0.9505, 1.0, 1.089]
    fx, fy, fz = (each ** (1 / 3) if each > 0.008856 else 7.787 * each + 16 / 116 for each in (x, y, z))
    return np.array([116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)])


@pytest.mark.parametrize("eye", SEEN_BY)
def test_colours_can_be_told_apart(eye: str) -> None:
    seen = [lab(np.array(SEEN_BY[eye]) @ linear(color)) for color in COLORS]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15  # 2.3 is just noticed
    luminance = [float(TO_XYZ[1] @ linear(color)) for color in COLORS]
    assert min(1.05 / (each + 0.05) for each in luminance) > 3  # on white; what WCAG 2.2 asks of graphics
    red, green = (lab(np.array(SEEN_BY["no red"]) @ linear(color)) for color in ("#B03020", "#524E00"))
    assert np.linalg.norm(red - green) < 15  # those that look alike are found


def test_the_env_of_recipes_is_the_title(make_run: MakeRun) -> None:
    runs = [make_run(returns(1.0, 2.0)), make_run(returns(1.0, 2.0))]
    write_recipe(rl.recipes.get("ppo", "CartPole-v1"), runs[0].folder)
    assert learning_curves(runs[0]).get_suptitle() == "CartPole-v1"
    assert learning_curves(runs).get_suptitle() == ""  # the other run says nothing of its env
    assert learning_curve(runs[0]).get_suptitle() == "PPO on CartPole-v1, seed 1"
    assert len(learning_curves(runs).axes) == 1
    write_recipe(rl.recipes.get("ppo", "Acrobot-v1"), runs[1].folder)
    figure = learning_curves(runs)
    assert [axes.get_title(loc="right") for axes in figure.axes] == ["CartPole-v1", "Acrobot-v1"]
    assert [legend(axes) for axes in figure.axes] == [["PPO"], ["PPO"]]
    assert figure.get_suptitle() == ""
    assert len(learning_curves({"mine": runs}).axes) == 1  # a group stays together
