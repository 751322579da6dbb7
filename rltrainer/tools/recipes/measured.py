"""Measured recipes: learning curves and scores of several seeds, from the package's `measured.json`."""

import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rltrainer.files.regular_file import open_regular
from rltrainer.functional.scores import Array

FILE = Path(__file__).with_name("measured.json")
CLOSE = 0.05
"""Largest distance of a quicker recipe from the best score, as a share of what the best one has gained."""


@dataclass(frozen=True)
class Measured:
    """The runs of one recipe: R seeds, and K test steps in each."""

    env_step: Array
    """Of each test step [K]."""
    seconds: Array
    """The processor's seconds to each test step, on one thread [K]; the median of the runs."""
    curves: Array
    """The mean return of each test step [R, K]."""
    scores: Array
    """The mean return of each run's best algorithm in 100 fresh episodes [R]."""


@functools.cache
def measured() -> dict[str, Measured]:
    """Return all recipes that were measured, by name."""
    with open_regular(FILE) as file:
        tables = json.load(file)
    return {name: Measured(**{key: np.array(each) for key, each in table.items()}) for name, table in tables.items()}


def ranked(names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Return the mean score of each measured recipe in its last test step, and its seconds.

    The recipe to take goes first: the quickest whose score is within 5 % of the best one. The lowest mean test step of
    all is 0 %, and the best score is 100 %. The others follow by their scores.
    """
    found = {name: measured()[name] for name in names if name in measured()}
    means = {name: each.curves.mean(0) for name, each in found.items()}
    ends = {name: (float(means[name][-1]), float(each.seconds[-1])) for name, each in found.items()}
    if not ends:
        return {}
    order = sorted(ends, key=lambda name: -ends[name][0])
    best, lowest = ends[order[0]][0], min(float(mean.min()) for mean in means.values())
    close = [name for name in order if ends[name][0] >= best - CLOSE * (best - lowest)]
    first = min(close, key=lambda name: ends[name][1])
    return {name: ends[name] for name in [first, *(name for name in order if name != first)]}
