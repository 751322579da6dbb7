"""What holds for every test."""

import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiers import SITE, costs, tier

ROOT = Path(__file__).parents[1]

# Compiled graphs are kept between runs; `make clean` removes them. Children inherit the folder.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".inductor"))

# The networks of the tests are tiny: a second thread only makes them slower, and the sums depend on the thread count.
torch.set_num_threads(1)

# A shell has what it starts in the background ignore Ctrl-C, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Worker processes start in a tenth of the time. The package names what its server imports whenever it makes a context:
# these come on top.
if "forkserver" in multiprocessing.get_all_start_methods():
    from multiprocessing import forkserver

    set_preload = forkserver.set_forkserver_preload
    preloaded = ["rltrainer", "tests.faults.envs", "tests.unit.envs.scripted", "tests.resume.killed"]
    forkserver.set_forkserver_preload = lambda modules: set_preload([*modules, *preloaded])


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if tier(item.nodeid, costs()) == "full":
            item.add_marker("full")
        if "site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(SITE))


def pytest_collection_finish() -> None:
    """Look for garbage less often: a million objects live as long as the process, and tracing makes many more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """Begin each test with the same random state, whichever tests its process has run before."""
    # Not `torch.manual_seed`: without a GPU it keeps a traceback of each call, which takes milliseconds here.
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    np.random.seed(0)
    random.seed(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the docs' pages, built as `make docs` builds them: once for all tests that look at them."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return folder


# A user's machine may lack a compiler or an extra; CI must not, as nobody would notice what is never run.
@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of pytest's own, which says what was expected to fail
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not item.get_closest_marker("gpu"):
        fail_if_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped:
        fail_if_required(report)
    return report


def fail_if_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where REQUIRE_ALL_TESTS is set."""
    if os.environ.get("REQUIRE_ALL_TESTS"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but REQUIRE_ALL_TESTS is set: {report.longrepr}"
