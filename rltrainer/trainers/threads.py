"""How many threads PyTorch uses on the CPU while a trainer runs."""

import contextlib
import os
from collections.abc import Iterator

import torch

WORK_FOR_THREADS = 50_000_000
"""Parameters times batch size from which on a second thread pays; below it, threads wait for each other longer than
they compute."""


def choose_num_threads(choice: str | int | None, num_parameters: int, batch_size: int) -> int | None:
    """Return the number of threads, None to leave what is set.

    Args:
        choice: `RuntimeParams.num_threads`.
        num_parameters: of the networks that are trained.
        batch_size: samples of a gradient step.
    """
    if choice != "auto":
        return choice  # type: ignore[return-value]  # the params have checked it
    return (os.cpu_count() or 1) if num_parameters * batch_size >= WORK_FOR_THREADS else 1


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Use this many threads inside, and as many as before afterwards."""
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
