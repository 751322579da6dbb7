"""What each recipe comes to here, beside its published score: ten seeds, each in a process of one thread.

    python -m benchmarks.recipes                                   measure what is missing, and write recipes.md
    python -m benchmarks.recipes --recipe ppo/CartPole-v1 --seeds 3
    python -m benchmarks.recipes --write                           only write recipes.md and the package's
                                                                   measured.json from what was measured

Each run writes `measured/ALGORITHM/ENV/SEED.json` when it ends; a later call measures only what is missing or stale.
"""

import argparse
import datetime
import functools
import json
import os
import platform
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import rltrainer as rl
from rltrainer.tools.recipes.measured import FILE, measured, ranked
from rltrainer.tools.verification import NUM_EPISODES, measure_run, versions

HERE = Path(__file__).parent
MEASURED = HERE / "measured"
WEIGHTS = HERE.parent / "tests" / "compile" / "same_weights.json"
SEEDS = range(1, 11)
PACKED, LEAST = FILE, 3
"""What the package holds of the runs, and how many a recipe must have there and to be compared with others."""
REPORT = HERE.parent / "docs/measurements/recipes.md"
PAGE, CHOICES = HERE.parent / "docs" / "guides" / "recipes.md", "<!-- python -m benchmarks.recipes --write -->"
"""Where the docs show what `rl.train` picks: the table after this line."""
LONGEST = 1800
"""Seconds a seed that are still measured if no recipe is named."""
ROW_NAMES = {"qrdqn": "qr_dqn", "td3bc": "td3_bc"}
NOTES = [
    "Stable-Baselines3 2.9.2 with the settings of `a2c/LunarLander-v3` on that version of the env comes to -16.8,",
    "41.5, 14.9 (`benchmarks/peers/sb3_lunar_lander.py`, the last policy of each run): 155.8 was a run of another.",
    "",
    "`ppo/Hopper-v5` had RL Zoo's settings before, whose published score is 2410.4 on Hopper-v3: three seeds came to",
    "963, 1,060 and 1,056 here, and to 988 to 1,005 in Stable-Baselines3. CleanRL's were chosen on seeds 11 and",
    "12, which came to 3,270 and 3,304.",
    "",
    "Some runs of TRPO stay in a poor optimum, which makes these intervals wide: four of ten of `trpo/HalfCheetah-v5`",
    "come to 1,788 to 1,995, near RL Zoo's one run, and three of ten of `trpo/Swimmer-v5` to 136 to 154. Two of ten of",
    "an earlier version do too (148.9, 152.2); on the same data its updates are the same but for roundings.",
]
"""What is known of scores far from the published ones."""


def measure(jobs: list[tuple[str, int]], number: int, num_env_steps: int | None = None) -> Path:
    """Train one seed of a recipe, play its best algorithm in fresh episodes, and write its file."""
    name, seed = jobs[number]
    recipe, load = rl.recipes.get(name).with_fields(seed=seed), os.getloadavg()[0]
    recipe = recipe if num_env_steps is None else recipe.with_fields(num_env_steps=num_env_steps)
    run = measure_run(recipe)
    found = run | {
        "processor_seconds": max(run["curve"]["processor_seconds"], default=0.0),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)], "date": datetime.date.today().isoformat(),
        "commit": commit(), "versions": {**versions(), "python": platform.python_version()}, "machine": machine(),
        "settings": settings(name),
    }  # fmt: skip
    path = file_of(name, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(found) + "\n")
    return path.with_suffix(".new").replace(path)


def file_of(name: str, seed: int) -> Path:
    """Return the file of one run."""
    return MEASURED / name / f"{seed}.json"


def settings(name: str) -> dict[str, Any]:
    """Return what a file depends on: the recipe as written, and the algorithm's recorded weights after 50 updates.

    A file with other settings is stale: the recipe or the algorithm has changed since.
    """
    algorithm, _, env = name.partition("/")
    table = tomllib.loads((Path(rl.recipes.__file__).parent / f"{algorithm}.toml").read_text())[env]
    weights = json.loads(WEIGHTS.read_text()).get(f"{ROW_NAMES.get(algorithm, algorithm)}, uncompiled")
    rounded = None if weights is None else round(sum(weights["projections"].values()), 3)
    return {"recipe": {key: each for key, each in table.items() if not key.startswith("publi")}, "weights": rounded}


def commit() -> str:
    """Return the commit of this checkout."""
    done = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return done.stdout.strip()


def machine() -> str:
    """Return the processor and its cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"


def runs_of(name: str) -> dict[int, dict[str, Any]]:
    """Return what was measured of a recipe, by seed."""
    found = {seed: file_of(name, seed) for seed in SEEDS}
    return {seed: json.loads(path.read_text()) for seed, path in found.items() if path.exists()}


def missing(names: Iterable[str], num_seeds: int) -> list[tuple[str, int]]:
    """Return the runs that have no file, or a stale one, the quickest recipes first."""
    jobs = []
    for name in names:
        found, now = runs_of(name), settings(name)
        stale = [seed for seed in SEEDS[:num_seeds] if seed not in found or found[seed]["settings"] != now]
        jobs += [(seconds_of(name), name, seed) for seed in stale]
    return [(name, seed) for _, name, seed in sorted(jobs)]


def seconds_of(name: str) -> float:
    """Return the known seconds of one seed; infinite for a recipe that never ran."""
    found = runs_of(name)
    return float(np.median([each["processor_seconds"] for each in found.values()])) if found else float("inf")


def interval(scores: list[float]) -> tuple[float, float, float]:
    """Return the interquartile mean of runs, and its 95 % interval by stratified bootstrap."""
    runs = np.array(scores)[:, None]
    low, high = rl.scores.bootstrap_interval(rl.scores.interquartile_mean, runs)
    return float(rl.scores.interquartile_mean(runs)), float(low), float(high)


def table() -> str:
    """Return recipes.md."""
    lines = [
        "# What the recipes come to",
        "",
        "Made by `python -m benchmarks.recipes`: each run trains by a recipe, and its best algorithm plays",
        f"{NUM_EPISODES} fresh, greedy episodes. The score is the interquartile mean of the runs, with its 95 %",
        "interval by stratified bootstrap; a failed run counts with its lowest test. Published scores are those of the",
        "sources, under the conditions named. Seconds are the processor's, of one run on one thread. The files of",
        "`measured/` have the learning curve, commit, versions, machine and load of each run. A recipe with a † has",
        "changed since it ran, or its algorithm has.",
        "",
        "| recipe | env steps | source | published | score | interval | by seed | seconds | date |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in rl.recipes.names():
        recipe, found = rl.recipes.get(name), runs_of(name)
        published = "" if recipe.published_score is None else f"{recipe.published_score:g} ({recipe.published_as})"
        cells = ["not run", "", "", "", ""]
        mark = ""
        if found:
            scores = [each["score"] for each in found.values()]
            iqm, low, high = interval(scores)
            by_seed = ", ".join(f"{score:.1f}" for score in scores)
            seconds = np.median([each["processor_seconds"] for each in found.values()])
            span = f"{low:.1f} to {high:.1f}" if len(found) > 1 else ""
            cells = [f"{iqm:.1f}", span, by_seed, f"{seconds:.0f}", max(each["date"] for each in found.values())]
            mark = "" if all(each["settings"] == settings(name) for each in found.values()) else " †"
        row_cells = [f"`{name}`{mark}", f"{recipe.num_env_steps:,}", recipe.source, published, *cells]
        lines.append(f"| {' | '.join(row_cells)} |")
    lines += ["", *NOTES, "", "## Recipes of one env side by side", ""]
    lines += [
        "Mean scores of the runs' test steps where one of the recipes ends; others that ended before keep their last.",
        "",
    ]
    return "\n".join(lines) + "\n" + side_by_side()


def side_by_side() -> str:
    """Compare the measured recipes of each env at equal env steps and at equal seconds; one alone has no row."""
    lines = ["| env | at | mean scores by recipe |", "|---|---|---|"]
    by_env: dict[str, dict[str, list[dict[str, list[float]]]]] = {}
    for name in rl.recipes.names():
        if len(found := runs_of(name)) >= LEAST:
            algorithm, _, env = name.partition("/")
            by_env.setdefault(env, {})[algorithm] = [run["curve"] for run in found.values()]
    for env, of_env in sorted(by_env.items()):
        if len(of_env) < 2:
            continue
        for axis, unit in (("env_step", "env steps"), ("processor_seconds", "s")):
            for limit in apart(min(curve[axis][-1] for curve in curves) for curves in of_env.values()):
                scores = {name: np.mean([score_at(curve, axis, limit) for curve in curves])
                          for name, curves in of_env.items()}  # fmt: skip
                best = sorted(scores, key=lambda name: -scores[name])
                cells = ", ".join(f"{name} {scores[name]:.1f}" for name in best)
                lines.append(f"| {env} | {limit:,.0f} {unit} | {cells} |")
    return "\n".join(lines) + "\n"


def apart(limits: Iterable[float]) -> list[float]:
    """Return limits in order, without those that are less than a quarter above the one before."""
    kept: list[float] = []
    for limit in sorted(limits):
        if not kept or limit > 1.25 * kept[-1]:
            kept.append(limit)
    return kept


def score_at(curve: dict[str, list[float]], axis: str, limit: float) -> float:
    """Return the score of the last test step up to a limit, or of the first one if none is so early."""
    return curve["score"][max(0, int(np.searchsorted(curve[axis], limit, side="right")) - 1)]


def packed() -> str:
    """Return what the package holds of the runs, `measured.json`: of each recipe with `LEAST` runs as it is now."""
    lines = []
    for name in rl.recipes.names():
        now = settings(name)
        runs = [each for each in runs_of(name).values() if each["settings"] == now and each["curve"]["score"]]
        if len(runs) < LEAST:
            continue
        longest = max((run["curve"] for run in runs), key=lambda curve: len(curve["score"]))
        length = len(longest["score"])
        seconds = [run["curve"]["processor_seconds"] for run in runs if len(run["curve"]["score"]) == length]
        # A failed run stays at its lowest.
        rows = [run["curve"]["score"] for run in runs]
        found = {
            "env_step": longest["env_step"], "seconds": rounded(np.median(seconds, axis=0)),
            "curves": [rounded(row + [min(row)] * (length - len(row))) for row in rows],
            "scores": rounded([run["score"] for run in runs]),
        }  # fmt: skip
        lines.append(f"{json.dumps(name)}: {json.dumps(found, separators=(',', ':'))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rounded(values: Any) -> list[float]:
    """Return numbers of four digits."""
    numbers = [float(f"{value:.4g}") for value in values]
    return [int(number) if number.is_integer() else number for number in numbers]


def choices() -> str:
    """Return the table of what `rl.train` picks for each env."""
    envs: dict[str, list[str]] = {}
    for name in rl.recipes.names():
        envs.setdefault(name.partition("/")[2], []).append(name)
    lines = ["| env | the recipe that is taken | others |", "|---|---|---|"]
    for env, names in sorted(envs.items()):
        found = ranked(names).items()
        cells = [f"`{name.partition('/')[0]}` {score:.4g} in {seconds:.0f} s" for name, (score, seconds) in found]
        if cells:
            lines.append(f"| `{env}` | {cells[0]} | {', '.join(cells[1:])} |")
    return "\n".join(lines)


def with_choices(page: str) -> str:
    """Return a page with the table of today, in the place of its older one."""
    before, mark, rest = page.partition(f"{CHOICES}\n\n")
    return f"{before}{mark}{choices()}\n\n" + rest.partition("\n\n")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=rl.recipes.names(), action="append", default=[], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many of 1 to 10")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.write:
        names = args.recipe or [name for name in rl.recipes.names() if seconds_of(name) < LONGEST]
        jobs = missing(names, args.seeds)
        print(f"{len(jobs)} runs to measure", flush=True)
        if jobs:
            rl.run_seeds(functools.partial(measure, jobs), range(len(jobs)))
    REPORT.write_text(table())
    PACKED.write_text(packed())
    measured.cache_clear()
    PAGE.write_text(with_choices(PAGE.read_text()))


if __name__ == "__main__":
    main()
