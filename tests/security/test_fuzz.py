"""The fast fuzz: each loader, a few hundred damaged files, the same ones every time. `make fuzz` is the slow one."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.security.fuzz import MAX_GROWTH, fuzz, peak
from tests.security.loaders import RUNS, Loader, make_loaders

NAMES = [
    *(f"{kind}{way}" for kind in ("algorithm", "policy", "buffer", "batch") for way in ("", ", signed", ", values")),
    "manifest", "member", "signed member", *(f"signed member, values of {name}" for name in ("dqn_prioritized", *RUNS)),
    "manifest, of a run", "member, rows", "signed member, rows", "signed member, rows in another order",
    "log.jsonl", "log.csv", "log", "params JSON",
]  # fmt: skip


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loader]:
    return make_loaders(tmp_path_factory.mktemp("fuzz"))


def test_every_loader_is_tried(loaders: dict[str, Loader]) -> None:
    assert list(loaders) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_damaged_is_refused_or_harmless(name: str, loaders: dict[str, Loader]) -> None:
    before, num = peak(), 20 if "values of" in name else 100  # which writes a checkpoint and trains on

    @settings(derandomize=True, database=None, deadline=None, max_examples=num, suppress_health_check=list(HealthCheck))
    @given(random=st.randoms(use_true_random=False))
    def run(random: Random) -> None:
        loaders[name].try_one(random)

    run()
    assert peak() - before < MAX_GROWTH


@pytest.mark.parametrize("name", ["algorithm", "buffer", "signed member, values of dqn_prioritized"])
def test_the_slow_fuzz_counts(name: str, loaders: dict[str, Loader]) -> None:
    counts, num_wrong = fuzz(loaders[name], 0, 20, seed=1, seconds=60)
    assert (sum(counts.values()), num_wrong) == (20, 0)
    assert counts["refused"] > 0


def test_the_slow_fuzz_sees_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> str:
        raise KeyError("unnamed")

    loader = Loader("broken", lambda random: None, load, is_sealed=True)
    assert fuzz(loader, 5, 8, seed=1, seconds=60)[1] == 3
    assert "--seed 1 --only 'broken' --first 5" in capsys.readouterr().err
    assert fuzz(Loader("other", lambda random: None, lambda: "x", is_sealed=True), 0, 1, 1, 60)[1] == 1
