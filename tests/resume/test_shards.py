"""Shards in one process and in several give the same bits, also where a run resumes in other processes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.compile.traced import _traced_only as _traced_only
from tests.contract.test_all_algorithms import WITHOUT_RANKS
from tests.faults.torchrun import end, start
from tests.resume.runs import RUNS
from tests.resume.sharded import Cut, make, outcome
from tests.resume.test_rows import rows

PROGRAM = Path(__file__).with_name("sharded.py")
SHARDED = [name for name in RUNS if name.removesuffix("_midway") not in WITHOUT_RANKS]
IN_PROCESSES = [
    "ppo with known envs", "ppo", "recurrent_ppo", "trpo", "reinforce_episodes", "ppo_midway", "ppo_adaptive",
    "sac_prioritized with known envs", "dqn", "td3", "redq", "sac_float64", "offline_iql", "offline_sac_prioritized",
]  # fmt: skip
NOT_EXACT = ["ppo with known envs", "sac_prioritized with known envs"]


def in_processes(folder: Path, runs: list[dict[str, Any]], num: int = 2) -> list[list[Any]]:
    """Return what each of some processes came to in each run."""
    folder.mkdir(exist_ok=True)
    run = start(PROGRAM, str(folder), json.dumps(runs), num_ranks=num)
    errors = end(run, str(folder))
    assert run.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num)]


def in_one(name: str, num_shards: int, folder: Path | None = None, **fields: Any) -> dict[str, Any]:
    """Return what a run in this process comes to."""
    trainer = make(name, num_shards, folder, **fields)
    trainer.run()
    return outcome(trainer)


def joined(*parts: dict[str, Any]) -> list[str]:
    """Return the digests of all shards of some processes."""
    return [digest for part in parts for digest in part["digests"]]


@pytest.mark.full
def test_two_processes_give_the_bits_of_one(tmp_path: Path) -> None:
    """Without `exact`, too: a sum of two numbers is the same in any order."""
    runs = [{"name": name, "folder": name} for name in IN_PROCESSES]
    found = in_processes(tmp_path / "two", runs + [{"name": name, "exact": False} for name in NOT_EXACT])
    for name, *parts in zip(IN_PROCESSES, *found, strict=False):
        expected = in_one(name, 2, tmp_path / "one" / name)
        assert joined(*parts) == expected["digests"], name
        logs = [tmp_path / place / name / "log.jsonl" for place in ("one", "two")]
        assert rows(logs[0]) == rows(logs[1])
        assert sorted(path.name for path in logs[0].parent.iterdir()) == ["checkpoints", "log.jsonl"]
    for name, *parts in zip(NOT_EXACT, *(each[len(IN_PROCESSES) :] for each in found), strict=True):
        assert joined(*parts) == in_one(name, 2, exact=False)["digests"], name


@pytest.mark.slow
def test_four_processes_give_the_bits_of_one(tmp_path: Path) -> None:
    names = ["ppo", "dqn_prioritized"]
    expected = [in_one(name, 4) for name in names]
    runs = [{"name": name, "num_shards": 4, "exact": exact} for exact in (True, False) for name in names]
    found = in_processes(tmp_path, runs, 4)
    for k, one in enumerate(expected):
        assert joined(*(each[k] for each in found)) == one["digests"], names[k]
        for each in found:  # without `exact`, sums may be rounded otherwise
            assert each[2 + k]["weights"] == pytest.approx(one["weights"], rel=1e-5)


@pytest.mark.full
def test_a_run_of_two_processes_continues_in_one(tmp_path: Path) -> None:
    names = ["ppo", "sac_prioritized", "recurrent_ppo", "offline_iql"]
    in_processes(tmp_path / "cut", [{"name": name, "folder": name, "cut_at": 4} for name in names])
    for name in names:
        expected = in_one(name, 2, tmp_path / "whole" / name)
        trainer = make(name, folder=tmp_path / "cut" / name)
        assert len(trainer.replicas) == 1
        assert len(list((tmp_path / "cut" / name / "checkpoints").glob("checkpoint-*"))) == 3
        trainer.run()
        assert outcome(trainer)["digests"] == expected["digests"], name
        assert rows(tmp_path / "cut" / name / "log.jsonl") == rows(tmp_path / "whole" / name / "log.jsonl")


@pytest.mark.full
def test_a_run_of_one_process_continues_in_two(tmp_path: Path) -> None:
    names = ["ppo", "dqn_prioritized", "reinforce_episodes"]
    for name in names:
        with pytest.raises(Cut):
            make(name, 4, tmp_path / "two" / name, cut_at=3).run()
    found = in_processes(tmp_path / "two", [{"name": name, "folder": name} for name in names])
    for name, *parts in zip(names, *found, strict=True):
        assert joined(*parts) == in_one(name, 4, tmp_path / name)["digests"], name
        assert rows(tmp_path / "two" / name / "log.jsonl") == rows(tmp_path / name / "log.jsonl")


@pytest.mark.parametrize(
    ("name", "size"), [("ppo", 1), ("dqn_prioritized", 1), ("offline_iql", 1), ("ppo", 3), ("sac", 4)]
)
def test_a_run_of_two_shards_that_is_cut_resumes(name: str, size: int, tmp_path: Path) -> None:
    """In the middle of an epoch and, where gradients are summed, of a group."""
    update = rl.UpdateParams(accumulate=size)
    with pytest.raises(Cut):
        make(name, 2, tmp_path / "run", cut_at=4, update=update).run()
    resumed = in_one(name, 2, tmp_path / "run", update=update)
    assert resumed["digests"] == in_one(name, 2, tmp_path / "whole", update=update)["digests"]
    assert rows(tmp_path / "run" / "log.jsonl") == rows(tmp_path / "whole" / "log.jsonl")


@pytest.mark.full
@pytest.mark.parametrize("name", [*SHARDED, "ppo_masked", "dqn_masked", "dqn_hindsight"])
def test_shards_are_equal_after_a_run(name: str) -> None:
    trainer = make(name, 2)
    trainer.run()
    (other,) = trainer.replicas
    for x, y in zip(trainer.algorithm._tensors(), other.algorithm._tensors(), strict=True):
        assert torch.equal(x, y)


@pytest.mark.usefixtures("_traced_only")
def test_compiled_shards_are_equal() -> None:
    """Their nine optimizers are more than the compiler keeps graphs for, were they of one code."""
    trainer = make("sac", 3, compile=True, max_epochs=1, num_envs=6, batch_size=6)
    trainer.run()
    expected = [p.detach() for p in trainer.algorithm.policy.parameters()]
    for each in trainer.replicas:
        assert each.algorithm.is_compiled
        for p, value in zip(each.algorithm.policy.parameters(), expected, strict=True):
            assert torch.equal(p, value)
