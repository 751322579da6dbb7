"""The number of threads that PyTorch uses on the CPU while a trainer runs."""

import logging
import os

import torch

WORK_PER_THREAD = 25_000_000
"""Parameters times batch size that keep one thread busy; with less each, threads wait longer than they compute.

SAC with 256-256 networks and batches of 256 gets two, with which it was 1.4 times as fast on two free cores.
"""


def choose_num_threads(choice: str | int | None, chosen: str | int | None, work: int) -> int | None:
    """Return the number of threads, None to leave what is set.

    Args:
        choice: `RuntimeParams.num_threads`.
        chosen: what it came to in the run that goes on; the same as `choice` in a new one.
        work: parameters that are trained times samples of a gradient step.
    """
    if choice != "auto":
        return choice  # type: ignore[return-value]  # the params have checked it
    limit = torch.get_num_threads()  # by `torch.set_num_threads` or OMP_NUM_THREADS
    if not isinstance(chosen, int):
        return max(1, min(work // WORK_PER_THREAD, _num_cores(), limit))
    if chosen > limit:
        text = f"the run was saved with {chosen} torch threads and goes on with the {limit} that are set"
        logging.getLogger("rltrainer").warning("num_threads='auto': %s; sums may round differently", text)
    return min(chosen, limit)


def _num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
