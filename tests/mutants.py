"""Plant mistakes in a copy of the package, one at a time, and see that the fast tier of the tests finds each.

    python -m tests.mutants                      all of them, two at a time
    python -m tests.mutants --only fsync         those with this in their names
    python -m tests.mutants --jobs 4

Ends with 1 if a mistake survives. `tests/test_mutants.py` checks that the table below fits the code.
"""

import argparse
import dataclasses
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.planted import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
COPIED = ("rltrainer", "tests", "pyproject.toml")
PYTEST = ["-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
TIME_LIMIT = 600.0
"""Seconds; a mistake that lets the tests hang is found."""
TESTS_FAILED = 1
"""What pytest ends with; other numbers but 0 mean that it could not run them."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the tests said of a mistake.

    Args:
        mutant: the mistake.
        word: "found", "SURVIVED", or "BROKEN" where the tests could not be run, or fail without the mistake, too.
        by: the first test that failed, or what pytest said.
        seconds: how long it took.
    """

    mutant: Mutant
    word: str
    by: str
    seconds: float


def run_tests(tree: Path, *arguments: str, writes_bytecode: bool = False) -> subprocess.CompletedProcess[str]:
    """Run tests of the fast tier in a copy of the project."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".inductor"))
    if not writes_bytecode:  # a file of the same size, written within the same second, would be taken for the old one
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    command = [sys.executable, *PYTEST, *arguments]
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=TIME_LIMIT
    )


def failed_tests(output: str) -> list[str]:
    """Return the tests that failed, by what pytest printed."""
    lines = (line.removeprefix("FAILED ") for line in output.splitlines() if line.startswith("FAILED "))
    return [line.partition(" - ")[0] for line in lines]


def judge(mutant: Mutant, tree: Path) -> Verdict:
    """Plant a mistake in a copy of the project, run the tests that are expected to find it, and take it out again."""
    file, began = tree / mutant.file, time.perf_counter()
    source, status = file.read_text(), file.stat()
    try:
        file.write_text(mutant.planted(source))
        os.utime(file, (status.st_atime, status.st_mtime + 10))  # no bytecode of the old one is taken for its
        run = run_tests(tree, "-x", *mutant.tests)
    except subprocess.TimeoutExpired:
        return Verdict(mutant, "BROKEN", "the tests hang", time.perf_counter() - began)
    finally:
        file.write_text(source)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    failed = failed_tests(run.stdout)
    word = {0: "SURVIVED", TESTS_FAILED: "found"}.get(run.returncode, "BROKEN")
    by = failed[0] if failed else (run.stdout + run.stderr).strip()[-200:]
    return Verdict(mutant, word, by, time.perf_counter() - began)


def copy_project(target: Path) -> None:
    """Copy what the tests of the table need."""
    for name in COPIED:
        if (source := ROOT / name).is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the mistakes, print a table, and return what the process ends with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this in their names")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at a time")
    options = parser.parse_args(arguments)
    mutants = [mutant for mutant in MUTANTS if options.only.lower() in mutant.name.lower()]
    if not mutants:
        parser.error(f"--only: no mistake has {options.only!r} in its name")
    began, free = time.perf_counter(), queue.SimpleQueue[Path]()

    def judge_in_free_tree(mutant: Mutant) -> Verdict:
        tree = free.get()
        try:
            return judge(mutant, tree)
        finally:
            free.put(tree)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        first, *others = [Path(folder, str(i)) for i in range(options.jobs)]
        first.mkdir()
        copy_project(first)
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        found = run_tests(first, "--collect-only", *tests, writes_bytecode=True)
        if found.returncode != 0:
            print(f"{found.stdout}{found.stderr}")
            return 2
        free.put(first)
        for tree in others:
            shutil.copytree(first, tree)  # with bytecode, which saves seconds in each run
            free.put(tree)
        with ThreadPoolExecutor(options.jobs) as pool:
            verdicts = []
            for verdict in pool.map(judge_in_free_tree, mutants):
                verdicts.append(verdict)
                print(f"{verdict.word:9}{verdict.seconds:5.1f} s  {verdict.mutant.name:68}{verdict.by}", flush=True)
        # A test that fails without the mistake, too, has found nothing.
        finders = sorted({verdict.by for verdict in verdicts if verdict.word == "found"})
        always = failed_tests(run_tests(first, *finders).stdout) if finders else []
    verdicts = [dataclasses.replace(each, word="BROKEN") if each.by in always else each for each in verdicts]
    missed = [verdict for verdict in verdicts if verdict.word != "found"]
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} found in {time.perf_counter() - began:.0f} s")
    for verdict in missed:
        name, file, tests = verdict.mutant.name, verdict.mutant.file, ", ".join(verdict.mutant.tests)
        print(f"  {verdict.word}: {name} ({file}), by {tests}: {verdict.by}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
