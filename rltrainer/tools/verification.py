"""Verification that recipes learn on this machine what they learnt elsewhere: the work of `rltrainer verify`.

Runs of new seeds are compared with the measured ones by the mean return of their test steps, as far as they went. This
area under the learning curve varies less than a single test step, and is low for a run that learns late, too.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rltrainer.checkpoint import CheckpointParams
from rltrainer.collect import Collector
from rltrainer.errors import CheckpointError, RLTrainerError
from rltrainer.files.atomic_write import replaced_file
from rltrainer.functional.scores import Array, bootstrap_interval, mean_score, rank_test
from rltrainer.interval import Every
from rltrainer.loggers import RunFolder
from rltrainer.loggers.log_state import read_json_file
from rltrainer.processes.worker import num_cores
from rltrainer.tools.recipes.cookbook import get
from rltrainer.tools.recipes.measured import Measured, measured
from rltrainer.tools.recipes.recipe import Recipe
from rltrainer.tools.recipes.training import run_recipe
from rltrainer.tools.runs.processes import Job, Listener, Processes

MIN_SEEDS, MAX_SEEDS = 2, 10
# A recipe is missed if so low a rank has at most this probability, times the number of recipes, and met if it has at
# least that one. As both are looked at after each seed, 2 % of calls miss a recipe that is as good as the measured one.
MISSED, MET = 0.01, 0.2
CLEAR = 0.3
SECONDS_TO_START = 6.0
NUM_EPISODES, FRESH_SEED = 100, 100_001
"""Episodes of the score of a run, and their seed: no test step has seen them."""


def measure_run(recipe: Recipe, num_tests: int | None = None, parent: object = None) -> dict[str, Any]:
    """Train by a recipe; return the learning curve, seconds, and how its best algorithm plays fresh episodes.

    With `num_tests` the run ends after so many test steps, and nothing is played.
    """
    curve: dict[str, list[Any]] = {"env_step": [], "score": [], "processor_seconds": []}
    began, before = time.perf_counter(), time.process_time()
    score = failed = None

    def end_test(score: float) -> bool:
        curve["score"].append(round(score, 2))
        curve["processor_seconds"].append(round(time.process_time() - before, 2))
        return len(curve["score"]) == num_tests

    with tempfile.TemporaryDirectory() as folder:
        # Checkpoints of large buffers take time that is not the recipe's.
        checkpoint = CheckpointParams(Path(folder) / "checkpoints", every=Every(10**9, "epoch"), keep_best=0)
        live: Any = {"checkpoint": checkpoint, "stop_fn": end_test}
        live["test_fn"] = lambda epoch, env_step: curve["env_step"].append(env_step)
        try:
            recipe = recipe.with_fields(verbose=False, show_progress=False)
            policy = run_recipe(recipe, RunFolder(Path(folder)), **live).algorithm.policy
        except RLTrainerError as error:  # such as weights that are not finite
            failed, score = str(error), min(curve["score"], default=None)
    seconds = round(time.perf_counter() - began, 1)
    if failed is None and num_tests is None:
        with contextlib.closing(recipe.make_envs(20, for_tests=True, seed=FRESH_SEED)) as envs:
            stats = Collector(policy, envs).collect(num_episodes=NUM_EPISODES, explore=False)
        score = round(float(stats.returns.mean()), 2)
    return {"score": score, "failed": failed, "curve": curve, "seconds": seconds}


@dataclasses.dataclass
class Verified:
    """New runs of a recipe beside the measured ones, as far as a number of test steps."""

    name: str
    num_tests: int
    runs: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    """By seed, as `measure_run` returns them."""

    @property
    def measured(self) -> Measured:
        """The measured runs."""
        return measured()[self.name]

    @property
    def seconds(self) -> float:
        """The seconds of a new process and run, as measured."""
        return SECONDS_TO_START + float(self.measured.seconds[self.num_tests - 1])

    @property
    def returns(self) -> Array:
        """The mean return of each new run [R]; after a failure a test step has the lowest return."""
        rows, low = [run["curve"]["score"] for run in self.runs.values()], float(self.measured.curves.min())
        whole = [row + [min([*row, low])] * (self.num_tests - len(row)) for row in rows]
        return np.array([np.mean(row[: self.num_tests]) for row in whole])

    @property
    def measured_returns(self) -> Array:
        """The mean return of each measured run, as far as the new ones go [S]."""
        return np.asarray(self.measured.curves[:, : self.num_tests].mean(1))

    @property
    def speed(self) -> float:
        """Env steps in a second of the processor, as the median of the runs; not a number without any."""
        curves = [run["curve"] for run in self.runs.values() if run["curve"]["score"]]
        ends = [min(len(each["score"]), self.num_tests) - 1 for each in curves]
        speeds = [each["env_step"][i] / each["processor_seconds"][i] for each, i in zip(curves, ends, strict=True)]
        return float(np.median(speeds or np.nan))

    def verdict(self, num_recipes: int) -> tuple[str, float, int]:
        """Return "missed", "met" or "unsure", the probability, and how many seeds would decide, 0 for over a hundred.

        It is the probability that one of so many recipes, each as good as measured, ranks as low as this by chance.
        The seeds decide if further ones come out as those so far.
        """
        seen = self.returns if self.runs else self.measured_returns.min(keepdims=True) - 1
        for number in range(max(len(self.runs), MIN_SEEDS), 101):
            chance = rank_test(np.resize(seen, number), self.measured_returns)
            if chance * num_recipes <= MISSED or chance >= MET:
                break
        else:
            number = 0
        now = min(1.0, num_recipes * rank_test(self.returns, self.measured_returns)) if self.runs else 1.0
        decided = "missed" if now <= MISSED else "met"
        return (decided if number == len(self.runs) else "unsure"), now, number


Report = dict[str, Verified]


def num_tests_to_tell(found: Measured) -> int:
    """Return the test steps after which runs that learn differ from runs that do not; 0 if some measured run failed.

    It is the first where even the worst measured run has a mean return `CLEAR` of the way from the lowest first test
    step to the highest of all: a run that learns nothing ranks below all.
    """
    low, high = found.curves[:, 0].min(), found.curves.max()
    returns = found.curves.cumsum(1) / np.arange(1, len(found.env_step) + 1)
    is_clear = returns.min(0) >= low + CLEAR * (high - low)
    return int(is_clear.argmax()) + 1 if is_clear.any() else 0


def plan(names: Iterable[str], seconds: float) -> Report:
    """Return the recipes that fit into the processor's seconds, for as many test steps as tell; without a limit, all.

    The quickest recipe of each algorithm goes first, unless a quicker one trains a subclass, which tries its code too.
    Recipes with measured runs that failed go last. Three seeds of each fit, and three more of the slowest.
    """
    tells = {name: num_tests_to_tell(measured()[name]) for name in names}
    whole = {name: len(measured()[name].env_step) for name in tells}
    found = [Verified(name, (tells[name] if seconds < np.inf else 0) or whole[name]) for name in tells]
    turns, places, chosen = Counter[type](), dict[str, tuple[bool, int]](), Report()
    found.sort(key=lambda each: (tells[each.name] == 0, each.seconds))
    for each in found:
        algorithm = get(each.name).algorithm_class
        is_tried = any(other is not algorithm and issubclass(other, algorithm) for other in turns)
        turns[algorithm] += 1
        places[each.name] = tells[each.name] == 0, turns[algorithm] + is_tried
    for each in sorted(found, key=lambda each: places[each.name]):
        costs = [other.seconds for other in [*chosen.values(), each]]
        if 3 * sum(costs) + 3 * max(costs) <= seconds:
            chosen[each.name] = each
    return chosen


class Verification(Listener):
    """Trains seeds of each recipe until it is met or missed, or the time is over, and writes the report after a run."""

    def __init__(self, report: Report, path: Path, seconds: float, seed: int, say: Callable[[str], None]) -> None:
        self._report, self._path, self._end, self._say = report, path, time.monotonic() + seconds, say
        self._running: dict[int, tuple[Verified, int]] = {}
        self._first_seed = seed

    def run(self, num_processes: int | None = None) -> None:
        """Train what is undecided."""
        while self._next() is not None:  # an ended run may leave its recipe undecided
            Processes("verify", "run", num_processes or num_cores(), self).run(self._jobs())

    def _jobs(self) -> Iterator[tuple[int, Job]]:
        while (found := self._next()) is not None:
            begun = {*found.runs, *(seed for each, seed in self._running.values() if each is found)}
            seed = next(seed for seed in itertools.count(self._first_seed) if seed not in begun)
            self._running[number := max(self._running, default=0) + 1] = found, seed
            is_whole = found.num_tests == len(found.measured.env_step)
            recipe, num_tests = get(found.name).with_fields(seed=seed), None if is_whole else found.num_tests
            yield number, functools.partial(measure_run, recipe, num_tests)

    def _next(self) -> Verified | None:
        """Return the undecided recipe with the fewest seeds, the quickest first, if a run of it ends in time."""
        found, left, running = self._report.values(), self._end - time.monotonic(), Counter[str]()
        running.update(each.name for each, _ in self._running.values())
        ended = [(run["seconds"], each.seconds) for each in found for run in each.runs.values() if run["seconds"]]
        slowness = float(np.median([own / expected for own, expected in ended])) if ended else 1.0
        waiting = [
            (len(each.runs) + running[each.name], each.seconds, each.name) for each in found
            # More than the least number of seeds only if those so far leave it undecided.
            if len(each.runs) + running[each.name] < (MIN_SEEDS if running[each.name] else MAX_SEEDS)
            and slowness * each.seconds <= left and each.verdict(len(found))[0] == "unsure"
        ]  # fmt: skip
        return self._report[min(waiting)[2]] if waiting else None

    def ended(self, number: int, result: Any, error: str | None) -> None:
        """Keep a run, and write the report."""
        found, seed = self._running.pop(number)
        died: dict[str, Any] = {"score": None, "failed": error, "curve": {"env_step": [], "score": []}, "seconds": 0.0}
        found.runs[seed] = run = result or died
        low, high = found.measured_returns.min(), found.measured_returns.max()
        words = f"measured {low:.5g} to {high:.5g}" + (f"; failed: {run['failed']}" if run["failed"] else "")
        self._say(f"{found.name} seed {seed}: {found.returns[-1]:.5g}, {words}")
        recipes = {name: {"num_tests": each.num_tests, "runs": each.runs} for name, each in self._report.items()}
        with replaced_file(self._path) as file:
            file.write((json.dumps({"versions": versions(), "recipes": recipes}) + "\n").encode())


def versions() -> dict[str, str]:
    """Return the versions of what a score may depend on."""
    return {each: importlib.metadata.version(each) for each in ("torch", "gymnasium", "numpy", "rltrainer")}


def read_report(path: Path) -> tuple[Report, dict[str, str]]:
    """Return a report and the versions that it is of, empty without a file; a damaged one is a `CheckpointError`."""
    try:
        table: Any = {"recipes": {}, "versions": {}}
        if path.exists():
            table = read_json_file(path, "a report of rltrainer verify")
        tables = {name: each for name, each in table["recipes"].items() if name in measured()}
        runs = {name: {int(seed): run for seed, run in each["runs"].items()} for name, each in tables.items()}
        report = {name: Verified(name, int(tables[name]["num_tests"]), runs[name]) for name in tables}
        for each in report.values():
            each.verdict(1), each.speed, each.seconds, sum(run["seconds"] for run in each.runs.values())
        return report, dict(table["versions"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: expected a report of rltrainer verify ({error!r})") from error


def summary(report: Report, other: Report) -> list[dict[str, str]]:
    """Return the rows of the table, by the names of its columns; another report stands beside it."""
    rows = []
    for name, found in report.items():
        (verdict, chance, number), published = found.verdict(len(report)), get(name).published_score
        scores = np.array([run["score"] for run in found.runs.values() if run["score"] is not None])
        theirs = other.get(name, found)
        runs = theirs.runs if theirs is not found and theirs.num_tests >= found.num_tests else {}
        theirs = dataclasses.replace(found, runs=runs)
        ratio = found.speed / theirs.speed
        rows.append({
            "recipe": name, "env steps": f"{found.measured.env_step[found.num_tests - 1]:,.0f}",
            "seeds": str(len(found.runs)), "return": with_interval(found.returns),
            "measured": with_interval(found.measured_returns), "score": with_interval(scores),
            "published": "" if published is None or not len(scores) else f"{published:g}",
            "other": with_interval(theirs.returns), "speed": "" if np.isnan(ratio) else f"{ratio:.2f}",
            "chance": f"{chance:.2g}",
            "verdict": f"unsure: {number or 'over 100'} seeds decide" if verdict == "unsure" else verdict,
        })  # fmt: skip
    return [{name: cell for name, cell in row.items() if any(each[name] for each in rows)} for row in rows]


def with_interval(values: Array) -> str:
    """Return the mean of runs with its 95 % interval by bootstrap: `95.1 (90 to 99)`."""
    if len(values) < 2:
        return "".join(f"{value:.4g}" for value in values)
    low, high = bootstrap_interval(mean_score, values)
    return f"{values.mean():.4g} ({low:.4g} to {high:.4g})"
