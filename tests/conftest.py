"""What holds for every test."""

import pytest
import torch

# The networks of the tests are tiny: a second thread only makes them slower, and the sums depend on the thread count.
torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
