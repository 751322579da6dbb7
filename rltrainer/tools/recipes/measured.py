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


def ranked(names: Iterable[str]) -> tuple[float, dict[str, float]]:
    """Return the seconds of the quickest measured recipe, and each one's mean test score by then.

    The best goes first, equal ones by their seconds; a recipe without a test by then goes last, at minus infinity.
    """
    found = {name: measured()[name] for name in names if name in measured()}
    seconds = min((float(each.seconds[-1]) for each in found.values()), default=0.0)
    scores = dict.fromkeys(sorted(found, key=lambda name: found[name].seconds[-1]), -np.inf)
    for name in scores:
        if num_tests := int((found[name].seconds <= seconds).sum()):
            scores[name] = float(found[name].curves[:, num_tests - 1].mean())
    return seconds, dict(sorted(scores.items(), key=lambda item: -item[1]))
