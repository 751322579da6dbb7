"""Programs of ranks, which processes import from here."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from rltrainer.errors import RankLostError
from rltrainer.loggers import RunFolder
from rltrainer.ranks.ranks import Ranks
from rltrainer.ranks.torch_ranks import process_ranks
from tests.fakes import run_in_threads
from tests.resume.sharded import Cut, ends, make
from tests.unit.state.test_global_random import draw

VARIABLES = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def set_variables(monkeypatch: pytest.MonkeyPatch, **changes: str | None) -> None:
    """Set what torchrun sets in one of four processes, but for some changes; None leaves a variable unset."""
    for name, value in {**VARIABLES, **changes}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)


def collectives(ranks: Ranks) -> dict[str, Any]:
    one = torch.tensor([1.0 + ranks.rank, -float(ranks.rank)])
    return {
        "place": [ranks.rank, ranks.world],
        "sum": ranks.sum(one).tolist(),
        "mean": ranks.mean(one).tolist(),
        "max": ranks.max(one).tolist(),
        "number": float(ranks.sum(one[1])),
        "columns": ranks.sum(torch.stack([one, one]).T).tolist(),
        "gathered": [x.tolist() for x in ranks.gather(torch.arange(ranks.rank + 1))],
        "equal": [x.tolist() for x in ranks.gather(one, is_equal=True)],
        "rows": [list(x.shape) for x in ranks.gather(torch.zeros(ranks.rank, 2))],
        "said": ranks.from_first({"stop": ranks.rank, "why": None}),
    }


def expected(rank: int, world: int) -> dict[str, Any]:
    """Return what `collectives` finds, worked by hand."""
    total, of_ranks = world * (world + 1) / 2, range(world)
    return {
        "place": [rank, world],
        "sum": [total, world - total],
        "mean": [total / world, 1 - total / world],
        "max": [float(world), 0.0],
        "number": world - total,
        "columns": [[total] * 2, [world - total] * 2],
        "gathered": [list(range(each + 1)) for each in of_ranks],
        "equal": [[1.0 + each, -float(each)] for each in of_ranks],
        "rows": [[each, 2] for each in of_ranks],
        "said": {"stop": 0, "why": None},
    }


def describe(folder: Path) -> list[Any]:
    """Return what two processes find, with one rank each and with two, and the folder that they make."""
    plain, exact = process_ranks(), process_ranks(timeout=30.0, is_exact=True)
    found = [collectives(plain), collectives(exact), *run_in_threads([collectives] * 2, exact)]
    path = RunFolder.new("run", folder).path
    print("printed by", plain.rank)
    place = [os.environ["OMP_NUM_THREADS"], torch.get_num_threads(), plain.cause_of_end(), str(path)]
    return plain.from_all([found, place])


def fail_and_continue() -> list[str]:
    """Return the texts of errors of rank 1's in all ranks, and a sum after them."""
    ranks = process_ranks()
    texts = []
    for i in range(2):
        try:
            with ranks.reporting():
                if ranks.rank == 1:
                    raise ValueError(f"number {i}")
                ranks.from_all(None)
        except (ValueError, RankLostError) as error:
            texts.append(f"{type(error).__name__}: {error}")
        try:  # the connections are closed
            ranks.from_all(None)
        except RankLostError as error:
            texts.append(str(error).splitlines()[-1])
    with ranks.reporting():
        return ranks.from_all([*texts, int(ranks.sum(torch.ones(1)))])


def draw_in_runs(folder: Path) -> list[Any]:
    """Return what each rank draws in a run, in one that is cut, and in the rest of that; each time also afterwards."""
    ranks, found = process_ranks(), list[Any]()
    for name, cut_at in (("whole", None), ("cut", 4), ("cut", None)):
        drawn, cut = list[Any](), ends(cut_at)

        def act(epoch: int, env_step: int, drawn: Any = drawn, cut: Any = cut) -> None:
            cut(epoch, env_step)
            drawn.append(draw())

        with suppress(Cut, RankLostError):
            make("ppo", folder=folder / name, training_fn=act).run()
        found.append([*drawn, draw()])
    with ranks.reporting():
        return ranks.from_all(found)


def fail(code: int | None = None) -> None:
    """Fail in rank 1, or end its process before it has met the other one."""
    if code is not None and os.environ["RANK"] == "1":
        os._exit(code)
    with process_ranks().reporting():
        if os.environ["RANK"] == "1":
            raise ValueError("of rank 1")
        process_ranks().from_all(None)
