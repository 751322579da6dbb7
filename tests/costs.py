"""What each test costs, in CPU seconds of its process and of all processes that it starts.

`make costs` runs every test but the slow ones with cold caches and this plugin, writes `tests/costs.json`, and lists
the tests whose tier changes by it. `tests/tiers.py` reads the file.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from tests.tiers import COSTS, LIMIT, RECORDED, SITE, costs, tier

RECORD = "RLTRAINER_COSTS"
"""The environment variable with the file that the test processes append to."""

LATE_IMPORTS = (
    "matplotlib.pyplot", "mlflow", "optuna", "ray", "tensorboard.backend.event_processing.event_accumulator",
    "torch._inductor.compile_fx", "wandb",
)  # fmt: skip
"""Modules that the package imports where it needs them: imported here first, or the first test that does would pay."""


def cpu_seconds() -> float:
    """Return the CPU time of this process, of its children that have ended, and of all descendants that run."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])  # its own and its ended children's
        except psutil.Error:
            continue
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = cpu_seconds()
    result = yield
    # A descendant that ended without being waited for takes its time along, so a difference may be negative.
    line = json.dumps([item.nodeid.removesuffix(f"@{SITE}"), round(max(0.0, cpu_seconds() - before), 2)])
    with open(os.environ[RECORD], "a") as file:
        file.write(line + "\n")
    return result


def pytest_collection_finish() -> None:
    for name in LATE_IMPORTS:
        __import__(name)


def main(arguments: list[str]) -> int:
    """Measure, write the file, list what changes; return pytest's exit status."""
    before = costs()
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "record.jsonl")
        environment = os.environ | {RECORD: str(record), "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", "not slow"]
        command += ["-p", "tests.costs", *arguments]
        status = subprocess.run(command, env=environment, check=False).returncode
        measured = dict(json.loads(line) for line in record.read_text().splitlines())
    whole = not arguments
    kept = {test: cost for test, cost in measured.items() if cost >= RECORDED}
    after = kept if whole else {t: c for t, c in before.items() if t not in measured} | kept
    COSTS.write_text(json.dumps(dict(sorted(after.items())), indent=0) + "\n")
    moved = [t for t in sorted(measured) if tier(t, before) != tier(t, after)]
    for test in moved:
        print(f"{tier(test, before)} -> {tier(test, after)}: {test} ({before.get(test, 0)} -> {after.get(test, 0)} s)")
    fast = [cost for test, cost in measured.items() if tier(test, after) == "fast"]
    print(f"{len(fast)} fast tests: {sum(fast):.0f} CPU s; above {LIMIT} s: {sum(c > LIMIT for c in fast)}")
    print(f"{len(measured) - len(fast)} full tests: {sum(measured.values()) - sum(fast):.0f} CPU s")
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
