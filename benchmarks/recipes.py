"""The score that each recipe comes to here, beside the published one: several seeds, a process of one thread each.

python benchmarks/recipes.py --recipe ppo/CartPole-v1            three seeds; prints the row
python benchmarks/recipes.py --recipe ppo/CartPole-v1 --write    also writes benchmarks/recipes.json and recipes.md
python benchmarks/recipes.py --write                             writes recipes.md anew, and runs nothing
"""

import argparse
import functools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import rltrainer as rl

HERE = Path(__file__).parent
STORE = HERE / "recipes.json"
NUM_EPISODES = 100
NOTES = [
    "Rows were measured with `num_env_steps` rounded to the nearest collection and a test of the untrained network;",
    "a run is now up to 7 % longer, in 13 to 25 epochs, and begins without that test.",
    "",
    "Stable-Baselines3 2.9.2 with the settings of `a2c/LunarLander-v3` on that version of the env comes to -16.8,",
    "41.5, 14.9 (`benchmarks/peers/sb3_lunar_lander.py`, the last policy of each run): 155.8 was a run of another.",
]
"""What is known of scores far from the published ones."""
FRESH_SEED = 100_001
"""Seeds episodes that no test step has seen."""


def train_and_play(seed: int, name: str, num_env_steps: int | None = None) -> tuple[float, float]:
    """Train by a recipe; return the mean return of the best algorithm in fresh episodes, and the seconds it took."""
    recipe = rl.recipes.get(name).with_fields(seed=seed, verbose=False, show_progress=False)
    recipe = recipe if num_env_steps is None else recipe.with_fields(num_env_steps=num_env_steps)
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        # Checkpoints of large buffers take time that is not the recipe's.
        checkpoint = rl.CheckpointParams(Path(folder) / "checkpoints", every=rl.Every(10**9, "epoch"), keep_best=0)
        result = rl.recipes.run_recipe(recipe, rl.RunFolder(Path(folder)), checkpoint=checkpoint)
        seconds = time.perf_counter() - started
    envs = recipe.make_envs(20, for_tests=True, seed=FRESH_SEED)
    stats = rl.Collector(result.algorithm.policy, envs).collect(num_episodes=NUM_EPISODES, explore=False)
    envs.close()
    return float(stats.returns.mean()), seconds


def measure(name: str, num_seeds: int, num_env_steps: int | None = None) -> dict[str, Any]:
    runs = rl.run_seeds(
        functools.partial(train_and_play, name=name, num_env_steps=num_env_steps), range(1, num_seeds + 1)
    )
    results = [run.result for run in runs if run.result is not None]
    return {
        "scores": [round(score, 1) for score, _ in results],
        "failed": [run.seed for run in runs if run.error is not None],
        "seconds": round(statistics.median(seconds for _, seconds in results)),
    }


def table(rows: dict[str, Any]) -> str:
    lines = [
        "# What the recipes come to",
        "",
        "Made by `python benchmarks/recipes.py --recipe NAME --write`: the mean return of each run's best algorithm in",
        f"{NUM_EPISODES} fresh, greedy episodes; its mean over seeds, then each seed. Published scores are those of",
        "the sources, under the conditions named. Seconds are those of one seed on one thread, beside other work:",
        "alone it takes less.",
        "",
        "| recipe | env steps | source | published | measured | by seed | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in rl.recipes.names():
        recipe, row = rl.recipes.get(name), rows.get(name)
        published = "" if recipe.published_score is None else f"{recipe.published_score:g} ({recipe.published_as})"
        measured = ["not run", "", ""]
        if row is not None:
            failed = f"; failed: {', '.join(map(str, row['failed']))}" if row["failed"] else ""
            scores = ", ".join(f"{score:g}" for score in row["scores"]) + failed
            measured = [f"{statistics.mean(row['scores']):.1f}", scores, str(row["seconds"])]
        cells = [f"`{name}`", f"{recipe.num_env_steps:,}", recipe.source, published, *measured]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *NOTES]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=rl.recipes.names(), action="append", default=[], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write benchmarks/recipes.json and recipes.md")
    args = parser.parse_args()
    rows: dict[str, Any] = json.loads(STORE.read_text()) if STORE.exists() else {}
    for name in args.recipe:
        rows[name] = measure(name, args.seeds)
        print(name, rows[name], flush=True)
        if args.write:
            STORE.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
    if args.write:
        (HERE / "recipes.md").write_text(table(rows))


if __name__ == "__main__":
    main()
