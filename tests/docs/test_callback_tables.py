"""Tables of callbacks: each line is a field of a trainer's params that runs and does what the line says.

A row is `what is wanted, or the callback there | field=value`. The code of each row is run in a small run; `SEEN` says
how what it did is seen.
"""

import ast
import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from tests.fakes import ScriptedOnPolicy, tiny_actor_critic
from tests.unit.collect.test_episode_infos import TellingEnv

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "migrating" / "stable_baselines3.md", DOCS / "guides" / "callbacks_and_hooks.md"]
LAST = "a field of the trainer's params"
CODE = re.compile(r"`([^`]+)`")


def rows(text: str) -> list[tuple[str, str]]:
    """Return the two cells of each row of the tables whose last column is a field."""
    found, inside = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        inside = bool(cells) and (inside or cells[-1] == LAST)
        if inside and cells[-1] != LAST and not set(cells[-1]) <= {"-"}:
            first, last = cells
            found.append((first, last))
    return found


ROWS = [row for page in PAGES for row in rows(page.read_text())]


class Run:
    """What a row's code finds, and what became of it."""

    def __init__(self) -> None:
        rl.seed(1)
        self.calls: list[int] = []
        self.num_envs = 2
        self.envs, self.test_envs, self.other_envs = (rl.make_vec(Doors, 2, seed=i) for i in (1, 2, 3))
        self.policy = tiny_actor_critic(self.envs)
        self.hook = Calls(self.calls)

    def call(self, what: Any) -> None:
        self.calls.append(what if isinstance(what, int) else what.env_step)

    def train(self, code: str) -> rl.InfoStats:
        given = eval(f"dict({code})", {"rl": rl, "call": self.call, **vars(self)})
        fields: dict[str, Any] = {
            "test_collector": rl.Collector(self.policy, self.test_envs, info_keys=["is_success"]),
            "collection_step_num_env_steps": 50, "epoch_num_steps": 500, "max_epochs": 4, "test_step_num_episodes": 2,
            "logger": rl.JSONLinesLogger("rows.jsonl"), "verbose": False, "show_progress": False, "seed": 1,
        }  # fmt: skip
        training_collector = rl.Collector(self.policy, self.envs)
        self.params = rl.OnPolicyTrainerParams(training_collector=training_collector, **(fields | given))
        return rl.OnPolicyTrainer(ScriptedOnPolicy(self.policy), self.params).run()


class Doors(TellingEnv):
    """An env whose episodes have 25 steps, and which may be more or less difficult."""

    difficulty = 1.0

    def __init__(self) -> None:
        super().__init__(length=25)


class Calls(rl.TrainerHook):
    def __init__(self, calls: list[int]) -> None:
        self.calls = calls

    def post_steps(self, ctx: rl.TrainerContext) -> None:
        self.calls.append(ctx.env_step)


def csv_steps() -> list[int]:
    """Return the steps of the training rows."""
    with Path("log.csv").open() as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row["name"] == "training/return"]


SEEN: dict[str, Callable[[Run, rl.InfoStats], bool]] = {
    "Evaluate(other_envs, save_best_fn": lambda run, result: Path("logs/best.safetensors").exists(),
    "Evaluate(": lambda run, result: '"kind": "hard"' in Path("rows.jsonl").read_text(),
    "checkpoint": lambda run, result: any(re.search("1000|500", str(path)) for path in Path("logs").iterdir()),
    "test_collector": lambda run, result: all(each.test_stats is not None for each in result.epochs),
    "save_best_fn": lambda run, result: Path("best.safetensors").exists() or Path("logs/best.safetensors").exists(),
    "stop_fn": lambda run, result: (result.stop_reason, result.epoch) == ("stop_fn", 1),
    "EarlyStopping": lambda run, result: "score has not improved on 25" in str(result.stop_reason),
    "MaxEpisodes(5": lambda run, result: "training episodes have ended" in str(result.stop_reason),
    "ctx.crossed": lambda run, result: run.calls == [500, 1000, 1500, 2000],
    "CSVLogger": lambda run, result: csv_steps() == [50, *range(250, 2001, 250)],
    "show_progress": lambda run, result: run.params.show_progress,
    "hooks=[hook": lambda run, result: run.calls == list(range(50, 2001, 50)),
    "training_fn=lambda epoch, env_step: call": lambda run, result: run.calls == list(range(0, 2000, 50)),
    "set_attr": lambda run, result: run.envs.get_attr("difficulty") == (1.95, 1.95),
    "compute_score_fn": lambda run, result: result.best_score == 1.0,
}
"""How it is seen, by what the code has in it."""


@pytest.mark.parametrize(("first", "last"), ROWS, ids=[f"{i}" for i in range(len(ROWS))])
def test_each_line_runs_and_does_what_it_says(
    first: str, last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = CODE.findall(last)[0]
    checks = [check for part, check in SEEN.items() if part in code]
    assert checks, code
    run = Run()
    assert checks[0](run, run.train(code))


def test_all_of_their_callbacks_are_there_as_one_expression_each() -> None:
    page = PAGES[0].read_text()
    for _, last in rows(page):
        code = CODE.findall(last)[0]
        call = ast.parse(f"dict({code})", mode="eval").body
        assert isinstance(call, ast.Call)
        assert len(call.keywords) == 1
        assert code.startswith(tuple(f"{name}=" for name in rl.OnPolicyTrainerParams.__dataclass_fields__))
    names = """
        BaseCallback CallbackList CheckpointCallback ConvertCallback EvalCallback EveryNTimesteps LogEveryNTimesteps
        ProgressBarCallback StopTrainingOnMaxEpisodes StopTrainingOnNoModelImprovement StopTrainingOnRewardThreshold
        _on_training_start _on_rollout_start _on_step _on_rollout_end _on_training_end
    """
    assert [name for name in names.split() if name not in page] == []
    assert len(ROWS) >= 20
