"""The table of recipes: complete, as its figures say; and the program behind it."""

import json
from pathlib import Path

import rltrainer as rl
from benchmarks.recipes import STORE, measure, table, train_and_play


def test_the_page_is_what_the_figures_say() -> None:
    rows = json.loads(STORE.read_text())
    assert set(rows) <= set(rl.recipes.names())
    assert (Path(STORE).parent / "recipes.md").read_text() == table(rows)


def test_a_row_has_measured_and_published_scores() -> None:
    rows = {"dqn/CartPole-v1": {"scores": [500.0, 490.0], "failed": [3], "seconds": 12}}
    row = next(line for line in table(rows).splitlines() if "`dqn/CartPole-v1`" in line)
    assert (
        row == "| `dqn/CartPole-v1` | 50,000 | RL Zoo | 500 (one run of 50k steps) | 495.0 | 500, 490; failed: 3 | 12 |"
    )


def test_a_seed_trains_and_plays() -> None:
    score, seconds = train_and_play(1, "ppo/CartPole-v1", num_env_steps=512)
    assert 8 < score < 500
    assert seconds > 0
    row = measure("ppo/CartPole-v1", 1, num_env_steps=512)
    assert (row["scores"], row["failed"]) == ([round(score, 1)], [])
