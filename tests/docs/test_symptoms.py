"""The page "It does not learn": its numbers are those of the runs in its pictures, its names are those of our logs."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import rltrainer as rl
from pictures import symptoms

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text()
FIGURES = json.loads((symptoms.FOLDER / "symptoms.json").read_text())
LARGEST = 60_000
"""Bytes of a picture."""
KINDS = {"PPO": "CartPole-v1", "A2C": "CartPole-v1", "IMPALA": "CartPole-v1", "PQN": "CartPole-v1",
         "DQN": "CartPole-v1", "SAC": "Pendulum-v1", "TD3": "Pendulum-v1"}  # fmt: skip
"""The algorithms that the page names, and an env for each."""


def tables(page: str, head: str) -> Iterator[list[list[str]]]:
    """Yield the tables whose first cell is `head`, as rows of cells."""
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        if rows[0][0] == head:
            yield [rows[0], *rows[2:]]


def wrong_figures(page: str) -> list[str]:
    """Return the cells that say otherwise than the runs."""
    wrong = []
    for head, *rows in tables(page, "run"):
        for run, *cells in rows:
            for column, cell in zip(head[1:], cells, strict=True):
                which, value = column.replace("`", "").split()
                if float(cell.replace(",", "")) != FIGURES[run][value][which]:
                    wrong.append(f"{run}, {column}: {cell}")
    return wrong


def test_figures_are_those_of_the_runs_that_the_program_makes() -> None:
    assert len(list(tables(PAGE, "run"))) >= 9
    assert wrong_figures(PAGE) == []
    assert wrong_figures(PAGE.replace("| healthy | 500 |", "| healthy | 501 |"))
    assert set(FIGURES) == set(symptoms.RUNS)


def test_every_picture_is_shown_and_small() -> None:
    shown = set(re.findall(r"\(\.\./images/symptoms/(\w+)\.png\)", PAGE))
    drawn = {path.stem: path.stat().st_size for path in symptoms.FOLDER.glob("*.png")}
    assert shown == set(drawn) == {*symptoms.PICTURES, "seeds"}
    assert {name: size for name, size in drawn.items() if size > LARGEST} == {}


def wrapped_update() -> rl.UpdateResult:
    """Return the result of an update of RND."""
    envs = rl.make_vec("CartPole-v1", num_envs=2)
    algorithm = rl.RND(rl.PPO(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,))))
    collector = rl.Collector(
        algorithm.policy, envs, rl.RolloutBuffer(16, 2, envs.single_observation_space, envs.single_action_space)
    )
    collector.collect(num_steps=32)
    return algorithm.update(collector.rollout(), batch_size=None, repeat=1)


def test_the_names_are_those_of_our_logs(tmp_path: Path) -> None:
    logged = {}
    for algorithm, env in KINDS.items():
        folder = tmp_path / algorithm
        warmup = {} if algorithm in ("PPO", "A2C", "IMPALA", "PQN") else {"warmup_num_env_steps": 20, "batch_size": 8}
        rl.train(
            env, algorithm.lower(), folder=folder, max_epochs=1, test_step_num_episodes=1, num_env_steps=600,
            hidden_sizes=(8,), logger=rl.RunFolder(folder).logger("jsonl", training_interval=100), verbose=False,
            show_progress=False, runtime=rl.RuntimeParams(compile=False), **warmup,
        )  # fmt: skip
        opened = rl.open_run(folder)
        logged[algorithm] = {f"{kind}/{name}" for kind in opened.kinds for name in opened.rows(kind)}
    logged["RND"] = {f"update/{name}" for name in wrapped_update().metrics}  # no name of rl.train
    [[_, *rows]] = tables(PAGE, "number")
    assert len(rows) > 10
    for numbers, algorithms, _ in rows:
        named = KINDS if algorithms.startswith("all") else algorithms.split(", ")
        for number in re.findall(r"`([^`]+)`", numbers):
            missing = [algorithm for algorithm in named if number not in logged[algorithm]]
            assert missing == [], number
    # What the page names of one algorithm is not of all.
    assert "update/approx_kl" not in logged["A2C"]
    assert "update/explained_variance" not in logged["DQN"]
