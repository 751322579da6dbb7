"""What holds for every test."""

import multiprocessing

import pytest
import torch

# The networks of the tests are tiny: a second thread only makes them slower, and the sums depend on the thread count.
torch.set_num_threads(1)

# Worker processes start in a tenth of the time.
if "forkserver" in multiprocessing.get_all_start_methods():
    multiprocessing.set_forkserver_preload(["rltrainer", "tests.faults.envs", "tests.unit.envs.scripted"])


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
